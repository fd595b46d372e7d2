"""Answers of built models: error and accuracy of the files that would be deployed, on the held-out inputs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import numpy as np

from taglio import weights
from taglio.error.compared import as_array
from taglio.error.tally import OtherLoss, Outputs, PartLoss, Tally
from taglio.errors import BadData, one_line, plural
from taglio.flow.build import Built, quantized
from taglio.flow.work import Work
from taglio.memory import make_room
from taglio.plan.result import Limits, Plan
from taglio.profile.measure import FLOAT_RUN
from taglio.runtimes.onnxruntime import NAME, SessionOptions
from taglio.runtimes.session import Session, opener
from taglio.scratch import scratch

# Of the models that are timed, losses are measured if that takes no longer than this.
_JUDGED_S = 30.0
# Seconds for running the float model and the chosen one on the calibration inputs.
_AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Answers:
    """`error` is the loss against the float model, that of the worst of its `parts`; `judged` is the value compared
    with the limit (Tally.judged). `accuracy` is the task's value against labels, or top-1; None without suitable
    labels. `interval` is where the error lies for similar inputs in nine of ten cases, None if unknown. `unchanged` is
    the share of equal values in each output that is not float, `ragged` the number of inputs for which an output
    changes its length. `others` are the other limited metrics."""

    error: float
    judged: float
    accuracy: float | None
    parts: tuple[PartLoss, ...] = ()
    interval: tuple[float, float] | None = None
    unchanged: dict[str, float] = field(default_factory=dict)
    ragged: dict[str, int] = field(default_factory=dict)
    others: tuple[OtherLoss, ...] = ()


def answers(work: Work, plans: Mapping[str, Plan], limits: Limits) -> dict[str, Answers]:
    """Answers of the model of each of `plans`, and of the float model as FLOAT_RUN, on all held-out inputs.

    The reference is the float model in ONNX Runtime. Each model runs in its plan's place, with that place's options and
    one input at a time, as it will be deployed. `limits` are losses. Raises BadData for inputs that a model cannot run
    on, BadModel for a model that its runtime rejects.
    """
    names = list(work.outputs)
    groups = [work.digests[1].index(each) for each in work.digests[1]]
    samples, labels, wanted = work.data.held_out.samples, work.data.held_out.labels, work.float_answers()
    measure = work.measure(limits.metric, limits.also)
    tallies = {name: Tally(work.parts, measure, watched=True) for name in (FLOAT_RUN, *plans)}
    hits = {name: _Hits(labels) for name in tallies}
    with scratch() as folder:
        for name, tally in tallies.items():
            plan = plans.get(name)
            there = work.setup.options(plan.runtime if plan else "")
            make_room(work.memory_bytes)
            # In ONNX Runtime the float model is the reference: run again, it would differ only by random answers.
            itself = name == FLOAT_RUN and there.runtime == NAME
            session = None if itself else _opened(folder / "model.onnx", work, plan, there)
            for index, (sample, reference_outputs) in enumerate(zip(samples, wanted, strict=True)):
                found = _run(session, names, sample, name) if session else reference_outputs
                tally.add(reference_outputs, found)
                hits[name].add(index, found)
    return {name: _answers(tally, hits[name].share(), groups, limits) for name, tally in tallies.items()}


def judging(
    work: Work, limits: Limits, count: int, asked: Collection[str], found: dict[str, float]
) -> Callable[[str, Session], None]:
    """What puts the loss of each model that is `asked` for into `found`, given its name and session: on the first
    `count` held-out inputs, to be compared with the limit. Nothing is found of a model so slow that this takes longer
    than _JUDGED_S. Raises BadData for an input that the model cannot run."""
    slow = work.setup.run_s * count * len(asked) > _JUDGED_S
    samples, names = work.data.held_out.samples[:count], list(work.model.outputs)

    def judge(name: str, session: Session) -> None:
        if slow or name not in asked:
            return
        tally = Tally(work.parts, work.measure(limits.metric, limits.also, count), watched=True)
        for sample, reference in zip(samples, work.float_answers(count), strict=True):
            tally.add(reference, _run(session, names, sample, name))
        found[name] = tally.judged(inf if limits.max_error is None else limits.max_error)

    return judge


def on_calibration(work: Work, built: Built, limits: Limits) -> str:
    """A note if a built model breaks the limit on the calibration inputs, or "": a decoder that decides otherwise once
    changes all that follows, on some inputs. They are not run for a task, or where that takes longer than _AGAIN_S."""
    metric, most = limits.metric, limits.max_error
    count = work.affordable(_AGAIN_S / 2.0, len(work.data.calibration.samples), 0)
    if not count or most is None or not metric.smooth:
        return ""
    tally, wanted = Tally(work.parts, metric), work.float_answers(count, work.data.calibration)
    make_room(work.memory_bytes)
    deployed = built.session(work.setup.threads)
    for sample, reference in zip(work.data.calibration.samples, wanted, strict=False):
        found = deployed.run(sample)
        tally.add(reference, [found[name] for name in work.model.outputs])
    if (loss := tally.value()) <= most:
        return ""
    return (
        f"on {plural(count, 'calibration input')} {metric.title} is {metric.text(loss, 2)}, beyond the limit that the "
        "held-out inputs keep: some inputs change far more than others; give more data or a smaller limit"
    )


def _answers(tally: Tally, top1: float | None, groups: Sequence[int], limits: Limits) -> Answers:
    parts, score = tally.parts(), tally.score()
    return Answers(
        max(each.loss for each in parts),
        tally.judged(inf if limits.max_error is None else limits.max_error),
        top1 if score is None else score,
        parts,
        tally.interval(groups),
        tally.unchanged(),
        dict(tally.ragged),
        tally.others(),
    )


def _opened(path: Path, work: Work, plan: Plan | None, options: SessionOptions) -> Session:
    weights.write(path, quantized(work, plan) if plan else work.model.proto)
    return opener(options.runtime)(path, options)


def _run(session: Session, names: list[str], sample: Mapping[str, np.ndarray], label: str) -> list[np.ndarray]:
    try:
        return session.run(names, dict(sample))
    except Exception as error:  # the runtimes' exceptions have no useful common base class
        raise BadData(f"{label}: cannot run the held-out inputs: {one_line(error, 300)}") from None


class _Hits:
    """Counts samples whose largest value in the first output is at the label."""

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


def of_answers(
    answered: Mapping[str, Answers], winner: str, limits: Limits, labels: np.ndarray | None
) -> tuple[str, ...]:
    """Notes on the answers of the chosen model and of all-int8, and on the use of `labels`, one line each."""
    chosen, metric = answered[winner], limits.metric
    lines = [
        f"output {name} changes its length on {plural(count, 'input')}: missing values count as 0"
        for name, count in chosen.ragged.items()
    ]
    if chosen.unchanged:
        shares = ", ".join(f"{name} {share:.2%}" for name, share in chosen.unchanged.items())
        lines.append(f"outputs that are not float, unchanged with the plan: {shares}")
    if chosen.interval and limits.max_error is not None and chosen.error <= limits.max_error < chosen.interval[1]:
        low, high = (metric.text(each, 2) for each in metric.ascending(chosen.interval))
        lines.append(f"the limit holds on these inputs; on similar inputs expect {metric.title} from {low} to {high}")
    everything = answered.get("int8")
    if everything is not None:
        for lost in dict.fromkeys(each.lost for each in everything.parts if each.lost):
            first, *others = [each.name for each in everything.parts if each.lost == lost]
            also = f"; the same holds for {', '.join(others)}" if others else ""
            lines.append(f"all-int8 is rejected: {first} {lost}{also}")
    return (*lines, *_unused(labels, chosen, limits))


def _unused(labels: np.ndarray | None, chosen: Answers, limits: Limits) -> list[str]:
    """A note if there are labels that nothing was compared with."""
    metrics = (limits.metric, *(each.metric for each in limits.also))
    if labels is None or chosen.accuracy is not None or any(each.labelled or each.own for each in metrics):
        return []
    wanted = "a class from 0 to classes - 1 for each input, and one output of scores [1, classes]"
    return [f"the labels were not used: top-1 accuracy needs {wanted}; a task as the metric takes other labels"]
