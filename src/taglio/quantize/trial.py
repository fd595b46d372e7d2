"""Find candidate blocks that cannot be int8, by their ranges and by running them. Plans nothing.

1. A block that reads or writes a tensor without a range (such as a mask of −3.4e38) stays float.
2. So does a block that writes the input of a Softmax, if one int8 step would be too coarse for the Softmax: for
   instance scores beside a mask of −10000.
3. So does a Concat if its output's range would leave an input a sixteenth of the steps or fewer: for instance boxes of
   0 to 640 beside scores of 0 to 1.
4. So does every block under an opset for which ONNX Runtime has no QuantizeLinear.
5. All others are loaded and run together. If ONNX Runtime refuses the file, or its int8 kernels differ too much from
   the same pairs without fusion, the blocks to blame are found by bisection and stay float.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio.errors import BadData, BadModel, CannotQuantize
from taglio.model.graph import Block, Graph, flows
from taglio.model.load import Model
from taglio.quantize.precision import Precision, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, run_session, sums_saturate, version

# exp(−1) is 0.37: scores this far apart give different answers, and a coarser step merges them.
_SOFTMAX_STEP = 1.0
_COARSEST = 16.0
# A correct int8 kernel may round to the neighbouring step; a wrong one is off by many times the error of unfused pairs.
_TIMES, _SLACK = 4.0, 0.02


def unusable(
    model: Model,
    graph: Graph,
    ranges: Ranges,
    scheme: Scheme,
    feed: Mapping[str, np.ndarray],
    options: SessionOptions,
    *,
    thorough: bool = True,
    builder: QdqBuilder | None = None,
) -> dict[str, str]:
    """The candidate blocks of `graph` that cannot be int8 under `scheme`, each with the reason. `feed` is one sample.

    Unless `thorough`, blocks are only checked to load and run in their whole form; answers are not compared.

    Raises BadModel or BadData if the float model itself cannot be loaded or run.
    """
    reasons = _without_quantizer(model, graph) or _by_range(model, graph, ranges, scheme)
    candidates = [block for block in graph.candidates() if block.name not in reasons]
    if not candidates:
        return reasons
    builder = builder or QdqBuilder(model, graph, {scheme.calibrated: ranges})
    exact = thorough and not (sums_saturate() and scheme.may_saturate)
    _, whole, anchor, *_ = precisions(scheme)
    trial = _Trial(model, builder, whole, feed, options, compare=exact)
    reasons |= culprits(candidates, trial.failure)
    soft = [block for block in candidates if block.name not in reasons and block.soft_tail]
    if soft and thorough:
        reasons |= culprits(soft, _Trial(model, builder, anchor, feed, options, compare=False).failure)
    return reasons


def culprits(blocks: Sequence[Block], failure: Callable[[Sequence[Block]], str]) -> dict[str, str]:
    """The blocks to remove so that the rest passes, each with what `failure` says of it; log2(n) trials per block.

    `failure` returns the reason why some blocks fail together, or "".
    """
    rest, passed = list(blocks), 0
    found: dict[str, str] = {}
    while reason := failure(rest):
        high = len(rest)
        while high - passed > 1:  # the first `passed` go together, the first `high` do not
            middle = (passed + high) // 2
            if said := failure(rest[:middle]):
                high, reason = middle, said
            else:
                passed = middle
        found[rest.pop(high - 1).name] = reason
        if not rest:
            break
    return found


class _Trial:
    """Tries blocks together in one precision: does ONNX Runtime load them, and answer as with unfused pairs?"""

    def __init__(
        self,
        model: Model,
        builder: QdqBuilder,
        precision: Precision,
        feed: Mapping[str, np.ndarray],
        options: SessionOptions,
        *,
        compare: bool,
    ) -> None:
        self._builder, self._precision, self._feed, self._options = builder, precision, feed, options
        self._outputs = model.outputs
        self._compare = compare
        self._float = self._run(model.proto, options) if compare else []

    def failure(self, blocks: Sequence[Block]) -> str:
        """What fails with `blocks` in int8, or ""."""
        built = self._builder.build({block.name: self._precision for block in blocks})
        try:
            fused = self._run(built, self._options)
        except (BadModel, BadData) as error:
            return f"ONNX Runtime {version()} fails on it in int8: {_cause(error)}"
        if not self._compare:
            return ""
        plain = self._run(built, SessionOptions(self._options.threads, Optimization.NONE))
        for name, value, alone, reference in zip(self._outputs, fused, plain, self._float, strict=True):
            wrong, expected = _distance(reference, value), _distance(reference, alone)
            if not wrong <= _TIMES * expected + _SLACK:
                return (
                    f"ONNX Runtime {version()}'s int8 kernels are wrong here: output {name} is {wrong:.0%} off, "
                    f"but {expected:.1%} with the same scales in float"
                )
        return ""

    def _run(self, proto: onnx.ModelProto, options: SessionOptions) -> list[np.ndarray]:
        return run_session(open_session(proto, options), self._outputs, self._feed, "the first sample")


def _cause(error: Exception) -> str:
    """ONNX Runtime's message, without taglio's text in front of it."""
    return str(error).rpartition("cannot load it: ")[2].rpartition("cannot run these inputs: ")[2][:160]


def _distance(reference: object, value: object) -> float:
    """Relative L2 distance over the finite values of `reference`; infinite if shapes differ or `value` is not finite
    there. Outputs that are not float count as 0, since they follow from others; a sequence counts by its worst
    member."""
    if isinstance(reference, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(reference) != len(value):
            return float("inf")
        return max((_distance(one, other) for one, other in zip(reference, value, strict=True)), default=0.0)
    one, other = np.asarray(reference), np.asarray(value)
    if one.dtype.kind != "f":
        return 0.0
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one)
    if one.shape != other.shape or not np.isfinite(other[finite]).all():
        return float("inf")
    return float(np.linalg.norm(one[finite] - other[finite]) / max(float(np.linalg.norm(one[finite])), 1e-30))


def _by_range(model: Model, graph: Graph, ranges: Ranges, scheme: Scheme) -> dict[str, str]:
    """Rules 1 to 3."""
    builder = QdqBuilder(model, graph, {scheme.calibrated: ranges})
    whole = precisions(scheme)[1]
    reasons: dict[str, str] = {}
    for block in graph.candidates():
        try:
            builder.emit(builder.emitter(), block, whole)
            for name in block.outputs:
                builder.parameters(name, scheme)
        except CannotQuantize as error:
            reasons[block.name] = str(error)
    kinds = {block.name: block.kind for block in graph.blocks}
    for flow in flows(graph):
        if flow.producer in reasons or not any(kinds.get(reader) in _SOFTMAXES for _, reader in flow.readers):
            continue
        try:
            step = float(builder.parameters(flow.name, scheme).scale)
        except CannotQuantize:
            continue
        if step >= _SOFTMAX_STEP:
            reason = f"a Softmax reads {flow.name}, where an int8 step is {step:.3g}: too coarse for it"
            writers = [name for name in (flow.producer, *flow.moves) if name]
            reasons |= {name: reason for name in writers if graph.block(name).quantizable}
    return reasons | _coarse_joins(graph, builder, scheme, reasons)


def _coarse_joins(graph: Graph, builder: QdqBuilder, scheme: Scheme, known: Mapping[str, str]) -> dict[str, str]:
    """Rule 3."""
    reasons = {}
    for block in graph.candidates():
        if block.kind != "Concat" or block.name in known:
            continue
        joined = float(builder.parameters(block.outputs[0], scheme).scale)
        for name in block.inputs:
            alone = float(builder.parameters(name, scheme).scale)
            if 0.0 < alone * _COARSEST <= joined:
                reasons[block.name] = (
                    f"input {name} would have {256 * alone / joined:.2g} of 256 steps: output {block.outputs[0]} has "
                    f"{joined / alone:.0f} times its range"
                )
    return reasons


_SOFTMAXES = frozenset({"Softmax", "LogSoftmax"})


def _without_quantizer(model: Model, graph: Graph) -> dict[str, str]:
    """Rule 4."""
    step = helper.make_tensor("step", TensorProto.FLOAT, [], [1.0])
    zero = helper.make_tensor("zero", TensorProto.UINT8, [], [0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["stored"]),
        helper.make_node("DequantizeLinear", ["stored", "step", "zero"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    proto = helper.make_model(helper.make_graph(nodes, "pair", ends[:1], ends[1:], [step, zero]))
    proto.ir_version = model.proto.ir_version
    del proto.opset_import[:]
    proto.opset_import.extend(model.proto.opset_import)
    try:
        open_session(proto, SessionOptions(1))
    except BadModel:
        reason = f"ONNX Runtime {version()} has no QuantizeLinear of opset {model.opset}: export with an older opset"
        return {block.name: reason for block in graph.candidates()}
    return {}
