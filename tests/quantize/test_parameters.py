"""Scales, zero points and stored weights against ONNX Runtime's own functions, and at the edges."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnxruntime.quantization.quant_utils import (
    compute_scale_zp,
    get_qmin_qmax_for_qType,
    quantize_data,
    quantize_nparray,
)

from taglio.quantize.parameters import activation_parameters, quantize_values, quantize_weight
from taglio.quantize.scheme import Scheme

VALUES = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
RANGES = st.tuples(VALUES, VALUES).map(sorted)
# Channels of unlike magnitude, some dead, some constant.
CHANNEL = st.one_of(
    st.lists(VALUES, min_size=6, max_size=6),
    st.lists(st.floats(-(2.0**-10), 2.0**-10, width=32, allow_subnormal=False), min_size=6, max_size=6),
    st.just([0.0] * 6),
    VALUES.map(lambda value: [value] * 6),
)
WEIGHTS = st.lists(CHANNEL, min_size=1, max_size=4).map(lambda rows: np.array(rows, np.float32).reshape(-1, 2, 3, 1))


@pytest.mark.parametrize("signed", [False, True])
@given(low_high=RANGES)
def test_an_activation_has_onnx_runtimes_scale_and_zero_point(signed: bool, low_high: tuple[float, float]) -> None:
    low, high = low_high
    ours = activation_parameters(low, high, Scheme(signed))
    limits = get_qmin_qmax_for_qType(TensorProto.INT8 if signed else TensorProto.UINT8, symmetric=signed)
    zero_point, scale = compute_scale_zp(np.float32(low), np.float32(high), *limits, signed)
    assert ours.scale == np.float32(scale)
    assert ours.zero_point == zero_point
    assert ours.zero_point.dtype == (np.int8 if signed else np.uint8)


@settings(deadline=None)
@given(low_high=RANGES, values=st.lists(VALUES, min_size=1, max_size=8))
def test_constants_are_stored_as_onnx_runtime_stores_them(low_high: tuple[float, float], values: Any) -> None:
    parameters = activation_parameters(*low_high, Scheme())
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        theirs = quantize_nparray(TensorProto.UINT8, array, parameters.scale, np.array(parameters.zero_point))
    np.testing.assert_array_equal(quantize_values(array, parameters), theirs)


@pytest.mark.parametrize("reduced", [False, True])
@given(values=WEIGHTS)
def test_weights_are_onnx_runtimes_per_channel_and_per_tensor(reduced: bool, values: Any) -> None:
    scheme = Scheme(reduced_range=reduced)
    ours, whole = (quantize_weight(values, scheme, axis) for axis in (0, None))
    pairs = [(values, whole.values, whole.scale), *zip(values, ours.values, ours.scale, strict=True)]
    for some, stored, scale in pairs:
        zero, their_scale, theirs = quantize_data(some.ravel(), TensorProto.INT8, True, reduce_range=reduced)
        assert scale == np.float32(their_scale) and zero == 0
        np.testing.assert_array_equal(stored.ravel(), theirs)
    assert not ours.zero_point.any() and not whole.zero_point.any()


def test_a_huge_bias_widens_only_the_scales_that_need_it() -> None:
    # An int32 bias has scale_in × scale_weight as its scale: minimum_scale is what keeps bias / that within int32.
    values = np.array([[1e-6, -1e-6], [0.5, -0.25]], np.float32)
    minimum = np.array([1e-4, 1e-6])
    weight = quantize_weight(values, Scheme(), axis=0, minimum_scale=minimum)
    assert weight.scale[0] == np.float32(1e-4)
    assert (weight.values[0] == 0).all()
    assert weight.scale[1] == np.float32(0.5 / 127)
    assert quantize_weight(values, Scheme(), None, minimum_scale=1.0).scale == 1.0
