"""Small random planning problems of all kinds, for tests that hold solvers against brute force. No solver in here."""

import numpy as np
from hypothesis import strategies as st

from taglio.cluster.planning.problem import (
    CALLER,
    SOURCE,
    Form,
    Implication,
    Kind,
    Memory,
    NoiseBound,
    Problem,
    Resource,
    Values,
)

FORMS = (
    Form("float32", Kind.FLOAT, Kind.FLOAT),
    Form("int8", Kind.INT8, Kind.INT8),
    Form("int8-anchor", Kind.INT8, Kind.FLOAT),
)
MOST_LABELLINGS = 300


def made(rng: np.random.Generator, *, limits: bool, peak: bool = False) -> Problem:
    """2 to 5 nodes on 1 to 3 devices: fan-out, joins, movement, pins, wire-only or not."""
    while True:
        problem = _made(rng, limits, peak)
        if np.prod(problem.allowed.reshape(len(problem.nodes), -1).sum(axis=1)) <= MOST_LABELLINGS:
            return problem


def _made(rng: np.random.Generator, limits: bool, peak: bool) -> Problem:
    nodes, devices = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    carries = rng.random(nodes) < 0.25
    allowed = np.zeros((nodes, devices, len(FORMS)), dtype=bool)
    for node in range(nodes):
        forms = [0, 1] if carries[node] else [0, *([1] * (rng.random() < 0.7)), *([2] * (rng.random() < 0.3))]
        allowed[node][:, forms] = True
        if rng.random() < 0.15:
            allowed[node][np.arange(devices) != rng.integers(devices)] = False

    def some(*shape: int) -> np.ndarray:
        return np.round(rng.random(shape) * 10.0, 3)

    values = _values(rng, carries, some, devices)
    edges = len(values.readers)
    models, off = np.ones(1), ~np.eye(devices, dtype=bool)
    resources = [
        Resource(
            "latency",
            np.ones(devices),
            0.2 * some(devices, devices) * off,
            0.1 * some(devices, devices) * off,
            models,
            1.0,
        ),
        Resource(
            "energy", some(devices), 0.1 * some(devices, devices) * off, 0.1 * some(devices, devices) * off, models, 0.1
        ),
    ]
    noises: list[NoiseBound] = []
    memory = Memory(np.full(devices, np.inf), np.zeros((nodes, len(FORMS))))
    implications: tuple[Implication, ...] = ()
    if limits:
        own = np.array([0.0, 1.0, 1.0])
        for k in range(int(rng.integers(0, 3))):
            bound = float(rng.choice([5.0, 10.0, 20.0, 40.0]))
            noises.append(NoiseBound(f"noise {k}", some(nodes, 3) * own, some(edges), some(edges), bound))
        if peak or rng.random() < 0.5:
            weights = some(nodes, 3) * np.array([1.0, 0.25, 0.25])
            memory = Memory(some(devices) * nodes * (1.5 if peak else 0.7) + 3.0, weights, peak)
        if rng.random() < 0.4:
            busy = np.zeros(devices)
            busy[rng.integers(devices)] = 1.0
            none = np.zeros((devices, devices))
            resources.append(Resource("busy", busy, none, none, models, 0.0, float(rng.random() * 8.0 * nodes)))
        if rng.random() < 0.3:
            floats = np.tile([True, False, False], devices)
            ints = np.tile([False, True, True], devices)
            node = int(rng.integers(nodes))
            others = [other for other in range(nodes) if other != node][: int(rng.integers(1, 3))]
            implications = (Implication(node, floats, tuple((other, ints) for other in others)),)
    return Problem(
        tuple(f"device {d}" for d in range(devices)),
        FORMS,
        tuple(f"block {n}" for n in range(nodes)),
        np.zeros(nodes, dtype=np.intp),
        some(nodes, devices, 3),
        allowed,
        values,
        tuple(resources),
        tuple(noises),
        memory,
        implications,
        bool(rng.random() < 0.5),
    )


def _values(rng: np.random.Generator, carries: np.ndarray, some: "object", devices: int) -> Values:
    """Each node reads one or two earlier values; a node without readers is read by the caller."""
    nodes = len(carries)
    feeds: dict[int, list[int]] = {node: [] for node in range(SOURCE, nodes)}
    for node in range(nodes):
        for _ in range(1 if carries[node] else int(rng.integers(1, 3))):
            feeds[int(rng.integers(-1, node)) if node else SOURCE].append(node)
    made_of: list[tuple[int, list[int]]] = []
    for producer, read in feeds.items():
        readers = [*read, CALLER] if producer >= 0 and (not read or rng.random() < 0.1) else read
        if producer >= 0 and len(readers) > 1 and rng.random() < 0.2:
            made_of += [(producer, readers[:1]), (producer, readers[1:])]
        elif readers:
            made_of.append((producer, readers))
    readers_ = np.array([reader for _, each in made_of for reader in each])
    count = len(made_of)
    return Values(
        tuple(f"value {index}" for index in range(count)),
        np.array([producer for producer, _ in made_of]),
        np.full(count, int(rng.integers(devices))),
        np.zeros(count, dtype=np.intp),
        np.concatenate([[0], np.cumsum([len(each) for _, each in made_of])]),
        readers_,
        (readers_ >= 0) & carries[np.maximum(readers_, 0)],
        0.5 * some(count, devices),  # type: ignore[operator]
        0.5 * some(count, devices),  # type: ignore[operator]
        4.0 * some(count),  # type: ignore[operator]
        some(count),  # type: ignore[operator]
    )


@st.composite
def problems(draw: st.DrawFn, *, limits: bool = True, peak: bool = False) -> Problem:
    """Hypothesis draws a seed: its own numbers crowd around zero, where nothing has to be decided."""
    return made(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), limits=limits, peak=peak)
