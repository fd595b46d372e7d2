"""Check that a rewritten model answers as the original is written. Rewrites nothing."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import onnx
from onnxruntime import InferenceSession

from taglio.cores import available_cores
from taglio.errors import BadData, BadModel, MeasurementFailed
from taglio.model.captures import operators
from taglio.model.inputs import Feed
from taglio.model.operators import RANDOM
from taglio.model.written import open_exact
from taglio.notes import Kind, Note
from taglio.runtimes.difference import difference
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, run_session

# Rewrites reorder float sums; a larger relative distance means that the simplified model is a different model.
SIMPLIFY_TOLERANCE = 1e-3
# Time limit of one inference: a model's loops may never end. Random feeds only show a fault of a rewrite.
_LIMIT_S, _RANDOM_S = 45.0, 5.0


class OriginalAnswers:
    """The answers of the original model to `feeds`, up to the first that it cannot run, or to fewer if it is slow.
    `run_s` is the median time of one, in seconds; 0 if there is none. `random` is a note if two runs on the same
    feed differ."""

    def __init__(
        self, path: Path, original: onnx.ModelProto, session: InferenceSession, feeds: Sequence[Feed], from_user: bool
    ) -> None:
        """Run `feeds` in the `session` of `original`.

        Raises BadData if it cannot run feeds that are `from_user`, MeasurementFailed if an inference does not end.
        Random feeds that it cannot run, or not in a few seconds, are ignored.
        """
        self._path = path
        self._names = [value.name for value in original.graph.output]
        self._feeds = feeds
        self._answers: list[list[Any]] = []
        self._varies = 0.0
        self.random: Note | None = None
        self._is_exact = False
        took_s: list[float] = []
        nodes = [*operators(original)]
        self._limit_s = _LIMIT_S if any(node.op_type == "Loop" for node in nodes) else None
        limit_s = self._limit_s if from_user else _RANDOM_S
        for feed in feeds:
            begun = time.perf_counter()
            try:
                self._answers.append(run_session(session, self._names, feed, str(path), limit_s=limit_s))
            except (BadData, MeasurementFailed):
                if from_user:
                    raise
                break
            took_s.append(time.perf_counter() - begun)
            if sum(took_s) > 5.0:  # a slow model answers fewer feeds
                break
        self.run_s = median(took_s) if took_s else 0.0
        kinds = sorted({node.op_type for node in nodes if _answers_at_random(node)})
        if kinds and self._answers:
            differences: list[tuple[float, str]] = []
            for feed, answer in zip(feeds, self._answers, strict=False):
                repeated = run_session(session, self._names, feed, str(path), limit_s=self._limit_s)
                differences += [
                    (difference(*pair), name) for *pair, name in zip(answer, repeated, self._names, strict=True)
                ]
            self._varies, name = max(differences)
            if self._varies > 0.0:
                self.random = Note(
                    Kind.RANDOM_ANSWERS,
                    f"the model's answers are random ({', '.join(kinds)}): for the same input output {name} differs by "
                    f"{self._varies:.2%} from run to run, and errors include that: turn the noise off in the data or "
                    "the model",
                )

    def take_exact_answers(self, original: onnx.ModelProto) -> None:
        """From now on compare with the answers of `original` without ONNX Runtime's basic rewrites. Changes nothing if
        the answers are random, or if the model does not run without the rewrites."""
        if self.random or not self._answers:
            return
        feeds = self._feeds[: len(self._answers)]
        with contextlib.suppress(BadModel, BadData, MeasurementFailed):
            session = open_exact(original, str(self._path))
            self._answers = [
                run_session(session, self._names, feed, str(self._path), limit_s=self._limit_s) for feed in feeds
            ]
            self._is_exact = True

    def _open(self, simple: onnx.ModelProto) -> InferenceSession:
        if self._is_exact:
            with contextlib.suppress(BadModel):
                return open_exact(simple, str(self._path))
        options = SessionOptions(threads=available_cores(), optimization=Optimization.BASIC)
        return open_session(simple, options, label=str(self._path))

    def refuse_difference(self, simple: onnx.ModelProto) -> None:
        """Raises BadModel if `simple` answers differently, beyond what random answers do by themselves: every later
        proof would be about another model."""
        tolerance = SIMPLIFY_TOLERANCE + 4.0 * self._varies  # random answers differ more than a few of them did
        session = self._open(simple)
        for feed, before in zip(self._feeds, self._answers, strict=False):
            try:
                after = run_session(session, self._names, feed, str(self._path), limit_s=self._limit_s)
            except BadData as error:
                raise BadModel(f"simplified, {error}") from None
            for name, left, right in zip(self._names, before, after, strict=True):
                distance = difference(left, right)
                if not distance <= tolerance:
                    raise BadModel(
                        f"{self._path}: after simplification, output {name} differs by {distance:.2%} "
                        f"(limit {tolerance:.1%})"
                    )


def _answers_at_random(node: onnx.NodeProto) -> bool:
    return node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2)
