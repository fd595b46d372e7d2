"""Whether rows of a batch keep apart."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper

from taglio.model.inputs import spec_of
from taglio.model.rows import why_rows_mix
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import parsed

SIZES = {"S": 3, "H": 4, "W": 5}


def why(proto: onnx.ModelProto) -> str:
    session = open_session(proto, SessionOptions(1))
    names = [value.name for value in proto.graph.output]

    def run(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, dict(feed)), strict=True))

    return why_rows_mix(
        [proto], [spec_of(value) for value in proto.graph.input], [row(proto, n) for n in range(4)], run
    )


def row(proto: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        shape = [
            dim.dim_value if dim.HasField("dim_value") else SIZES.get(dim.dim_param, 1) for dim in tensor.shape.dim
        ]
        arrays[value.name] = (3 * rng.standard_normal(shape)).round().astype(
            helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        ) % 7
    return arrays


W4 = "float[4,4] w = {1,2,0,1, 0,1,3,1, 2,2,1,0, 1,0,0,1}"
KEEP = {
    "row by row": f"""(float[N,4] x) => (float[N,4] y, int64[N] i) <{W4}> {{
        y = MatMul(x, w) i = ArgMax<axis=1,keepdims=0>(y)
    }}""",
    "merged, and whole again": f"""(float[N,S,4] x) => (float[N,M,4] y) <
        {W4}, int64[2] flat = {{-1, 4}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] four = {{4}},
        int64[1] two = {{2}}
    > {{
        f = Reshape(x, flat) g = Gemm(f, w) s = Shape(x) h = Slice(s, zero, two) t = Concat<axis=0>(h, four)
        y = Reshape(g, t)
    }}""",
    "recurrent, states of each row's own": """(float[N,S,2] x) => (float[N,M] y) <
        float[1,4,2] w = {1,1,1,1,1,1,1,1}, float[1,4,1] r = {1,1,1,1}, int64 i0 = {0}, int64[1] a0 = {0},
        int64[1] one = {1}
    > {
        t = Transpose<perm=[1,0,2]>(x) s = Shape(x) n = Gather(s, i0) n1 = Unsqueeze(n, a0)
        d = Concat<axis=0>(one, n1, one) h = ConstantOfShape(d) o, l = LSTM<hidden_size=1>(t, w, r, , , h, h)
        y = Squeeze(l, a0)
    }""",
    "two inputs": "(float[N,4] a, float[N,4] b) => (float[N,8] y) { y = Concat<axis=1>(a, b) }",
}


@pytest.mark.parametrize("name", KEEP)
def test_rows_that_keep_apart(name: str) -> None:
    assert why(parsed(KEEP[name])) == ""


# The reason, and graphs.
MIX = {
    "does not have one entry per row": {
        "five values for each row": """(float[N,8] x) => (float[M] y) <int64[1] k = {5}, int64[1] flat = {-1}> {
            v, i = TopK(x, k) y = Reshape(v, flat)
        }""",
    },
    "with the values of the other rows": {
        "coupled for some values": """(float[N,4] x) => (float[N,4] y) <float t = {1000}> {
            m = ReduceMax<keepdims=0>(x) c = Max(m, t) y = Div(x, c)
        }""",
    },
    "it does not run on every batch": {
        "cut at a width that does not divide": """(float[N,W] x) => (float[M,2] y) <int64[2] pairs = {-1, 2}> {
            y = Reshape(x, pairs)
        }""",
    },
    "in a batch of 2 samples": {
        "merged as the inner factor": """(float[N,3] x) => (float[N,3] y) <
            int64[1] flat = {-1}, int64[2] back = {-1, 3}
        > {
            t = Transpose(x) f = Reshape(t, flat) y = Reshape(f, back)
        }""",
        "running sum": "(float[N,4] x) => (float[N,4] y) <int64 a = {0}> { y = CumSum(x, a) }",
        "attention to all rows": """(float[N,4] x) => (float[N,4] y) {
            t = Transpose(x) p = MatMul(x, t) s = Softmax<axis=1>(p) y = MatMul(s, x)
        }""",
    },
    "DynamicQuantizeLinear q scales all rows together": {
        "one scale for all rows": """(float[N,4] x) => (float[N,4] y) {
            q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)
        }""",
    },
    "output y differs in shape": {
        "all with all": "(float[N,4] x) => (float[N,N] y) { t = Transpose(x) y = MatMul(x, t) }",
    },
    "input b has a fixed first dimension of 1": {
        "one of the two inputs": "(float[N,4] a, float[1,4] b) => (float[N,4] y) { y = Add(a, b) }",
    },
    "is random": {
        "noise": "(float[N,4] x) => (float[N,4] y) { r = RandomNormalLike(x) y = Add(x, r) }",
    },
}


@pytest.mark.parametrize(("reason", "name"), [(reason, name) for reason, graphs in MIX.items() for name in graphs])
def test_rows_that_mix(reason: str, name: str) -> None:
    assert reason in why(parsed(MIX[reason][name]))


def test_a_subgraph_and_a_scale_within_a_function_couple_rows_perhaps() -> None:
    head, body = "(float[N,4] x) => (float[N,4] y)", "() => (float[] n) { n = Neg (x) }"
    choice = f"<then_branch = one {body}, else_branch = other {body}>"
    proto = parsed(f"{head} <bool b = {{1}}> {{ [if] z = If {choice} (b) y = Relu (x) }}")
    assert "If if runs a subgraph" in why(proto)
    function = '<domain: "own", opset_import: ["": 17]> F (v) => (q) { [scale] q, s, z = DynamicQuantizeLinear (v) }'
    proto = parsed(head + "{ y = Relu (x) }" + function, imports='"": 17, "own": 1')
    assert "DynamicQuantizeLinear scale scales all rows together" in why(proto)
