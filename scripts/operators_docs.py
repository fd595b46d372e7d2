"""Write docs/operators.md: the forms of each kind of block, asked of the code that decides. Decides nothing itself.

Each row is a network of one block, from which `taglio.model.graph` makes a block; `Precision.fits` says its forms.
With `--check`, write nothing and fail where the page is not current.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser, shape_inference

from taglio.model.graph import ACTIVATIONS, Block, build
from taglio.model.inputs import input_specs
from taglio.model.load import Model
from taglio.model.operators import INT8_COMPUTE, MOVEMENT
from taglio.model.opset import MINIMUM_OPSET, TARGET_OPSET
from taglio.quantize.precision import BFLOAT16, FLOAT32, UNCALIBRATED, Precision, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.generated_page import DOCS, main

PAGE = DOCS / "operators.md"
FORMS: tuple[Precision, ...] = (
    FLOAT32,
    BFLOAT16,
    *precisions(DEFAULT_SCHEME)[1:],
    UNCALIBRATED["int8-dynamic"],
    UNCALIBRATED["int8-weights"],
    UNCALIBRATED["int4-weights"],
)
HEAD = f"""# Supported operators and forms

<!-- Written by `make reference` from src/taglio/model/operators.py and quantize/precision.py. -->

Taglio takes every model that ONNX Runtime runs on the CPU. This page shows which forms a block may have. A block
without another form computes in float32. Each int8 form is also tried before it is planned: a block that ONNX Runtime
cannot load in int8 stays in float. `taglio inspect MODEL --blocks all` gives the reason for each
block of a model.

A block is an operator with the operators that a runtime fuses with it:

* a convolution or matrix product with the bias of a MatMul and an activation
  ({", ".join(sorted(ACTIVATIONS))},
  x · Sigmoid(x) or x · HardSigmoid(x)),
* an Add with a Relu behind it.

## Forms of blocks

"""
LEGEND = """
`int8` and `int8-anchor` need calibration data. In `int8-anchor` the product is int8 and the activation behind it float.
`bfloat16` needs OpenVINO on a processor with bfloat16. Blocks that only move values keep the type of what they read.

## Why a block has no int8 form

