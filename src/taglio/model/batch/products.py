"""Rules of matrix products, recurrent layers and attention, and of what ONNX Runtime fuses them into."""

from taglio.model.batch.elementwise import broadcast
from taglio.model.batch.movement import concatenated
from taglio.model.batch.values import ONE, ROWS, Dims, Rule, Shape, Size, Step
from taglio.model.operators import integer, text


def matrix_product(step: Step, left: Shape, right: Shape) -> Dims:
    """The dimensions of a product of stacks of matrices: the inner dimension is summed over."""
    first, second = (ONE, *left) if len(left) == 1 else left, (*right, ONE) if len(right) == 1 else right
    if first[-1].batched or second[-2].batched:
        step.fail("sums over the batch dimension")
    dims = broadcast(step, [first[:-2], second[:-2]]) if len(first) + len(second) > 4 else []
    return [*dims, *([first[-2]] if len(left) > 1 else []), *([second[-1]] if len(right) > 1 else [])]


def _factors(step: Step, left: int, right: int) -> tuple[Shape, Shape]:
    """Two inputs as they are multiplied."""
    first, second = step.shape(left), step.shape(right)
    if integer(step.node, "transA"):
        first = (*first[:-2], first[-1], first[-2])
    if integer(step.node, "transB"):
        second = (*second[:-2], second[-1], second[-2])
    return first, second


def product_of(left: int, right: int) -> Rule:
    """A product of two inputs; the others, such as scales, are the same for all rows."""

    def rule(step: Step) -> list[Dims]:
        step.same_for_all(left, right)
        if integer(step.node, "transBatchA") or integer(step.node, "transBatchB"):
            step.fail("moves the batch dimension within a product")
        return [matrix_product(step, *_factors(step, left, right))]

    return rule


def gemm(step: Step) -> list[Dims]:
    """A product of matrices, and a bias."""
    dims = matrix_product(step, *_factors(step, 0, 1))
    if step.value(2) is None:
        return [dims]
    return [broadcast(step, [tuple(size for size in dims if size is not None), step.shape(2)])]


def blockwise_product(step: Step) -> list[Dims]:
    """MatMulNBits: a constant matrix, written in blocks."""
    step.same_for_all(0)
    step.away(-1)
    return [[*step.shape()[:-1], Size(integer(step.node, "N"))]]


def einsum(step: Step) -> list[Dims]:
    """A product whose equation keeps the batch's letter."""
    left, arrow, right = text(step.node, "equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or len(terms) != len(step.values):
        step.fail("is written without its result, or with an ellipsis")
    sizes: dict[str, Size] = {}
    for index, term in enumerate(terms):
        for letter, size in zip(term, step.shape(index), strict=True):
            earlier = sizes.setdefault(letter, size)
            if earlier != size and (earlier.batched or size.batched):
                step.fail("combines tensors whose batch dimensions differ")
    if any(size.batched and letter not in right for letter, size in sizes.items()):
        step.fail("sums over the batch dimension")
    return [[sizes[letter] for letter in right]]


def recurrent(step: Step) -> list[Dims]:
    """LSTM, GRU and RNN: rows in the second dimension, or in the first with `layout`; lengths and first states are each
    row's own."""
    first = bool(integer(step.node, "layout"))
    batch = int(not first)
    step.same_for_all(0, 4, 5, 6)
    shape = step.shape()
    own = [(0, batch), (4, 0), (5, batch), (6, batch)]
    if any(
        step.value(index) and (step.axis(index) != axis or step.shape(index)[axis] != shape[batch])
        for index, axis in own
    ):
        step.fail("does not read rows along its batch dimension")
    rows = shape[batch]
    state: Dims = [rows, None, None] if first else [None, rows, None]
    return [[rows, None, None, None] if first else [None, None, rows, None], state, state][: len(step.node.output)]


def attention(step: Step) -> list[Dims]:
    """Attention with a mask whose dimensions are aligned from the right: one of each row's own has all four."""
    if step.axis(3) is not None and len(step.shape(3)) < 4:
        step.fail("has a mask whose first dimension is not the batch")
    return multi_head_attention(step)


def multi_head_attention(step: Step) -> list[Dims]:
    """Attention of queries, keys and values; the latter may be packed into the first."""
    if any(step.value(index) and step.axis(index) != 0 for index in (1, 2)):
        step.fail("has the same keys or values for all rows")
    return projecting_attention(step)


def projecting_attention(step: Step) -> list[Dims]:
    """Attention whose tensors are the same for all rows, or have the rows first."""
    shape = step.shape()
    _rows_first(step)
    return [[shape[0], *[None] * (len(shape) - 1)], *[[shape[0], None, None, None]] * (len(step.node.output) - 1)]


def embed(step: Step) -> list[Dims]:
    """EmbedLayerNormalization: of tokens [batch, sequence] their vectors, how many are not masked, and the sums."""
    _rows_first(step)
    vectors: Dims = [*step.shape(), None]
    return [vectors, [step.shape()[0]], vectors]


def _rows_first(step: Step) -> None:
    """Raise RowsMix unless the first input has whole rows first, and every other has, too, or is the same for all."""
    for value in step.values:
        if value is None or value.shape is None or value.shape[:1] == (ROWS,):
            continue
        if value.axis is not None or (len(value.shape) == 4 and value.shape[0] != ONE):
            step.fail("does not read rows along its first dimension")
    if step.axis() != 0:
        step.fail("does not read rows along its first dimension")


def skip_norm(step: Step) -> list[Dims]:
    """SkipLayerNormalization: the last dimension of a sum of two inputs is normalised."""
    step.same_for_all(0, 1)
    dims = broadcast(step, [step.shape(0), step.shape(1)])
    if dims[-1] is None or dims[-1].batched:
        step.fail("normalises over the batch dimension")
    return [dims, *[[size if size and size.batched else None for size in dims]] * 2, dims]


def quantized_concat(step: Step) -> list[Dims]:
    """QLinearConcat: scale and zero point of the result, then tensor, scale and zero point of each part."""
    parts = range(2, len(step.values), 3)
    step.same_for_all(*parts)
    return [concatenated(step, parts)]


def per_row(*ranks: int) -> Rule:
    """Classical models of [batch, features]: results of these ranks for each row alone."""

    def rule(step: Step) -> list[Dims]:
        step.same_for_all(0)
        if step.axis() != 0:
            step.fail("does not read rows along its first dimension")
        return [[step.shape()[0], *[None] * (rank - 1)] for rank in ranks]

    return rule
