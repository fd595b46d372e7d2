"""Which operators keep the range of what they move, and which have an int8 kernel."""

from typing import Any

import pytest
from onnx import TensorProto, helper

from taglio.model.operators import moves, refusal

SHAPES = {"x": (1, 4, 8, 8), "y": (1, 4, 8, 8), "w": (4, 4, 3, 3)}
TYPES = dict.fromkeys(SHAPES, int(TensorProto.FLOAT))


@pytest.mark.parametrize(
    ("attributes", "keeps"),
    [
        ({}, True),
        ({"mode": "linear"}, True),
        ({"mode": "linear", "antialias": 1}, True),
        ({"mode": "cubic"}, False),
        ({"mode": "cubic", "antialias": 1}, False),
        ({"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}, False),
    ],
)
def test_a_resize_is_movement_where_it_stays_in_range(attributes: dict[str, Any], keeps: bool) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    assert moves(node) is keeps
    assert ("outside its input's range" in refusal(node, ["y"], {"scales"}, SHAPES, TYPES)) is not keeps


def test_another_domain_shares_no_more_than_the_name() -> None:
    assert moves(helper.make_node("Gather", ["x", "i"], ["y"]))
    assert not moves(helper.make_node("Gather", ["x", "i"], ["y"], domain="com.microsoft"))
    node = helper.make_node("Conv", ["x", "w"], ["y"], domain="somewhere")
    assert "no int8 Conv" in refusal(node, ["y"], {"w"}, SHAPES, TYPES)
    node = helper.make_node("Conv", ["x", "w"], ["y"], domain="com.microsoft.nchwc")
    assert "give the model as it was before" in refusal(node, ["y"], {"w"}, SHAPES, TYPES)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 2]), "ignores dilations"),
        (helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], ceil_mode=1, count_include_pad=1), "wrong"),
        (helper.make_node("Gather", ["w", "x"], ["y"]), "a constant"),
        (helper.make_node("ConvTranspose", ["x", "y"], ["y"]), "computed at run time"),
    ],
)
def test_what_a_kernel_cannot_do_is_said(node: Any, reason: str) -> None:
    assert reason in refusal(node, ["y"], {"w"}, SHAPES, TYPES)
