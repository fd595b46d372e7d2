"""Planning problems of any size for plan_scale.py: made-up costs on a fixed, a random or a real block graph.

Graphs. `chain`: block after block, as the peer's static networks are. `static`: stages of residual and
cross-stage-partial modules as in YOLO (fan-out 1 to 3, splits, skip joins). `random`: as the peer's (src/Test/Scripts
of github.com/SimoneNicosanti/Dissertation): a main branch and four others, each of which leaves the main branch at a
random block of its first half and comes back at one of its second half; every block is also read two blocks later with
a probability of 0.15; of 1,032 blocks, 652 are the main branch's. `yolo11x`: the blocks of yolo11x-seg with their own
work, weights and tensor sizes.

Costs, all from one seed. Work: log-normal, σ = 1 (yolo11x: its FLOPs). A device computes 1 (the first) to 12 times as
fast as the first, each block 0.7 to 1.4 times as fast again. int8 takes 0.3 to 1.1 of float, with its anchor alone 0.4
to 1.1. Tensors: log-normal, σ = 0.7, a quarter as large at the end as at the start. Links: 0.1 to 3 Gbit/s and 0.2 to 2
ms, each direction for itself. A block's int8 noise is log-normal, σ = 1.5; quantising an edge adds half of that.

Limits. Noise: 15 % of what everything in int8 adds. Memory: the first device holds all weights in float, each other 0.6
to 1.8 of an equal share, so that the fastest cannot take what it would. Objective: seconds added over one request, and
0.02 s for a joule. Input and output are on the first device.
"""

from dataclasses import dataclass, field

import numpy as np

from plan_networks import graph as graph_of
from taglio.cluster.planning.problem import CALLER, SOURCE, Form, Kind, Memory, NoiseBound, Problem, Resource, Values
from taglio.model.graph import Graph

FORMS = (
    Form("float32", Kind.FLOAT, Kind.FLOAT),
    Form("int8", Kind.INT8, Kind.INT8),
    Form("int8-anchor", Kind.INT8, Kind.FLOAT),
)
FLOAT, WHOLE, SOFT = range(3)


@dataclass
class Network:
    """Blocks and tensors without costs: what each block may be, and (producer, readers) of every value."""

    kinds: list[str] = field(default_factory=list)
    values: list[tuple[int, list[int]]] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    elements: list[float] = field(default_factory=list)

    def block(self, kind: str, *inputs: int) -> int:
        """Add a block that reads these values; its own first value has the index that is returned."""
        node = len(self.kinds)
        self.kinds.append(kind)
        for value in inputs:
            self.values[value][1].append(node)
        return self.value(node)

    def value(self, producer: int) -> int:
        self.values.append((producer, []))
        return len(self.values) - 1


def chain(blocks: int, rng: np.random.Generator) -> Network:
    net = Network()
    here = net.value(SOURCE)
    for _ in range(blocks):
        here = _skipping(net, rng, [here])
    return net


def static(blocks: int) -> Network:
    """Modules one after another until there are `blocks` blocks."""
    net = Network()
    here = net.block("soft", net.value(SOURCE))
    turn = 0
    while len(net.kinds) < blocks:
        turn += 1
        if turn % 3 == 1:  # a residual bottleneck
            inner = net.block("soft", net.block("soft", here))
            here = net.block("join", here, inner)
        elif turn % 3 == 2:  # a cross-stage-partial module: split, two bottlenecks, join of all
            left = net.block("move", net.block("soft", here))
            right = net.value(net.values[left][0])
            kept = [left, right]
            for _ in range(2):
                inner = net.block("soft", net.block("soft", kept[-1]))
                kept.append(net.block("join", kept[-1], inner))
            here = net.block("soft", net.block("join", *kept))
        else:  # parallel pools of one tensor, then a plain convolution
            start = net.block("conv", here)
            one = net.block("move", start)
            two = net.block("move", one)
            here = (
                net.block("refused", net.block("join", start, one, two)) if turn % 2 else net.block("join", start, two)
            )
    return _cut(net, blocks)


