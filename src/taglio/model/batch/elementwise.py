"""Rules of operators that compute with values, and along dimensions other than the batch."""

from collections.abc import Iterable, Sequence

from taglio.model.batch.values import ALONG, ONE, Dims, Rule, Shape, Size, Step, product
from taglio.model.operators import integer, integers


def broadcast(step: Step, shapes: Sequence[Shape]) -> Dims:
    """The dimensions of an elementwise result. Rows meet rows, or what is the same for all of them."""
    rank = max(map(len, shapes))
    padded = [(ONE,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    dims: Dims = []
    for column in zip(*padded, strict=True):
        sizes = {size for size in column if size != ONE}
        if any(size.batched for size in sizes) and len(sizes) > 1:
            step.fail("combines tensors whose batch dimensions differ")
        dims.append(sizes.pop() if len(sizes) == 1 else None if sizes else ONE)
    return dims


def elementwise(step: Step) -> list[Dims]:
    """Arithmetic, activations and comparisons, with broadcasting."""
    shapes = [step.shape(index) for index, value in enumerate(step.values) if value is not None]
    return [broadcast(step, shapes)] * len(step.node.output)


def elementwise_of(*indices: int) -> Rule:
    """Elementwise on some inputs; the others, such as scales, are the same for all rows."""

    def rule(step: Step) -> list[Dims]:
        step.same_for_all(*indices)
        return [broadcast(step, [step.shape(index) for index in indices])] * len(step.node.output)

    return rule


def scaled(step: Step) -> list[Dims]:
    """QuantizeLinear and DequantizeLinear: one scale, or one for each index of another dimension than the batch."""
    step.same_for_all(0)
    shape, scale = step.shape(), step.shape(1)
    if product(scale) != ONE and (len(scale) > 1 or step.positive(integer(step.node, "axis", 1)) == step.axis()):
        step.fail(ALONG)
    return [[*shape]]


def image(step: Step) -> list[Dims]:
    """Convolution, pooling and normalisation of [batch, channels, …]: the weights are the same for all rows."""
    step.same_for_all(0)
    if step.axis() != 0:
        step.fail(ALONG)
    if step.node.op_type == "MaxPool" and len(step.node.output) > 1:
        step.fail("counts its indices through all rows")
    return [[step.shape()[0], *[None] * (len(step.shape()) - 1)]] * len(step.node.output)


def image_kept(step: Step) -> list[Dims]:
    """Normalisation of [batch, channels, …] within each row."""
    image(step)
    return [[*step.shape()]]


def fused_conv(step: Step) -> list[Dims]:
    """A convolution, to which its fourth input, of the same shape, is added."""
    step.same_for_all(0, 3)
    if step.axis() != 0 or (step.value(3) and step.shape(3)[0] != step.shape()[0]):
        step.fail(ALONG)
    return [[step.shape()[0], *[None] * (len(step.shape()) - 1)]]


def batch_norm(step: Step) -> list[Dims]:
    """BatchNormalization with means and variances from the file."""
    trains = integer(step.node, "training_mode") or len([name for name in step.node.output if name]) > 1
    if trains or (step.opset < 7 and not integer(step.node, "is_test")):
        step.fail("is in training mode, which normalises over the batch")
    return image_kept(step)


def dropout(step: Step) -> list[Dims]:
    """Dropout passes values on unless it trains."""
    if step.value(2) is not None and step.numbers("", 2) != (0,):
        step.fail("is in training mode, which drops values at random")
    return [[*step.shape()]] * len(step.node.output)


def reduce(step: Step) -> list[Dims]:
    """Reductions with `axes` as attribute or input; none means all, unless that is turned off."""
    shape, axes = step.shape(), step.numbers("axes", 1)
    if axes == () and integer(step.node, "noop_with_empty_axes"):
        return [[*shape]]
    return [_reduced(step, axes or range(len(shape)))]


def arg_reduce(step: Step) -> list[Dims]:
    """ArgMax and ArgMin along another dimension than the batch."""
    return [_reduced(step, (integer(step.node, "axis"),))]


def _reduced(step: Step, axes: Iterable[int]) -> Dims:
    reduced = {step.positive(axis) for axis in axes}
    if step.axis() in reduced:
        step.fail("reduces over the batch dimension")
    keeps = integer(step.node, "keepdims", 1)
    return [ONE if axis in reduced else size for axis, size in enumerate(step.shape()) if keeps or axis not in reduced]


def along(default: int) -> Rule:
    """Operators that compute along one dimension and keep the shape: Softmax, CumSum, …"""

    def rule(step: Step) -> list[Dims]:
        step.same_for_all(0)
        step.away(integer(step.node, "axis", default))
        return [[*step.shape()]]

    return rule


def softmax(step: Step) -> Sequence[Dims]:
    """Before opset 13 it normalises over all dimensions from `axis` on."""
    if step.opset >= 13:
        return along(-1)(step)
    return normalized(1)(step)


def normalized(default: int) -> Rule:
    """Normalisation over all dimensions from `axis` on; weights and biases are the same for all rows."""

    def rule(step: Step) -> list[Dims]:
        step.same_for_all(0)
        if (step.axis() or 0) >= step.positive(integer(step.node, "axis", default)):
            step.fail("normalises over the batch dimension")
        shape = step.shape()
        return [[*shape], *[[size if size.batched else None for size in shape]] * (len(step.node.output) - 1)]

    return rule


def mean_variance(step: Step) -> list[Dims]:
    """MeanVarianceNormalization, by default over the first dimension, too."""
    if step.axis() in {step.positive(axis) for axis in integers(step.node, "axes") or (0, 2, 3)}:
        step.fail("normalises over the batch dimension")
    return [[*step.shape()]]


def cum_sum(step: Step) -> list[Dims]:
    """CumSum along another dimension than the batch."""
    axes = step.numbers("", 1)
    if not axes or step.positive(axes[0]) == step.axis():
        step.fail(ALONG)
    return [[*step.shape()]]


def top_k(step: Step) -> list[Dims]:
    """TopK along another dimension than the batch."""
    axis = step.away(integer(step.node, "axis", -1))
    counts = step.numbers("", 1)
    return [step.with_size(axis, Size(counts[0]) if counts else None)] * 2
