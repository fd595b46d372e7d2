"""Measure the answers of built models: error and accuracy of the files as deployed, on all held-out inputs. Selects
nothing."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from taglio.data.dataset import Sample
from taglio.error.compared import as_array
from taglio.error.tally import Outputs, Tally, finite
from taglio.errors import plural
from taglio.lab.build import quantized
from taglio.lab.side_by_side import answer, opened
from taglio.lab.work import Work
from taglio.notes import Kind, Note
from taglio.plan.result import Limits, Plan
from taglio.runtimes.onnxruntime import NAME, SessionOptions
from taglio.search.ledger import Answers
from taglio.search.unseen import LIKELY, UPPER, Rejected, Unseen, selected_note, share_worse, unseen_note


def answers(work: Work, plan: Plan | None, limits: Limits) -> Answers:
    """Answers of a plan's model, or of the float model (None), on all held-out inputs.

    The reference is the source as it is written (as_written.py). The model runs in the plan's place, with that place's
    options and one input at a time, as it will be deployed. `limits` are losses. Raises BadData for inputs that it
    cannot run on, BadModel for a model that its runtime rejects.
    """
    options = work.setup.options(plan.runtime if plan else "")
    # Where the float model is the reference, running it again would show only random answers.
    if plan is None and options.runtime == NAME and work.agreement.agrees:
        return answers_by(work, lambda _, wanted: wanted, limits)
    return _answers_in(work, quantized(work, plan) if plan else work.model.proto, options, limits)


def source_answers(work: Work, limits: Limits) -> Answers:
    """Answers of the source where another model is planned instead, as ONNX Runtime computes it by default."""
    assert work.replaced is not None, "another model is planned instead of the source"
    return _answers_in(work, work.replaced.proto, work.setup.options(NAME), limits)


def _answers_in(work: Work, proto: onnx.ModelProto, options: SessionOptions, limits: Limits) -> Answers:
    with opened(work, proto, options) as session:
        return answers_by(work, lambda sample, _: answer(work, session, sample), limits)


def answers_by(work: Work, run: Callable[[Sample, Outputs], Outputs], limits: Limits) -> Answers:
    """Answers of what `run` computes for each held-out input. Its arguments are the sample and the source model's
    answer, with which its own is compared."""
    data = work.data.all_held_out
    measure = work.measure(limits.metric, limits.also, data=data)
    # A loss that is relative to the float model's score needs that score on the same inputs.
    own = Tally(work.parts, measure)
    metrics = (limits.metric, *(bound.metric for bound in limits.also))
    if work.data.unseen is not None and any(metric.labelled or metric.own for metric in metrics):
        for wanted in work.all_float_answers():
            own.add(wanted, wanted)
        measure = own.measure_on(range(len(data.samples)))
    tally, hits = Tally(work.parts, measure, watched=True), _Hits(data.labels)
    for index, (sample, wanted) in enumerate(zip(data.samples, work.all_float_answers(), strict=True)):
        outputs = run(sample, wanted)
        tally.add(wanted, outputs)
        hits.add(index, outputs)
    return _answers(work, tally, own, hits.share(), limits)


def _answers(work: Work, tally: Tally, own: Tally, top1: float | None, limits: Limits) -> Answers:
    parts, score = tally.parts(), tally.score()
    limit = limits.allowed_error
    digests = work.digests[1]
    groups = [digests.index(digest) for digest in digests]
    first, every = len(work.data.held_out.samples), range(len(digests))
    searched, unseen = tally, None
    if work.data.unseen is not None:
        searched, unseen = (tally.only(rows, own.measure_on(rows)) for rows in (every[:first], every[first:]))
    by_input, judged, upper = tally.by_input(), tally.judged(limit), tally.end(groups, UPPER)
    if unseen is not None and upper is not None:
        # The plan was fitted to the inputs of the search, so the upper end of the unseen ones counts if it is larger.
        upper = max(upper, unseen.end(groups[first:], UPPER) or upper)
    return Answers(
        max(part.loss for part in parts),
        judged,
        top1 if score is None else score,
        parts,
        error_upper=upper,
        error_lower=tally.end(groups, 1.0 - UPPER),
        likely_end=tally.end(groups, LIKELY),
        searched=judged if unseen is None else searched.judged(limit),
        unseen=None if unseen is None else unseen.judged(limit),
        unseen_error=None if unseen is None else float(finite(unseen.value())),
        by_input=() if by_input is None else tuple(map(float, by_input)),
        unchanged=tally.unchanged(),
        ragged=dict(tally.ragged),
        others=tally.others(),
    )


class _Hits:
    """Counts the samples whose label is the index of the largest value in the first output."""

    def __init__(self, labels: np.ndarray | None) -> None:
        fit = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iubf" and not (labels % 1).any()
        self._labels = labels if fit else None
        self._hits = 0

    def add(self, index: int, outputs: Outputs) -> None:
        scores = as_array(outputs[0])
        classes = scores.shape[1] if scores.dtype.kind == "f" and scores.ndim == 2 and scores.shape[0] == 1 else 0
        if self._labels is not None and 0 <= (label := int(self._labels[index])) < classes:
            self._hits += int(scores[0].argmax()) == label
        else:
            self._labels = None

    def share(self) -> float | None:
        return None if self._labels is None else self._hits / len(self._labels)


def of_answers(chosen: Answers, int8: Answers | None, limits: Limits, labels: np.ndarray | None) -> tuple[Note, ...]:
    """Notes on the answers of the chosen model and of all int8, and on the use of `labels`."""
    metric = limits.metric
    notes = [
        Note(
            Kind.CHANGED_LENGTH,
            f"output {name} changes its length on {plural(count, 'input')}: missing values count as 0",
        )
        for name, count in chosen.ragged.items()
    ]
    if chosen.unchanged:
        shares = ", ".join(f"{name} {share:.2%}" for name, share in chosen.unchanged.items())
        text = f"share of values that the plan leaves unchanged in outputs that are not float: {shares}"
        notes.append(Note(Kind.FACT, text))
    most, upper = limits.max_error, chosen.error_upper
    if upper is not None and most is not None and chosen.error <= most < upper:
        text = f"the limit holds on these inputs; on similar inputs {metric.title} may reach {metric.text(upper, 2)}"
        notes.append(Note(Kind.UPPER_END, text))
    lost_parts = () if int8 is None else tuple(part for part in int8.parts if part.lost)
    for lost in dict.fromkeys(part.lost for part in lost_parts):
        first, *others = [part.name for part in lost_parts if part.lost == lost]
        also = f"; the same holds for {', '.join(others)}" if others else ""
        notes.append(Note(Kind.FACT, f"all int8 is rejected: {first} {lost}{also}"))
    return (*notes, *_unused(labels, chosen, limits))


def unseen_of(work: Work, answer: Answers, candidates: int) -> Unseen | None:
    """The chosen model on the unseen inputs, on which so many `candidates` were measured; None if there are none."""
    if work.data.unseen is None or answer.unseen_error is None:
        return None
    rows = len(work.data.unseen.samples)
    worst = max(answer.by_input[-rows:], default=None)
    # Steps of a session follow from each other, and a plan that was preferred to others here may be so by luck.
    distinct = len(set(work.digests[1][-rows:]))
    independent = candidates <= 1 and not work.graph.states and worst is not None
    return Unseen(rows, answer.unseen_error, worst, share_worse(distinct) if independent else None, candidates)


def of_unseen(
    work: Work, answer: Answers, rejected: Sequence[Rejected], candidates: int, limits: Limits
) -> tuple[Note, ...]:
    """Notes on the unseen inputs: the faster plans that they rejected, and what they say about new inputs; or that
    there are none."""
    assert limits.max_error is not None, "a plan is accepted under a limit"
    notes = [rejection.note(limits.metric, limits.max_error) for rejection in rejected]
    unseen = unseen_of(work, answer, candidates)
    if answer.error == 0.0:
        return tuple(notes)
    if not limits.metric.smooth:
        text = f"{limits.metric.name} has no squared error by input, so no upper end of the error is given"
        notes.append(Note(Kind.FACT, text))
    if unseen is None:
        return (*notes, selected_note(len(work.data.held_out.samples)))
    return tuple(filter(None, (*notes, unseen_note(unseen, limits.metric))))


def _unused(labels: np.ndarray | None, chosen: Answers, limits: Limits) -> list[Note]:
    """A note if there are labels that nothing was compared with."""
    metrics = (limits.metric, *(bound.metric for bound in limits.also))
    if labels is None or chosen.accuracy is not None or any(metric.labelled or metric.own for metric in metrics):
        return []
    wanted = "a class from 0 to classes - 1 for each input, and one output of scores [1, classes]"
    text = f"the labels were not used: top-1 accuracy needs {wanted}; other labels need a task as the metric"
    return [Note(Kind.UNUSED_LABELS, text)]
