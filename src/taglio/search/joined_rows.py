"""The error of rows that share a batch, beside that of the same rows alone. int8-dynamic has one scale for all rows of
a batch, so a large row costs its neighbours their precision. Chooses nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnxruntime import InferenceSession

from taglio.data.dataset import Sample
from taglio.error.compared import as_array
from taglio.lab.work import Work
from taglio.memory import make_room
from taglio.model.rows import why_rows_mix
from taglio.notes import Kind, Note
from taglio.runtimes.onnxruntime import NAME, open_session, run_session

# Rows that are joined: a usual batch of a server.
_ROWS = 8
# Rows of like size share a scale at little cost: joining them at most doubles their error.
_COUPLED = 2.0


@dataclass(frozen=True, slots=True)
class RowErrors:
    """The root mean square of the relative L2 errors of `rows` rows, alone and joined in one batch."""

    rows: int
    alone: float
    joined: float

    @property
    def coupled(self) -> bool:
        """Whether a row's error depends on the rows that it is joined with."""
        return self.joined > _COUPLED * self.alone

    def note(self) -> Note:
        """The errors of the rows for the user."""
        return Note(
            Kind.SHARED_SCALE,
            f"int8-dynamic has one scale for all rows of a batch: the error of a row is {self.alone:.2%} alone and "
            f"{self.joined:.2%} among {self.rows}",
        )


def row_errors(work: Work, changed: onnx.ModelProto) -> RowErrors | None:
    """The errors of rows of `changed`, a form of the model, on held-out inputs; None if the float model does
    not answer a batch as it answers its rows, or there are not two inputs of one row and one shape."""
    rows = [
        sample
        for sample in work.typical[: work.within(1.0).runs(_ROWS, 2)]
        if all(value.shape[:1] == (1,) for value in sample.values())
    ]
    if len(rows) < 2:
        return None
    make_room(work.memory_bytes)
    reference = open_session(work.model.proto, work.setup.options(NAME))

    def answers(session: InferenceSession, feed: Sample) -> dict[str, np.ndarray]:
        values = run_session(session, work.outputs, feed, work.data.held_out.source)
        return dict(zip(work.outputs, values, strict=True))

    if why_rows_mix([work.model.proto], work.model.inputs, rows[:2], partial(answers, reference)):
        return None
    batch = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    quantized = open_session(changed, work.setup.options(NAME))

    def error(feeds: Sequence[Sample]) -> float:
        squares = list[float]()
        for feed in feeds:
            pair = (answers(session, feed).values() for session in (reference, quantized))
            for exact, other in zip(*(map(as_array, answer) for answer in pair), strict=True):
                if exact.dtype.kind == "f" and len(exact) == len(next(iter(feed.values()))):
                    flat = exact.reshape(len(exact), -1).astype(np.float64)
                    finite = np.isfinite(flat)
                    flat = np.where(finite, flat, 0.0)
                    difference = np.where(finite, other.reshape(len(exact), -1), 0.0) - flat
                    norms = np.linalg.norm(flat, axis=1)
                    ratios = np.linalg.norm(difference, axis=1)[norms > 0.0] / norms[norms > 0.0]
                    squares += np.square(ratios).tolist()
        return float(np.sqrt(np.mean(squares))) if squares else 0.0

    return RowErrors(len(rows), error(rows), error([batch]))
