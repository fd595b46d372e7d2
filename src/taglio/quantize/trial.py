"""Find candidate blocks that cannot be int8, by their ranges and by running them. Plans nothing.

1. A block that reads or writes a tensor without a range (such as a mask of −3.4e38) stays float.
2. So does a block that writes the input of a Softmax or Exp, also through a Max, Min, Clip, Where or Sub, if one int8
   step would be too coarse for it: for instance scores beside a mask of −10000.
3. So does a Concat if its output's range would leave an input a sixteenth of the steps or fewer: for instance boxes of
   0 to 640 beside scores of 0 to 1.
4. All others are loaded and run together. If ONNX Runtime refuses the file, the blocks to blame are found by bisection
   and stay float. A kernel that computes wrongly is one whose error the study measures (error/study.py).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from taglio.errors import BadData, BadModel, CannotQuantize
from taglio.model.graph import Block, Graph
from taglio.quantize.precision import Precision, int8_of, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session, version

# exp(−1) is 0.37: scores this far apart give different answers, and a coarser step merges them.
_SOFTMAX_STEP = 1.0
_COARSEST = 16.0
# ONNX Runtime writes a float16 Softmax as ReduceMax, Sub, Exp, ReduceSum and Div.
_SOFTMAXES = frozenset({"Softmax", "LogSoftmax", "Exp"})
_SELECTS = frozenset({"Max", "Min", "Clip", "Where", "Sub"})


def unusable(
    graph: Graph,
    builder: QdqBuilder,
    scheme: Scheme,
    feed: Mapping[str, np.ndarray],
    options: SessionOptions,
) -> dict[str, str]:
    """The candidate blocks of `graph` that cannot be int8 under `scheme` as `builder` writes them, each with the
    reason. `feed` is one sample, which the float model runs."""
    reasons, int8 = _by_range(graph, builder.fusing(fuses=False), scheme), int8_of(precisions(scheme))
    blocks = [block for block in graph.candidates() if block.name not in reasons]
    return reasons | (culprits(blocks, _trial(builder, int8, feed, options)) if blocks else {})


def culprits(blocks: Sequence[Block], failure: Callable[[Sequence[Block]], str]) -> dict[str, str]:
    """The blocks to remove so that the rest passes, each with the reason that `failure` gave; log2(n) trials per block.

    `failure` returns the reason why some blocks fail together, or "".
    """
    rest, passed = list(blocks), 0
    reasons: dict[str, str] = {}
    while reason := failure(rest):
        high = len(rest)
        while high - passed > 1:  # the first `passed` go together, the first `high` do not
            middle = (passed + high) // 2
            if half_reason := failure(rest[:middle]):
                high, reason = middle, half_reason
            else:
                passed = middle
        reasons[rest.pop(high - 1).name] = reason
        if not rest:
            break
    return reasons


def _trial(
    builder: QdqBuilder, precision: Precision, feed: Mapping[str, np.ndarray], options: SessionOptions
) -> Callable[[Sequence[Block]], str]:
    """A function that tries blocks together in one precision. It returns why ONNX Runtime does not load or run them, or
    ""."""

    def failure(blocks: Sequence[Block]) -> str:
        built = builder.build({block.name: precision for block in blocks})
        try:
            run_session(open_session(built, options), builder.model.outputs, feed, "the first sample")
        except (BadModel, BadData) as error:
            return f"ONNX Runtime {version()} fails on it in int8: {_cause(error)}"
        return ""

    return failure


def _cause(error: Exception) -> str:
    """ONNX Runtime's message, without taglio's text in front of it."""
    return str(error).rpartition("cannot load it: ")[2].rpartition("cannot run these inputs: ")[2][:160]


def _by_range(graph: Graph, builder: QdqBuilder, scheme: Scheme) -> dict[str, str]:
    """Rules 1 to 3."""
    int8 = int8_of(precisions(scheme))
    reasons: dict[str, str] = {}
    for block in graph.candidates():
        try:
            builder.emit(builder.emitter(), block, int8)
            for name in block.outputs:
                builder.parameters(name, scheme)
        except CannotQuantize as error:
            reasons[block.name] = str(error)
    soft = _up_to_softmax(graph)
    for flow in graph.flows:
        if flow.producer in reasons or not any(reader in soft for _, reader in flow.readers):
            continue
        try:
            step = float(builder.parameters(flow.name, scheme).scale)
        except CannotQuantize:
            continue
        if step >= _SOFTMAX_STEP:
            reason = f"a Softmax or Exp reads {flow.name}, where an int8 step is {step:.3g}: too coarse for it"
            writers = [name for name in (flow.producer, *flow.moves) if name]
            reasons |= {name: reason for name in writers if graph.block(name).quantizable}
    return reasons | _coarse_joins(graph, builder, scheme, reasons)


def _up_to_softmax(graph: Graph) -> set[str]:
    """The Softmax and Exp blocks, and those that select among values, or shift values, which one of them reads."""
    tensors = graph.tensor_map()
    names: set[str] = set()
    for block in reversed(graph.blocks):
        users = {user for name in block.outputs for user in tensors[name].consumers}
        if block.kind in _SOFTMAXES or (block.kind in _SELECTS and users & names):
            names.add(block.name)
    return names


def _coarse_joins(graph: Graph, builder: QdqBuilder, scheme: Scheme, refused: Mapping[str, str]) -> dict[str, str]:
    """Rule 3, for blocks that are not `refused` yet."""
    reasons = {}
    for block in graph.candidates():
        if block.kind != "Concat" or block.name in refused:
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
