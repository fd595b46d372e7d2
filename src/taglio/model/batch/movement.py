"""Rules of operators that move, select, repeat or join values: rows stay whole, and in their order."""

from collections.abc import Iterable

from taglio.model.batch.elementwise import broadcast
from taglio.model.batch.values import ALONG, ONE, Dims, Size, Step, product
from taglio.model.operators import integer, integers

# An end of a Slice from here on means "to the end": tf2onnx writes this, others the largest int32 or int64.
_TO_THE_END = 10**9


def transpose(step: Step) -> list[Dims]:
    """The batch moves with the other dimensions."""
    shape = step.shape()
    return [[shape[axis] for axis in integers(step.node, "perm") or range(len(shape))[::-1]]]


def reshape(step: Step) -> list[Dims]:
    """The batch may be merged with dimensions behind it, and parted again."""
    shape, target = step.shape(), step.elements(1)
    if target is None:
        target = tuple(map(Size, integers(step.node, "shape"))) or step.fail("has a computed shape")
    copies = not integer(step.node, "allowzero")
    dims: Dims = [
        shape[axis] if size == Size(0) and copies and axis < len(shape) else size for axis, size in enumerate(target)
    ]
    if Size(-1) in dims:
        free = dims.index(Size(-1))
        rest = product(size for size in dims if size is not None and size != Size(-1))
        dims[free] = product(shape).over(rest)
        if dims[free] is None and not rest.batched:
            step.fail("does not keep rows together")
    return [_kept(step, dims)]


def _kept(step: Step, dims: Dims) -> Dims:
    """`dims` of the same elements in the same order as in the first input, if rows stay whole: as much lies before the
    batch as before. Raises RowsMix otherwise."""
    shape = step.shape()
    at = [axis for axis, size in enumerate(dims) if size is not None and size.batched]
    axis = step.axis()
    if axis is None or len(at) != 1 or None in dims[: at[0]]:
        step.fail("does not keep rows together")
    if product(size for size in dims[: at[0]] if size is not None) != product(shape[:axis]):
        step.fail("does not keep rows together")
    return dims


def flatten(step: Step) -> list[Dims]:
    """A Reshape to two dimensions."""
    shape = step.shape()
    axis = integer(step.node, "axis", 1)
    axis += len(shape) * (axis < 0)
    return [_kept(step, [product(shape[:axis]), product(shape[axis:])])]


def squeeze(step: Step) -> list[Dims]:
    """Named dimensions are removed; the batch must not be one of them."""
    axes = step.numbers("axes", 1)
    if not axes:
        step.fail("removes whichever dimensions are 1")
    removed = {step.positive(axis) for axis in axes}
    if step.axis() in removed:
        step.fail("removes the batch dimension")
    return [[size for axis, size in enumerate(step.shape()) if axis not in removed]]


def unsqueeze(step: Step) -> list[Dims]:
    """Dimensions of 1 are added."""
    axes = step.numbers("axes", 1)
    if not axes:
        step.fail("has computed axes")
    rank = len(step.shape()) + len(axes)
    added, sizes = {axis + rank * (axis < 0) for axis in axes}, iter(step.shape())
    return [[ONE if axis in added else next(sizes) for axis in range(rank)]]


def expand(step: Step) -> list[Dims]:
    """A tensor of one row is repeated for each, by a shape that follows the batch."""
    sizes = step.elements(1)
    if sizes is None:
        step.fail("has a computed shape")
    return [broadcast(step, [step.shape(), sizes])]


def filled(step: Step) -> list[Dims]:
    """ConstantOfShape: the same value in each row."""
    return [[*(step.elements(0) or step.fail("has a computed shape"))]]


def tile(step: Step) -> list[Dims]:
    """A tensor of one row is repeated; rows themselves are not."""
    repeats, shape, axis = step.elements(1), step.shape(), step.axis()
    if repeats is None or (axis is not None and repeats[axis] != ONE):
        step.fail("repeats rows")
    return [[product(pair) for pair in zip(shape, repeats, strict=True)]]


def concat(step: Step) -> list[Dims]:
    """Tensors that all have the batch, in the same place, are joined along another dimension."""
    return [concatenated(step, range(len(step.values)))]


def concatenated(step: Step, indices: Iterable[int]) -> Dims:
    """The dimensions of these inputs joined along `axis`."""
    shapes = [step.shape(index) for index in indices]
    along = step.positive(integer(step.node, "axis"))
    dims: Dims = [*shapes[0]]
    batch = {(axis, shape[axis]) for shape in shapes for axis in range(len(shape)) if shape[axis].batched}
    all_batched = all(any(size.batched for size in shape) for shape in shapes)
    if len(batch) != 1 or not all_batched or any(axis == along for axis, _ in batch):
        step.fail("joins tensors along the batch dimension, or some that do not have it")
    sizes = [shape[along].constant for shape in shapes]
    dims[along] = None if None in sizes else Size(sum(size for size in sizes if size is not None))
    return dims


def split(step: Step) -> list[Dims]:
    """Parts along a dimension other than the batch."""
    axis = step.away(integer(step.node, "axis"))
    return [step.with_size(axis, None)] * len(step.node.output)