| block | reason |
| --- | --- |
"""
QUANTISED = f"""
A model that holds quantised operators keeps them as they are. `--requantize` folds quantise/dequantise pairs to float
first, but not those in subgraphs. A model of an opset below {MINIMUM_OPSET} is converted to opset {TARGET_OPSET}. If
the conversion fails or changes its answers, no block of it has an int8 form.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A network of one block: its name on the page, its operators in ONNX's text format (they read `x` and write `y`),
    the shapes of its constants, and the types and shapes of `x` and `y`."""

    label: str
    body: str
    constants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input: str = "float[1,8,16,16]"
    output: str = "float[1,8,16,16]"


_KERNEL = {"w": (8, 8, 3, 3)}
_MATRIX = {"w": (64, 64)}
_ROWS = "float[4,64]"
_LSTM = {"w": (1, 128, 32), "r": (1, 128, 32)}
COMPUTE = (
    Case("Conv (1-D, 2-D)", "y = Conv(x, w)", _KERNEL),
    Case("ConvTranspose", "y = ConvTranspose(x, w)", _KERNEL),
    Case("MatMul by a matrix of weights", "y = MatMul(x, w)", _MATRIX, _ROWS),
    Case("Gemm", "y = Gemm(x, w)", _MATRIX, _ROWS),
    Case("MatMul by a smaller matrix (below 32 × 32)", "y = MatMul(x, w)", {"w": (64, 8)}, _ROWS),
    Case("MatMul of two activations", "t = Transpose(x) y = MatMul(x, t)", {}, "float[64,64]"),
    Case("Add", "y = Add(x, x)"),
    Case("Add + Relu", "t = Add(x, x) y = Relu(t)"),
    Case("Mul", "y = Mul(x, x)"),
    Case("Concat", "y = Concat<axis = 1>(x, x)"),
    Case("AveragePool", "y = AveragePool<kernel_shape = [2, 2]>(x)"),
    Case("GlobalAveragePool", "y = GlobalAveragePool(x)"),
    Case("Sigmoid", "y = Sigmoid(x)"),
    Case("LeakyRelu", "y = LeakyRelu(x)"),
    Case("Conv + Relu or Clip", "t = Conv(x, w) y = Relu(t)", _KERNEL),
    Case("Conv + another activation", "t = Conv(x, w) y = HardSwish(t)", _KERNEL),
    Case("MatMul or Gemm + another activation", "t = MatMul(x, w) y = Sigmoid(t)", _MATRIX, _ROWS),
    Case("LSTM without peepholes", "y = LSTM<hidden_size = 32>(x, w, r)", _LSTM, "float[5,1,32]"),
    Case(
        "MatMulNBits with 8 bits",
        "y = com.microsoft.MatMulNBits<K = 64, N = 64, bits = 8, block_size = 32>(x, w)",
        _MATRIX,
        _ROWS,
    ),
    Case(
        "MatMulNBits with 4 bits",
        "y = com.microsoft.MatMulNBits<K = 64, N = 64, bits = 4, block_size = 32>(x, w)",
        _MATRIX,
        _ROWS,
    ),
)
# How each operator that only moves values is written.
MOVES = {
    "MaxPool": "y = MaxPool<kernel_shape = [2, 2]>(x)",
    "Reshape": "y = Reshape(x, s)",
    "Squeeze": "y = Squeeze(x)",
    "Unsqueeze": "y = Unsqueeze(x, s)",
    "Split": "y, z = Split<axis = 1>(x)",
    "Slice": "y = Slice(x, s, s)",
    "Resize": "y = Resize(x, , s)",
    "Gather": "y = Gather(x, s)",
    "Expand": "y = Expand(x, s)",
    "Tile": "y = Tile(x, s)",
    "DepthToSpace": "y = DepthToSpace<blocksize = 2>(x)",
    "SpaceToDepth": "y = SpaceToDepth<blocksize = 2>(x)",
}
FLOAT_ONLY = (
    Case("every other operator, such as Softmax, LayerNormalization, Div or Relu alone", "y = Softmax(x)"),
    Case("If, Loop, Scan", "y = Loop(n, , x) <body = b (int64 i, bool c, float[1] v) => (c, v) {}>", {"n": ()}),
)
REFUSED = (
    Case("Softmax", "y = Softmax(x)"),
    Case("LayerNormalization, and every operator not named above", "y = LayerNormalization(x, w)", {"w": (16,)}),
    Case("Resize, cubic", 'y = Resize<mode = "cubic">(x, , s)', {"s": (4,)}),
    Case("Conv in 3-D", "y = Conv(x, w)", {"w": (8, 8, 3, 3, 3)}, "float[1,8,8,8,8]"),
    Case("Conv whose weights are no constant", "t = Relu(x) y = Conv(x, t)"),
    Case("Gemm with alpha or beta", "y = Gemm<alpha = 0.5>(x, w)", _MATRIX, _ROWS),
    Case("MatMul of a constant by an activation", "y = MatMul(w, x)", _MATRIX, "float[64,64]"),
    Case(
        "AveragePool with ceil_mode and count_include_pad",
        "y = AveragePool<kernel_shape = [2, 2], ceil_mode = 1, count_include_pad = 1>(x)",
    ),
    Case("AveragePool with dilations", "y = AveragePool<kernel_shape = [2, 2], dilations = [2, 2]>(x)"),
    Case("Add of float64", "y = Add(x, x)", {}, "double[1,8]"),
    Case("Add of single numbers", "y = Add(x, x)", {}, "float", "float"),
    Case("LSTM without peepholes", "y = LSTM<hidden_size = 32>(x, w, r)", _LSTM, "float[5,1,32]"),
)


def render() -> str:
    """The whole page. Raises ValueError if an operator of the code has no row."""
    moves = tuple(Case(name, MOVES.get(name, f"y = {name}(x)"), {"s": (1,)}) for name in sorted(MOVEMENT))
    cases = (*COMPUTE, *moves, *FLOAT_ONLY)
    shown = {word for case in cases for word in case.label.replace(",", " ").split()}
    if missing := (INT8_COMPUTE | MOVEMENT) - shown:
        raise ValueError(f"{Path(__file__).name}: no row for {', '.join(sorted(missing))}")
    rows = [(case.label, _forms(_block(case))) for case in cases]
    lines = [HEAD, _cells(("blocks", *(form.name for form in FORMS))), _cells(["---"] + [":-:"] * len(FORMS))]
    for forms, same in groupby(rows, key=lambda row: row[1]):
        lines.append(_cells((", ".join(label for label, _ in same), *("✓" if fits else "" for fits in forms))))
    lines += [LEGEND, *(_cells((case.label, _block(case).refusal)) for case in REFUSED), QUANTISED]
    return "".join(lines)


def _forms(block: Block) -> tuple[bool, ...]:
    return tuple(form.fits(block) for form in FORMS)


def _block(case: Case) -> Block:
    """The block that writes `y`."""
    graph = parser.parse_graph(f"case ({case.input} x) => ({case.output} y) {{ {case.body} }}")
    for index, node in enumerate(graph.node):
        node.name = f"{node.op_type}{index}"
    values = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in case.constants.items()]
    graph.initializer.extend(values)
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    proto = shape_inference.infer_shapes(onnx.helper.make_model(graph, opset_imports=domains))
    model = Model("case", "0" * 64, 17, input_specs(Path("case"), proto), ("y",), proto)
    return next(block for block in build(model).blocks if "y" in block.outputs)


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main(PAGE, render, __doc__))
