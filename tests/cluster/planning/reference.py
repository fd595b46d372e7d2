"""What a labelling costs, value by value, in plain loops: slow, and the yardstick for costs.py and every solver."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from taglio.cluster.planning.problem import CALLER, SOURCE, Copies, Kind, Problem, Resource, Totals

TOLERANCE = 1e-6


@dataclass(slots=True)
class Tally:
    """Amounts of one model: seconds by device, copies and bytes by link, noise by bound."""

    seconds: np.ndarray
    copies: np.ndarray
    sent: np.ndarray
    noise: list[float]


@dataclass(slots=True)
class Use:
    """What one value costs under one choice of copies; `held` are the kinds that each device holds."""

    seconds: dict[int, float] = field(default_factory=dict)
    sent: list[tuple[int, int, float]] = field(default_factory=list)
    edges: list[tuple[int, bool]] = field(default_factory=list)
    held: dict[int, Copies] = field(default_factory=dict)


def array_of(problem: Problem, wires: Sequence[Mapping[int, Copies]]) -> np.ndarray:
    """Copies by value, each by device, as an array (value, device)."""
    copies = np.zeros((len(wires), len(problem.devices)), dtype=np.intp)
    for value, each in enumerate(wires):
        for device, copy in each.items():
            copies[value, device] = copy
    return copies


def evaluate(problem: Problem, labels: Sequence[int], copies: np.ndarray | None = None) -> Totals:
    """Totals of `labels`. Without `copies` every value takes those that are cheapest by the objective."""
    if copies is None:
        cheapest = [cheapest_copies(problem, labels, value) for value in range(len(problem.values))]
        copies = array_of(problem, cheapest)
    count = len(problem.devices)
    models = len(problem.resources[0].models) if problem.resources else 1 + max(problem.model, default=0)
    tallies = [
        Tally(np.zeros(count), np.zeros((count, count)), np.zeros((count, count)), [0.0] * len(problem.noises))
        for _ in range(models)
    ]
    broken: list[str] = []
    objective = problem.constant
    for node, label in enumerate(labels):
        device, form = problem.split(label)
        if not problem.allowed[node, device, form]:
            broken.append(f"{problem.nodes[node]} may not be {problem.forms[form].name} on {problem.devices[device]}")
            continue
        tally = tallies[problem.model[node]]
        tally.seconds[device] += problem.seconds[node, device, form]
        for k, bound in enumerate(problem.noises):
            tally.noise[k] += bound.own[node, form]
    held: list[dict[int, Copies]] = []
    for value in range(len(problem.values)):
        broken += broken_edges(problem, labels, value)
        sent = {device: Copies(copy) for device, copy in enumerate(copies[value].tolist()) if copy}
        use = use_of(problem, labels, value, sent)
        held.append({} if use is None else use.held)
        if use is None:
            broken.append(f"{problem.values.names[value]} does not reach its readers with the chosen copies")
            continue
        tally = tallies[problem.values.model[value]]
        for device, seconds in use.seconds.items():
            tally.seconds[device] += seconds
        for source, target, size in use.sent:
            tally.copies[source, target] += 1
            tally.sent[source, target] += size
        for k, bound in enumerate(problem.noises):
            tally.noise[k] += sum(float((bound.wire if wire else bound.edge)[edge]) for edge, wire in use.edges)
    resources = [sum(_amount(each, tally, m) for m, tally in enumerate(tallies)) for each in problem.resources]
    for resource, amount in zip(problem.resources, resources, strict=True):
        objective += resource.weight * amount
        if over(amount, resource.upper):
            broken.append(resource.name)
    noises = [sum(tally.noise[k] for tally in tallies) for k in range(len(problem.noises))]
    broken += [bound.name for bound, noise in zip(problem.noises, noises, strict=True) if over(noise, bound.upper)]
    weight, peak = _memory(problem, labels, held)
    pairs = zip(problem.devices, peak, problem.memory.capacity, strict=True)
    broken += [f"memory of {name}" for name, used, capacity in pairs if over(used, capacity)]
    for implication in problem.implications:
        if implication.labels[labels[implication.node]] and all(
            mask[labels[node]] for node, mask in implication.neighbours
        ):
            broken.append(f"{problem.nodes[implication.node]} between its neighbours")
    return Totals(tuple(labels), copies, objective, np.array(resources), np.array(noises), weight, peak, tuple(broken))


def _memory(
    problem: Problem, labels: Sequence[int], held: Sequence[Mapping[int, Copies]]
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of weights, and of weights and live activations at their peak, by device."""
    weight = np.zeros(len(problem.devices))
    for node, label in enumerate(labels):
        device, form = problem.split(label)
        weight[device] += problem.memory.weights[node, form]
    return weight, weight + (live_bytes(problem, labels, held).max(axis=1) if problem.memory.peak else 0.0)


