"""Choose each tensor's range by its effect on the outputs. Does not calibrate.

Each quantised tensor keeps its whole range, or drops outliers beyond one of two percentiles, or takes the range of
least squared error. A probe of the float model quantises any one tensor to any range: d(tensor, range) is the change of
the outputs. To first order the changes of several tensors add up, so coordinate descent, one tensor at a time,
minimises

    Σ_parts ( ‖Σ_tensors d‖² + Σ_tensors ‖d‖² ) / (the same for whole ranges)

which is the expected squared error when a random half of the tensors is quantised. Clipping shifts means, so errors of
clipped tensors add up while rounding errors do not; without the first term too many tensors would be clipped. The
choice is made on two halves of the samples separately, and the wider of the two ranges is taken, so that a range that
suits only some samples is not chosen.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio.model.derived import add_flags
from taglio.model.load import Model
from taglio.model.observe import tensor_values
from taglio.progress import Progress, reported
from taglio.quantize.parameters import activation_parameters
from taglio.quantize.precision import precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.same_range import range_roots
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

Range = tuple[float, float]
# The outputs of all samples -> their differences from the float model's, for two halves: shape [2, parts, any].
Differences = Callable[[Sequence[list[np.ndarray]]], np.ndarray]

_PERCENTILES = (99.99, 99.9)
_SHRUNK = tuple(0.95**power for power in range(1, 21))
# Values that must lie beyond a percentile for it to be tried: the extremes of a small sample are not outliers.
_BEYOND = 10
# Values sampled from each tensor of each sample.
_VALUES = 20_000
_SWEEPS = 8
_WHICH, _HOW = "probe/which", "probe/how"


def choose(
    builder: QdqBuilder,
    ranges: Ranges,
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
    differences: Differences,
    *,
    budget_s: float,
    progress: Progress | None = None,
) -> dict[str, Range]:
    """New ranges under `scheme`, for the tensors whose range should change.

    Tensors of large effect are tried first; those not reached within `budget_s` seconds keep their range.
    """
    model, names = builder.model, _quantized(builder, ranges, scheme)
    if not names:
        return {}
    start = time.perf_counter()
    change = _probe(model, names, scheme, samples, differences)
    candidates = {name: [ranges.low_high[name]] for name in names}
    changes = {name: [change(name, ranges.low_high[name])] for name in names}
    others = _candidates(model, {name: ranges.low_high[name] for name in names}, scheme, samples)
    order = sorted(names, key=lambda name: -float(np.square(changes[name][0]).sum()))
    for name in reported(order, "ranges per tensor", progress):
        if time.perf_counter() - start > budget_s:
            break
        for each in others[name]:
            candidates[name].append(each)
            changes[name].append(change(name, each))
    halves = [_descend([[each[half] for each in changes[name]] for name in names]) for half in (0, 1)]
    return {name: candidates[name][min(indices)] for name, *indices in zip(names, *halves, strict=True) if min(indices)}


def _descend(changes: Sequence[Sequence[np.ndarray]]) -> list[int]:
    """For each tensor, the index of the candidate that minimises the sum above; 0 is the whole range.
    `changes[tensor][candidate]` has the shape [parts, any]."""
    total = np.sum([each[0] for each in changes], axis=0)
    whole = np.square(total).sum(axis=1) + np.sum([np.square(each[0]).sum(axis=1) for each in changes], axis=0)
    weight = np.divide(1.0, whole, out=np.zeros_like(whole), where=whole > 0.0)
    picked = [0] * len(changes)
    for _ in range(_SWEEPS):
        before = list(picked)
        for index, each in enumerate(changes):
            rest = total - each[picked[index]]
            costs = [
                float(weight @ (np.square(rest + change).sum(axis=1) + np.square(change).sum(axis=1)))
                for change in each
            ]
            picked[index] = int(np.argmin(costs))
            total = rest + each[picked[index]]
        if picked == before:
            break
    return picked


def _quantized(builder: QdqBuilder, ranges: Ranges, scheme: Scheme) -> list[str]:
    """The tensors with a range of their own that are quantised when all blocks are in int8."""
    model, whole = builder.model, precisions(scheme)[1]
    built = builder.build({block.name: whole for block in builder.graph.candidates()})
    # A model output that int8 writes is quantised under another name: its own name is behind the pair.
    roots = range_roots(model.proto)
    roots |= {f"{name}/float": roots.get(name, name) for name in model.outputs}
    names = [node.input[0] for node in built.graph.node if node.op_type == "QuantizeLinear"]
    return [name for name in dict.fromkeys(roots.get(name, name) for name in names) if name in ranges.low_high]


def _candidates(
    model: Model, whole: Mapping[str, Range], scheme: Scheme, samples: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, list[Range]]:
    """Narrower ranges to try for each tensor, widest first, without duplicates. Holds the activations of one sample at
    a time."""
    seen: dict[str, list[np.ndarray]] = {name: [] for name in whole}
    for values in tensor_values(model, [*whole], samples, "the calibration data"):
        for name, kept in seen.items():
            flat = np.asarray(values[name]).ravel()
            kept.append(flat[:: max(1, flat.size // _VALUES)].copy())
    result = {}
    for name, (low, high) in whole.items():
        flat = np.concatenate(seen[name])
        flat = flat[np.isfinite(flat)]
        far = [each for each in _PERCENTILES if flat.size * (1.0 - each / 100.0) >= _BEYOND]
        ends = [tuple(np.percentile(flat, [100.0 - each, each])) for each in far]
        if far:
            ends.append(_least_squares(flat, low, high, scheme))
        narrower = [(max(low, float(one)) if low < 0.0 else low, min(high, float(other))) for one, other in ends]
        usable = [each for each in dict.fromkeys(narrower) if each != (low, high) and each[0] < each[1]]
        result[name] = sorted(usable, key=lambda each: each[0] - each[1])
    return result


def _least_squares(values: np.ndarray, low: float, high: float, scheme: Scheme) -> Range:
    """`low` and `high` scaled by the factor that gives the least squared error."""

    def error(factor: float) -> float:
        scale, zero, least, most = _quantizer(low * factor, high * factor, scheme)
        steps = np.clip(np.rint(values / scale), least - zero, most - zero)
        return float(np.square(steps * scale - values).sum())

    best = min((1.0, *_SHRUNK), key=error)
    return low * best, high * best


def _quantizer(low: float, high: float, scheme: Scheme) -> tuple[float, float, float, float]:
    """Scale, zero point, lowest and highest integer."""
    parameters = activation_parameters(low, high, scheme)
    info = np.iinfo(parameters.zero_point.dtype)
    return float(parameters.scale), float(parameters.zero_point), float(info.min), float(info.max)


def _probe(
    model: Model,
    names: Sequence[str],
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
    differences: Differences,
) -> Callable[[str, Range], np.ndarray]:
    """What gives the change of the outputs, [2, parts, any], with one of `names` quantised to a range: the float model
    with an If behind each of these tensors, which quantises it to the range in the feed."""
    index = {name: number for number, name in enumerate(names)}
    session = open_session(_probe_graph(model, index), SessionOptions(0), label="the range probe")

    def change(name: str, ends: Range) -> np.ndarray:
        scale, zero, least, most = _quantizer(*ends, scheme)
        which = np.zeros(len(index), np.bool_)
        which[index[name]] = True
        fed = {_WHICH: which, _HOW: np.array([1.0 / scale, scale, least - zero, most - zero], np.float32)}
        changed = []
        for feed in samples:
            named = {_raw(each) if each in index else each: value for each, value in feed.items()}
            changed.append(run_session(session, model.outputs, named | fed, "the calibration data"))
        return differences(changed)

    return change


def _raw(name: str) -> str:
    return f"{name}/unquantized"


def _probe_graph(model: Model, index: Mapping[str, int]) -> onnx.ModelProto:
    proto = deepcopy(model.proto)
    graph = proto.graph
    nodes = list(graph.node)
    del graph.node[:]
    add_flags(graph, _WHICH, len(index))
    graph.input.append(helper.make_tensor_value_info(_HOW, TensorProto.FLOAT, [4]))
    how = [f"{_HOW}/{name}" for name in ("inverse", "scale", "least", "most")]
    for position, name in enumerate(how):  # scalars: with shape [1] they would add a dimension to scalar tensors
        graph.initializer.append(helper.make_tensor(f"{name}/position", TensorProto.INT64, [], [position]))
        graph.node.append(helper.make_node("Gather", [_HOW, f"{name}/position"], [name], name=name, axis=0))
    for value in graph.input:
        if value.name in index:
            graph.node.append(_switch(value.name, index[value.name], how))
            value.name = _raw(value.name)
    for node in nodes:
        written = [name for name in node.output if name in index]
        node.output[:] = [_raw(name) if name in index else name for name in node.output]
        graph.node.append(node)
        graph.node.extend(_switch(name, index[name], how) for name in written)
    return proto


def _switch(name: str, index: int, how: Sequence[str]) -> onnx.NodeProto:
    """An If that quantises `name` with float operators, which no runtime mistakes for a quantised model."""
    inverse, scale, least, most = how
    own = [f"{_WHICH}/{index}/{each}" for each in ("steps", "rounded", "above", "clipped", "quantized", "passed")]
    steps, rounded, above, clipped, quantized, passed = own
    nodes = [
        helper.make_node("Mul", [_raw(name), inverse], [steps]),
        helper.make_node("Round", [steps], [rounded]),
        helper.make_node("Max", [rounded, least], [above]),
        helper.make_node("Min", [above, most], [clipped]),
        helper.make_node("Mul", [clipped, scale], [quantized]),
    ]
    out = [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in (quantized, passed)]
    chosen = helper.make_graph(nodes, quantized, [], out[:1])
    other = helper.make_graph([helper.make_node("Identity", [_raw(name)], [passed])], passed, [], out[1:])
    flag = f"{_WHICH}/{index}"
    return helper.make_node("If", [flag], [name], name=f"{flag}/switch", then_branch=chosen, else_branch=other)