def slice_of(step: Step) -> list[Dims]:
    """Parts along dimensions other than the batch, which stays whole."""
    shape = step.shape()
    starts, ends = step.elements(1), step.elements(2)
    if step.value(1) is None:  # opset 9 and before
        starts, ends = (tuple(map(Size, integers(step.node, name))) for name in ("starts", "ends"))
    axes, strides = step.numbers("axes", 3), step.numbers("steps", 4)
    if axes == ():
        axes = tuple(range(len(starts) if starts is not None else len(shape)))
    if axes is None:
        step.fail("has computed axes")
    dims: Dims = [*shape]
    for index, axis in enumerate(step.positive(axis) for axis in axes):
        start, end = starts[index] if starts else Size(-1), ends[index] if ends else Size(-1)
        to_the_end = end == shape[axis] or (end.constant or 0) >= _TO_THE_END
        if start == Size(0) and to_the_end and (strides == () or (strides and strides[index] == 1)):
            continue
        if axis == step.axis() or start.batched or end.batched:
            step.fail("takes some of the rows")
        dims[axis] = None
    return [dims]


def gather(step: Step) -> list[Dims]:
    """Each row has its own indices into one table, or the same indices are read from every row."""
    data, indices = step.shape(), step.shape(1)
    axis = step.positive(integer(step.node, "axis"))
    if step.axis(0) is not None and (step.axis(1) is not None or step.axis(0) == axis):
        step.fail("picks values by index along the batch dimension, or by other indices in each row")
    return [[*data[:axis], *indices, *data[axis + 1 :]]]


def gather_elements(step: Step) -> list[Dims]:
    """Each row picks its own values by its own indices."""
    step.away(integer(step.node, "axis"))
    axis = step.axis(0)
    if axis is None or axis != step.axis(1) or step.shape(0)[axis] != step.shape(1)[axis]:
        step.fail("picks values by indices that are not those of the row")
    return [[*step.shape(1)]]


def gather_nd(step: Step) -> list[Dims]:
    """Each row picks its own values by its own indices, if the batch is a batch dimension of the operator."""
    data, indices, batch = step.shape(), step.shape(1), integer(step.node, "batch_dims")
    length = indices[-1].constant
    if batch < 1 or length is None or (step.axis(0), step.axis(1)) != (0, 0) or data[0] != indices[0]:
        step.fail("picks values by index along the batch dimension")
    return [[*indices[:-1], *data[batch + length :]]]


def pad(step: Step) -> list[Dims]:
    """Dimensions other than the batch are padded."""
    step.same_for_all(0)
    pads, axes, shape = step.numbers("pads", 1), step.numbers("", 3), step.shape()
    padded_axes = [step.positive(axis) for axis in axes] if axes else range(len(shape))
    if pads is None or axes is None:
        step.fail("has computed pads")
    padded = {axis: (pads[index], pads[index + len(pads) // 2]) for index, axis in enumerate(padded_axes)}
    if step.axis() in padded and padded[step.axis() or 0] != (0, 0):
        step.fail("adds rows")
    return [[size if padded.get(axis, (0, 0)) == (0, 0) else None for axis, size in enumerate(shape)]]


def resize(step: Step) -> list[Dims]:
    """Resize and Upsample: the batch dimension keeps its size."""
    step.same_for_all(0)
    shape, axis = step.shape(), step.axis() or 0
    axes, sizes = integers(step.node, "axes"), step.elements(3)
    resized = [step.positive(place) for place in axes] if axes else [*range(len(shape))]
    if axis in resized:
        scales = step.constant(1 if step.opset < 11 else 2)
        at = resized.index(axis)
        if not (sizes[at] == shape[axis] if sizes else scales is not None and scales[at] == 1.0):
            step.fail("scales the batch dimension, or may do so")
    return [[size if place == axis or place not in resized else None for place, size in enumerate(shape)]]


def one_hot(step: Step) -> list[Dims]:
    """A dimension of classes is added."""
    step.same_for_all(0)
    dims: Dims = [*step.shape()]
    axis = integer(step.node, "axis", -1)
    dims.insert(axis + (len(dims) + 1) * (axis < 0), None)
    return [dims]


def triangle(step: Step) -> list[Dims]:
    """Trilu of matrices within a row."""
    step.same_for_all(0)
    if (step.axis() or 0) >= len(step.shape()) - 2:
        step.fail(ALONG)
    return [[*step.shape()]]


def reverse_sequence(step: Step) -> list[Dims]:
    """Each row's sequence is reversed by its own length."""
    batch, lengths = integer(step.node, "batch_axis", 1), step.shape(1)
    if step.axis() != batch or lengths != (step.shape()[batch],):
        step.fail(ALONG)
    return [[*step.shape()]]


def grid_sample(step: Step) -> list[Dims]:
    """Each row's image is sampled at its own places."""
    shape, grid = step.shape(), step.shape(1)
    if (step.axis(0), step.axis(1)) != (0, 0) or shape[0] != grid[0]:
        step.fail(ALONG)
    return [[shape[0], shape[1], *grid[1:-1]]]


def as_first(step: Step) -> list[Dims]:
    """The values of the first input, in the type of another."""
    return [[*step.shape()]]