def over(amount: float, upper: float) -> bool:
    """Whether a limit is broken, beyond rounding."""
    return bool(amount > upper + TOLERANCE * max(1e-3, abs(upper)))


def written(problem: Problem, labels: Sequence[int], value: int) -> tuple[int, Kind]:
    """The device and kind that a value is written in."""
    producer = problem.values.producer[value]
    if producer == SOURCE:
        return int(problem.values.home[value]), Kind.FLOAT
    device, form = problem.split(labels[producer])
    return device, problem.forms[form].writes


def wanted(problem: Problem, labels: Sequence[int], value: int, edge: int) -> tuple[int, Kind]:
    """The device and kind that an edge's reader wants."""
    reader = problem.values.readers[edge]
    if reader == CALLER:
        return int(problem.values.home[value]), Kind.FLOAT
    device, form = problem.split(labels[reader])
    return device, problem.forms[form].reads


def broken_edges(problem: Problem, labels: Sequence[int], value: int) -> list[str]:
    """Strict readers that do not take the kind that is written."""
    kind = written(problem, labels, value)[1]
    values = problem.values
    edges = range(values.start[value], values.start[value + 1])
    return [
        f"{problem.nodes[values.readers[edge]]} cannot carry {values.names[value]} as it is written"
        for edge in edges
        if values.strict[edge] and wanted(problem, labels, value, edge)[1] != kind
    ]


def use_of(problem: Problem, labels: Sequence[int], value: int, copies: Mapping[int, Copies]) -> Use | None:
    """What a value costs when each device gets `copies`; None where a reader then gets nothing it can read."""
    values, use = problem.values, Use()
    home, kind = written(problem, labels, value)
    readers: dict[int, list[tuple[int, bool]]] = {}
    for edge in range(values.start[value], values.start[value + 1]):
        device, read = wanted(problem, labels, value, edge)
        readers.setdefault(device, []).append((edge, read == Kind.INT8))
    if set(copies) != set(readers) - {home}:
        return None
    quantized = False
    use.held[home] = Copies.INT8 if kind == Kind.INT8 else Copies.FLOAT
    for device, edges in readers.items():
        ints, floats = sum(int8 for _, int8 in edges), sum(not int8 for _, int8 in edges)
        got = use.held[home] if device == home else copies[device]
        if not got or (kind == Kind.INT8 and got != Copies.INT8):
            return None
        if device != home and got == Copies.FLOAT | Copies.INT8:
            return None
        dequantized = floats if not got & Copies.FLOAT else 0
        if dequantized and kind != Kind.INT8 and not problem.wire_only:
            return None
        busy = dequantized * float(values.dequantize_s[value, device])
        if device == home:
            quantized |= ints > 0 and kind != Kind.INT8
        else:
            use.held[device] = got
            quantized |= bool(got & Copies.INT8) and kind != Kind.INT8
            use.sent += [
                (home, device, float(size[value]))
                for copy, size in ((Copies.FLOAT, values.float_bytes), (Copies.INT8, values.int8_bytes))
                if got & copy
            ]
            if ints and not got & Copies.INT8:
                busy += float(values.quantize_s[value, device])
                use.held[device] |= Copies.INT8
        use.seconds[device] = use.seconds.get(device, 0.0) + busy
        if kind != Kind.INT8:
            use.edges += [(edge, False) for edge, int8 in edges if int8]
            use.edges += [(edge, True) for edge, int8 in edges if not int8 and dequantized]
    if quantized:
        use.seconds[home] = use.seconds.get(home, 0.0) + float(values.quantize_s[value, home])
        use.held[home] |= Copies.INT8
    return use