def random(blocks: int, rng: np.random.Generator) -> Network:
    side = round(blocks * 95 / 1030)
    main = blocks - 4 * side
    leaves, meets = rng.integers(0, main // 2, 4), rng.integers(main // 2 + 1, main, 4)
    # By place in the main branch: the values that blocks there read beside the block before.
    more: dict[int, list[int]] = {}
    net = Network()
    here = net.value(SOURCE)
    for place in range(main):
        here = _skipping(net, rng, [here, *more.pop(place, [])])
        if rng.random() < 0.15 and place + 2 < main:
            more.setdefault(place + 2, []).append(here)
        for leave, meet in zip(leaves, meets, strict=True):
            if leave == place:
                more.setdefault(int(meet), []).append(_branch(net, rng, here, side))
    return net


def _branch(net: Network, rng: np.random.Generator, here: int, blocks: int) -> int:
    """The last value of a chain of blocks with skips."""
    skipped: dict[int, int] = {}
    for place in range(blocks):
        here = _skipping(net, rng, [here, *([skipped.pop(place)] if place in skipped else [])])
        if rng.random() < 0.15 and place + 2 < blocks:
            skipped[place + 2] = here
    return here


def _skipping(net: Network, rng: np.random.Generator, reads: list[int]) -> int:
    reads = sorted(set(reads))
    plain = str(rng.choice(["soft", "conv", "move", "refused"], p=[0.5, 0.2, 0.2, 0.1]))
    return net.block("join" if len(reads) > 1 else plain, *reads)


def blocks_of(graph: Graph) -> Network:
    """The graph's network."""
    net = Network()
    index = {block.name: number for number, block in enumerate(graph.blocks)}
    for block in graph.blocks:
        kind = "refused" if block.refusal else "move" if block.movement else "soft" if block.soft_tail else "conv"
        net.kinds.append(kind)
        net.work.append(max(1.0, float(block.flops)))
        net.weights.append(float(block.weight_bytes(32)))
    for tensor in graph.tensors:
        producer = SOURCE if tensor.producer is None else index[tensor.producer]
        net.values.append((producer, [index[name] for name in tensor.consumers]))
        net.elements.append(float(tensor.elements))
    return net


def _cut(net: Network, blocks: int) -> Network:
    """The first `blocks` blocks."""
    kept = [(producer, readers) for producer, readers in net.values if producer < blocks]
    net.values = [(producer, [node for node in readers if node < blocks]) for producer, readers in kept]
    net.kinds = net.kinds[:blocks]
    return net


def problem(net: Network, devices: int, rng: np.random.Generator) -> Problem:
    """Costs and limits for a network, by the laws above."""
    nodes = len(net.kinds)
    work = np.array(net.work) if net.work else rng.lognormal(0.0, 1.0, nodes)
    light = np.isin(net.kinds, ["join", "move"])
    work = np.where(light, 0.02 * work, work) if not net.work else work
    start_s = 1.5 * work / work.sum()
    faster = np.concatenate([[1.0], np.sort(rng.uniform(1.0, 12.0, devices - 1))])
    speed = faster[None, :] * rng.uniform(0.7, 1.4, (nodes, devices))
    ratio = np.stack([np.ones((nodes, devices)), rng.uniform(0.3, 1.1, (nodes, devices))], axis=2)
    ratio = np.concatenate([ratio, rng.uniform(0.4, 1.1, (nodes, devices, 1))], axis=2)
    seconds = (start_s[:, None] / speed)[:, :, None] * ratio
    allowed = np.zeros((nodes, devices, len(FORMS)), dtype=bool)
    for node, kind in enumerate(net.kinds):
        forms = {"refused": [FLOAT], "soft": [FLOAT, WHOLE, SOFT]}.get(kind, [FLOAT, WHOLE])
        allowed[node][:, forms] = True
    values = values_of(net, rng, start_s, speed)
    bandwidth = rng.uniform(0.1, 3.0, (devices, devices)) * 1e9 / 8
    latency = rng.uniform(0.2e-3, 2e-3, (devices, devices))
    off = ~np.eye(devices, dtype=bool)
    watts = rng.uniform(3.0, 60.0, devices) * faster / 12
    none = np.zeros((devices, devices))
    resources = (
        Resource("latency", np.ones(devices), latency * off, off / bandwidth, np.ones(1), 1.0),
        Resource("energy", watts, none, off * 2e-8, np.ones(1), 0.02),
    )
    own = rng.lognormal(0.0, 1.5, nodes) * ~np.isin(net.kinds, ["refused", "move"])
    by_form = np.stack([np.zeros(nodes), own, 0.7 * own], axis=1)
    readers = values.readers
    edge = np.where(readers == CALLER, 0.0, 0.5 * own[np.maximum(readers, 0)] * rng.uniform(0.2, 1.8, len(readers)))
    weights = np.array(net.weights) if net.weights else np.where(light, 0.0, rng.lognormal(0.0, 1.0, nodes) * 4e5)
    noise = NoiseBound("error", by_form, edge, edge.copy(), 0.15 * float(own.sum()))
    capacity = weights.sum() * np.concatenate([[1.0], rng.uniform(0.6, 1.8, devices - 1) / devices])
    memory = Memory(capacity, weights[:, None] * np.array([1.0, 0.25, 0.25]))
    names = tuple(f"block{node}" for node in range(nodes))
    return Problem(
        tuple(f"device{device}" for device in range(devices)),
        FORMS,
        names,
        np.zeros(nodes, dtype=np.intp),
        seconds,
        allowed,
        values,
        resources,
        (noise,),
        memory,
        wire_only=True,
    )


def values_of(net: Network, rng: np.random.Generator, start_s: np.ndarray, speed: np.ndarray) -> Values:
    """Sizes of the tensors, and what quantising them takes: a share of an average block's time."""
    read = [(producer, readers or [CALLER]) for producer, readers in net.values]
    count, nodes = len(read), len(net.kinds)
    producer = np.array([writer for writer, _ in read])
    if net.elements:
        elements = np.array(net.elements)
    else:
        elements = rng.lognormal(0.0, 0.7, count) * 2e5 * 0.25 ** (np.maximum(producer, 0) / nodes)
    glue = 0.15 * start_s.mean() * elements[:, None] / elements.mean() / speed.mean(axis=0)[None, :]
    quantize = glue * rng.uniform(0.5, 1.5, (count, 1))
    carries = np.array([kind == "move" for kind in net.kinds])
    readers = np.array([node for _, nodes_of_value in read for node in nodes_of_value])
    return Values(
        tuple(f"value{index}" for index in range(count)),
        producer,
        np.zeros(count, dtype=np.intp),
        np.zeros(count, dtype=np.intp),
        np.concatenate([[0], np.cumsum([len(nodes_of_value) for _, nodes_of_value in read])]),
        readers,
        (readers != CALLER) & carries[np.maximum(readers, 0)],
        quantize,
        glue * rng.uniform(0.5, 1.5, (count, 1)),
        4.0 * elements,
        elements,
    )


def instance(graph: str, blocks: int, devices: int, seed: int) -> Problem:
    """The problem of a row; yolo11x has blocks of its own."""
    rng = np.random.default_rng(seed)
    if graph == "yolo11x":
        return problem(blocks_of(graph_of("yolo11x-seg")), devices, rng)
    made = {"chain": chain, "random": random}
    return problem(static(blocks) if graph == "static" else made[graph](blocks, rng), devices, rng)
