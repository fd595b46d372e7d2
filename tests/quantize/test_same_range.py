"""A Concat and what it joins share a range where none becomes coarser than by one bit."""

import onnx
from onnx import TensorProto, helper

from taglio.quantize.same_range import share_ranges


def joined(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    names = dict.fromkeys(name for node in nodes for name in (*node.input, *node.output))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in names]
    return helper.make_model(helper.make_graph(list(nodes), "joined", values, []))


def concat(*inputs: str, to: str) -> onnx.NodeProto:
    return helper.make_node("Concat", list(inputs), [to], axis=0)


def test_what_a_concat_joins_shares_the_wider_range() -> None:
    shared = share_ranges(joined(concat("a", "b", to="c")), {"a": (-1.0, 3.0), "b": (-2.0, 2.0), "c": (-2.0, 3.0)})
    assert shared == dict.fromkeys("abc", (-2.0, 3.0))


def test_a_tensor_that_would_lose_more_than_a_bit_keeps_its_range() -> None:
    ranges = {"a": (0.0, 8.0), "b": (0.0, 3.9), "c": (0.0, 8.0)}
    assert share_ranges(joined(concat("a", "b", to="c")), ranges) == ranges | {"a": (0.0, 8.0)}
    assert share_ranges(joined(concat("a", "b", to="c")), ranges | {"b": (0.0, 4.0)})["b"] == (0.0, 8.0)


def test_moved_values_share_with_the_tensor_that_first_held_them() -> None:
    graph = joined(helper.make_node("Reshape", ["a", "shape"], ["a2"]), concat("a2", "b", to="c"))
    shared = share_ranges(graph, {"a": (0.0, 2.0), "b": (0.0, 3.0), "c": (0.0, 3.0)})
    assert shared["a"] == (0.0, 3.0)


def test_a_chain_of_concats_never_doubles_twice() -> None:
    graph = joined(concat("a", "b", to="c"), concat("c", "d", to="e"))
    ranges = {"a": (0.0, 1.0), "b": (0.0, 2.0), "c": (0.0, 2.0), "d": (0.0, 4.0), "e": (0.0, 4.0)}
    shared = share_ranges(graph, ranges)
    assert [shared[name][1] for name in "abcde"] == [2.0, 2.0, 2.0, 4.0, 4.0]