def choices(problem: Problem, labels: Sequence[int], value: int) -> Iterator[dict[int, Copies]]:
    """Every choice of copies that serves a value's readers."""
    home, kind = written(problem, labels, value)
    edges = range(problem.values.start[value], problem.values.start[value + 1])
    devices = sorted({wanted(problem, labels, value, edge)[0] for edge in edges} - {home})
    options = [Copies.INT8] if kind == Kind.INT8 else [Copies.FLOAT, Copies.INT8]
    for chosen in product(options, repeat=len(devices)):
        copies = dict(zip(devices, chosen, strict=True))
        if use_of(problem, labels, value, copies) is not None:
            yield copies


def cheapest_copies(problem: Problem, labels: Sequence[int], value: int) -> dict[int, Copies]:
    """The copies of a value that add least to the objective."""

    def cost(copies: dict[int, Copies]) -> float:
        use = use_of(problem, labels, value, copies)
        return sum(each.weight * of_use(each, use, problem.values.model[value]) for each in problem.resources if use)

    return min(choices(problem, labels, value), key=cost)


def live_bytes(problem: Problem, labels: Sequence[int], held: Sequence[Mapping[int, Copies]]) -> np.ndarray:
    """Bytes of live activations (device, position). A copy lives from the position of its producer (0 for an input) to
    its last reader on the device (the end, where the caller reads); on its own device at least where it is written."""
    values, nodes = problem.values, len(problem.nodes)
    live = np.zeros((len(problem.devices), max(1, nodes)))
    for value, copies in enumerate(held):
        first = max(0, int(values.producer[value]))
        for device, kinds in copies.items():
            last = first
            for edge in range(values.start[value], values.start[value + 1]):
                if wanted(problem, labels, value, edge)[0] == device:
                    last = max(last, nodes - 1 if values.readers[edge] == CALLER else int(values.readers[edge]))
            size = values.float_bytes[value] * bool(kinds & Copies.FLOAT)
            live[device, first : last + 1] += size + values.int8_bytes[value] * bool(kinds & Copies.INT8)
    return live


def every(problem: Problem) -> Iterator[Totals]:
    """Every labelling with every choice of copies within the limits. For small problems."""
    allowed = problem.allowed.reshape(len(problem.nodes), -1)
    for labels in product(*(np.flatnonzero(row).tolist() for row in allowed)):
        if any(broken_edges(problem, labels, value) for value in range(len(problem.values))):
            continue
        for wires in product(*(list(choices(problem, labels, value)) for value in range(len(problem.values)))):
            totals = evaluate(problem, labels, array_of(problem, wires))
            if not totals.broken:
                yield totals


def brute_force(problem: Problem) -> Totals | None:
    """The best of all; None where none keeps the limits."""
    return min(every(problem), key=lambda totals: totals.objective, default=None)


def _amount(resource: Resource, tally: Tally, model: int) -> float:
    """What a model adds to a resource."""
    busy = resource.device @ tally.seconds
    return float(resource.models[model] * (busy + (resource.link * tally.copies + resource.byte * tally.sent).sum()))


def of_use(resource: Resource, use: Use, model: int) -> float:
    """What one value adds to a resource."""
    total = sum(resource.device[device] * seconds for device, seconds in use.seconds.items())
    total += sum(resource.link[a, d] + resource.byte[a, d] * size for a, d, size in use.sent)
    return float(resource.models[model] * total)
