"""Find channels of different scale in one tensor, from its values. Pure."""

from collections.abc import Collection, Mapping, Sequence
from math import ceil

import numpy as np
import onnx

# Factor between channels of different scale; a channel smaller than this share of the largest is rounding.
_APART, _NOTHING = 30.0, 1e-6
# Least mean absolute value over root mean square of a channel that is active for every input; 0.8 if values are normal.
_STEADY = 0.2
_MOST = 4
# The smallest channels are a group if they are this share of all, or have so many values. Fewer are chance, such as the
# coordinates of one of thousands of boxes, and cannot hide others.
_SHARE, _VALUES = 0.01, 256

# Outputs of these have one scale, however rare some of their classes are.
_BOUNDED = {"Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax", "Tanh", "Softsign", "LpNormalization", "Hardmax"}
_CHANNELS_SECOND = {"Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
                    "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize"}  # fmt: skip
_CHANNELS_LAST = {"MatMul", "Gemm", "LayerNormalization", "SkipLayerNormalization", "FusedMatMul"}
# Values processed at once.
_AT_ONCE = 2**20


def groups_by_scale(values: Sequence[np.ndarray]) -> np.ndarray:
    """The group of each channel, 0 for the largest values; `values` has an array [channels, values] per input.

    Channels, sorted by root mean square, are split at the widest gap while the ends of a group differ by more than the
    factor `_APART`, but no split leaves too few smaller ones. Channels that are zero but for a few values are rare, not
    small: they go to group 0. Probabilities that add up to 1 have one scale, however rare some of them are. One value
    is no scale: where every channel has one, and all inputs have the same, a group has at least two channels.
    """
    single = all(channels.shape[1] == 1 and np.array_equal(channels, values[0]) for channels in values)
    count = sum(channels.shape[1] for channels in values)
    groups = np.zeros(len(values[0]), np.int64)
    if count == 0 or all(map(_probabilities, values)):
        return groups
    squares, sizes = np.zeros(len(groups)), np.zeros(len(groups))
    for channels in values:
        rows = max(1, _AT_ONCE // max(1, channels.shape[1]))
        for start in range(0, len(channels), rows):
            magnitudes = np.abs(channels[start : start + rows].astype(np.float64))
            magnitudes[~(magnitudes < 1e15)] = 0.0
            sizes[start : start + rows] += magnitudes.sum(axis=1)
            squares[start : start + rows] += (magnitudes**2).sum(axis=1)
    rms = np.sqrt(squares / count)
    steady = sizes / count > _STEADY * rms
    usable = np.flatnonzero(steady & (rms > _NOTHING * rms.max()))
    least = max(2 if single else 1, min(ceil(_SHARE * len(groups)), ceil(_VALUES / count)))
    runs = [usable[np.argsort(-rms[usable], kind="stable")]]
    while len(runs) < _MOST:
        ratios = [rms[run[0]] / rms[run[-least]] if len(run) >= least else 1.0 for run in runs]
        widest = int(np.argmax(ratios))
        if ratios[widest] <= _APART:
            break
        run = runs[widest]
        cut = 1 + int(np.argmax(rms[run[:-least]] / rms[run[1 : len(run) - least + 1]]))
        runs[widest : widest + 1] = [run[:cut], run[cut:]]
    for index, run in enumerate(runs):
        groups[run] = index
    return groups


def _probabilities(values: np.ndarray) -> bool:
    """Whether the channels add up to 1 everywhere: a softmax, which many exporters write as Exp, ReduceSum and Div."""
    return bool((values >= 0.0).all() and (np.abs(values.sum(axis=0, dtype=np.float64) - 1.0) < 1e-3).all())


def channel_axes(
    tensor: str,
    rank: int,
    producers: Mapping[str, onnx.NodeProto],
    constants: Mapping[str, onnx.TensorProto],
    movement: Collection[str],
) -> tuple[int, ...]:
    """The axes along which `tensor` may have channels, judged by the operator that computes it: none if that gives one
    scale by nature, several if it is not clear."""
    node = producers.get(tensor)
    if rank == 0 or (node is not None and node.op_type in _BOUNDED):
        return ()
    while node is not None and node.op_type not in movement:
        if node.op_type in _CHANNELS_SECOND:
            return (min(1, rank - 1),)
        if node.op_type in _CHANNELS_LAST:
            return (rank - 1,)
        for name in node.input:
            sizes = tuple(constants[name].dims) if name in constants else ()
            long = [axis - len(sizes) for axis, size in enumerate(sizes) if size > 1]
            if len(long) == 1 and -long[0] <= rank:  # a factor or addend per channel
                return (rank + long[0],)
        node = next((producers[name] for name in node.input if name in producers), None)
    return tuple(dict.fromkeys((min(1, rank - 1), rank - 1, 0)))
