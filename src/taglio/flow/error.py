"""The error stage: how many inputs to measure on, the study, and doubts about the data."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from taglio import artifact
from taglio.data.spec import batch_size
from taglio.error.combine import fit_model
from taglio.error.compared import as_array
from taglio.error.doubts import (
    constant_outputs,
    exchanged_rows,
    few_inputs,
    no_numbers,
    not_float,
    saturating_sums,
    sizes_measured,
    unlike_calibration,
    values_fed,
)
from taglio.error.judge import TaskJudge, fewest_samples
from taglio.error.measure import ErrorMeter, anchored, refuse_missing
from taglio.error.model import ErrorModel
from taglio.error.study import StudyBudget, measure
from taglio.error.switchable import Switchable
from taglio.error.tally import Measure, Outputs
from taglio.errors import BadData, plural
from taglio.flow.workspace import ERROR, OUTCOME, read_error
from taglio.lab.work import Work, require_own
from taglio.model.captures import readers
from taglio.model.pixels import pixel_scaling
from taglio.notes import Note
from taglio.profile.measure import pure_assignments
from taglio.profile.result import Profile
from taglio.progress import Progress
from taglio.quantize.precision import BFLOAT16, precisions
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.processor import instructions, sums_saturate

# The error of few numbers is erratic: inputs are added until this many numbers are compared.
_NUMBERS = 2000
_LEAST_INPUTS, _MOST_INPUTS = 8, 64
# An input or two say little, so this many are studied if the fewest subsets then take no more than this share of the
# time for blocks alone.
_FEW_INPUTS, _FEW_SHARE = 4, 0.25
# As many inputs are studied as all evaluations in this share of the time for blocks alone allow: the error on a few
# inputs may be several times smaller than on others.
_CHEAP_SHARE = 0.1
# Seconds for running a few inputs where errors are not studied.
_FEW_INPUTS_S = 8.0
# An evaluation takes as long as the fastest of a few, of which the first is slower, or the first if two take longer.
_READS, _READS_S = 4, 8.0


def error_model(
    work: Work,
    profile: Profile,
    *,
    effort: float = 1.0,
    reuse: ErrorModel | None = None,
    progress: Progress | None = None,
) -> ErrorModel:
    """Measure how blocks in int8 change the output of `work`, and fit a model of any subset of them.

    The scheme is that of `profile`, and blocks in int8 are as built for the place of `work`.
    `effort` scales the time given to measuring. `reuse` is returned instead if it is from an equal study, on enough
    inputs.

    >>> error = taglio.error_model(model, profile, effort=0.02)
    >>> error.predict(model.graph, {})
    0.0
    """
    require_own(work, profile=profile)
    refuse_constant_outputs(work)
    scheme = profile.scheme
    work = work.telling(progress).at(effort).settled(scheme)
    study = _study(work, profile)
    switchable = work.switchable(scheme)
    budget = StudyBudget(seconds=work.budget.study_s, alone_s=work.budget.alone_s)
    count = affordable_inputs(work, switchable, budget)
    # An earlier run on a busy machine may have studied fewer inputs, and a user's function may have changed.
    usable = reuse is not None and reuse.samples >= min(_LEAST_INPUTS, count) and not reuse.metric.own
    if reuse is not None and usable and (reuse.model_sha256, reuse.study) == (work.model.sha256, study):
        return reuse
    meter = work.meter(switchable, count)
    measured = measure(work.graph, precisions(scheme), meter, budget, work.setup.seed, work.progress)
    result = fit_model(work.model, scheme, measured, meter=meter, held_out=work.data.held_out)
    everything = meter.tally(pure_assignments(work.graph, precisions(scheme))["int8"])
    saturates = bool(work.graph.candidates()) and sums_saturate(instructions())
    saturation = saturating_sums(scheme, saturates)
    notes = (*doubts(work, meter.measure, meter.references), *filter(None, [not_float(everything), saturation]))
    return replace(result, notes=notes, parts=everything.parts(), study=study)


def _study(work: Work, profile: Profile) -> str:
    """What the errors of `work` depend on beside the model, as a digest: data, settings, processor and versions."""
    setup, data, machine = work.setup, work.data, profile.conditions.machine
    facts = (
        data.calibration.sha256,
        data.held_out.sha256,
        profile.scheme,
        work.metric,
        (setup.shapes, setup.seed, setup.optimization, setup.requantize, setup.instead, setup.state),
        (setup.runtime, work.effort),
        [block.name for block in work.graph.candidates()],
        (machine.processor, machine.instructions),
        artifact.tools(),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def error_of_workspace(folder: Path, work: Work, profile: Profile) -> ErrorModel:
    """The error model of a locked workspace. One that `optimize` left without, because no plan could be faster than
    float, is studied now."""
    path = folder / f"{ERROR}.json"
    if path.exists() or not (folder / f"{OUTCOME}.json").exists():
        return read_error(folder, work, profile)
    model = error_model(work.in_place(NAME), profile)
    artifact.save(path, ERROR, work.model.sha256, model)
    return model


def refuse_constant_outputs(work: Work) -> None:
    """Raises BadData if no change of an output can be measured: all of float are zero, or the same for different
    inputs."""
    count = len(set(work.digests[1][:_LEAST_INPUTS]))
    answers = work.float_answers(work.within(_FEW_INPUTS_S).runs(_LEAST_INPUTS, min(2, count)))
    stored = work.model.initializers()
    computed = [index for index, name in enumerate(work.outputs) if name not in stored]
    values = [[as_array(answer[index]) for index in computed] for answer in answers]
    if not values or not computed or any(output.dtype.kind != "f" for output in values[0]):
        return
    zero = not any(output.any() for sample in values for output in sample)
    names = [work.outputs[index] for index in computed]
    same = [name for index, name in enumerate(names) if constant_outputs([[value[index]] for value in values], [name])]
    if zero or (count > 1 and same == names):
        raise BadData(
            f"{work.data.held_out.source}: {'all outputs are' if len(names) > 1 else f'output {names[0]} is'} "
            f"{'zero' if zero else 'the same'} for all {plural(len(values), 'held-out input')} that were tried, so no "
            "error can be measured: check the data and their preprocessing, and the model's weights"
        )


def affordable_inputs(work: Work, switchable: Switchable, budget: StudyBudget) -> int:
    """How many held-out inputs the study can afford to measure on: more for short outputs and for metrics that move in
    steps of one input, while time allows; all of them where that takes hardly any time."""
    meter = ErrorMeter(switchable, work.typical[:1], work.parts)
    seconds = [meter.evaluation_s]
    for _ in range(work.within(_READS_S).runs(_READS) - 1):
        start = time.perf_counter()
        meter.read({})
        seconds.append(time.perf_counter() - start)
    once = max(1e-6, min(seconds))
    alone = sum(switch.precision != BFLOAT16 for switch in switchable.switches)
    shortest = max(1, min((as_array(output).size for output in meter.references[0]), default=1))
    metric = work.metric
    wanted = max(_LEAST_INPUTS, min(_MOST_INPUTS, _NUMBERS // shortest if metric.smooth else _MOST_INPUTS))
    few = min(_FEW_INPUTS, int(_FEW_SHARE * budget.alone_s / (once * budget.minimum_subsets)))
    affordable = max(few, int(budget.seconds / (once * (alone + budget.minimum_subsets))))
    cheap = int(_CHEAP_SHARE * budget.alone_s / (once * (alone + budget.maximum_subsets)))
    return min(len(work.data.held_out.samples), max(fewest_samples(metric), min(wanted, affordable), cheap))


def doubts(work: Work, measure: Measure, references: Sequence[Outputs]) -> tuple[Note, ...]:
    """Reasons why the errors are less sure, from the data and the float model's answers to some of it."""
    outputs, batch = work.model.outputs, batch_size(work.inputs, work.typical[0])
    read, stored = readers(work.model.proto.graph.node), work.model.initializers()
    both, graph = (work.data.calibration.samples, work.data.held_out.samples), work.model.proto.graph
    computed = [index for index, name in enumerate(outputs) if name not in stored]
    used = [spec for spec in work.inputs if spec.name in read]
    notes = [
        *work.notes,
        values_fed(used, chain(*both), {spec.name: pixel_scaling(graph, spec.name) for spec in used}),
        *few_inputs(measure.metric, *work.digests, batch),
        sizes_measured(work.inputs, work.data.held_out.samples),
        no_numbers(references, outputs),
        measure.judge.doubt() if isinstance(measure.judge, TaskJudge) else None,
        exchanged_rows(measure.metric, [outputs[index] for index in sorted(work.parts.ranked)]),
        unlike_calibration(work.ranges().low_high, work.data.held_out.samples),
        constant_outputs([[answer[i] for i in computed] for answer in references], [outputs[i] for i in computed]),
    ]
    return tuple(filter(None, notes))


def doubts_without_study(work: Work) -> tuple[Note, ...]:
    """The same where errors were not studied, because no plan can be faster than float."""
    count = work.within(_FEW_INPUTS_S).runs(_LEAST_INPUTS, 1)
    answers = work.float_answers(count)
    for index, name in enumerate(work.outputs):
        refuse_missing(name, (outputs[index] for outputs in answers))
    return doubts(work, anchored(work.measure(work.metric, count=count), lambda: answers), answers)
