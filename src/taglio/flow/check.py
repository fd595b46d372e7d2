"""Check that what a workspace promised still holds, here and now. Judges by promise.py; changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taglio import artifact
from taglio.confirm import race
from taglio.confirm.bench import Bench
from taglio.confirm.speedup import Speedup
from taglio.cores import available_cores
from taglio.data.dataset import Sample
from taglio.deploy import verify
from taglio.deploy.folder import DeliveredModel, described
from taglio.deploy.processor_needs import lacks
from taglio.deploy.prove import DeployProof, verified
from taglio.deploy.write import SAMPLES_FOLDER, read_samples, write_source
from taglio.errors import BadArtifact, BadOption, MeasurementFailed, one_line
from taglio.flow.confirm import raced_inputs
from taglio.flow.opening import open_work
from taglio.flow.outcome import Outcome
from taglio.flow.promise import Checked, Promise, Verdict, error_on_new_data, files_promise, same_error, speed_promise
from taglio.flow.workspace import DELIVERED, DEPLOY, FLOAT_MODEL, OUTCOME, PLAN, PROFILE, SETUP, load_if_present
from taglio.lab.setup import Setup
from taglio.lab.work import Work
from taglio.memory import size_text
from taglio.model.inputs import input_specs, random_feed
from taglio.model.read import read as read_model
from taglio.plan.result import Plan
from taglio.profile.machine import Machine, describe
from taglio.profile.result import Profile
from taglio.progress import Progress
from taglio.runtimes.session import runtime_version
from taglio.runtimes.way import Way
from taglio.scratch import scratch
from taglio.search.answers import answers_by
from taglio.transaction import held
from taglio.ways.choose import burst_of
from taglio.ways.confirm import Sized, figure, openings
from taglio.ways.result import Figure


@dataclass(frozen=True, slots=True)
class _Record:
    """What a workspace promised. `outcome` is None if its stages were run one at a time, `proof` where nothing was
    recorded."""

    folder: Path
    setup: Setup
    profile: Profile
    plan: Plan
    outcome: Outcome | None
    proof: DeployProof | None
    delivered: DeliveredModel

    @property
    def error(self) -> float | None:
        return self.plan.measured_error if self.outcome is None else self.outcome.plan.error


def check(
    folder: Path, data: Path | None = None, *, machine: Machine | None = None, progress: Progress | None = None
) -> Checked:
    """Whether the promises of the workspace `folder` hold on this `machine` (None: as it is), on the data that they
    were made with or on `data`.

    Raises BadArtifact for a workspace without anything delivered, and BadData for data that do not fit.
    """
    machine = machine or describe()
    with held(folder):
        record = _record(folder)
        files = files_promise(len(record.delivered.sha256), verify.changed_files(record.delivered.folder))
        versions = _versions(record)
        rows = [files, *versions, _processor(record, machine)]
        if any(row.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) for row in rows):  # nothing can be run
            return Checked(tuple(rows))
        opened, settings = _opened(record)
        rows.append(settings)
        if opened is None:
            return Checked(tuple(rows))
        same_processor = machine.processor == record.profile.conditions.machine.processor
        same_platform = same_processor and all(row.then == row.now for row in versions)
        work, lacking = _work(record, data)
        rows += [
            *_samples(record, same_platform=same_platform),
            _error(record, opened, work, lacking, new=data is not None, same_platform=same_platform),
            _speed(record, work, same_processor=same_processor, progress=progress),
        ]
        return Checked(tuple(rows))


def _record(folder: Path) -> _Record:
    if not (folder / f"{PLAN}.json").exists():
        raise BadArtifact(f"{folder}: not a workspace with a plan: give the directory that taglio optimize wrote (-o)")
    plan = artifact.load(folder / f"{PLAN}.json", PLAN, Plan)
    sha256, delivered = plan.model_sha256, described(folder / DEPLOY)
    profile = artifact.load(folder / f"{PROFILE}.json", PROFILE, Profile, model_sha256=sha256)
    setup = artifact.load(folder / f"{SETUP}.json", SETUP, Setup, model_sha256=sha256)
    outcome = load_if_present(folder, OUTCOME, Outcome, sha256)
    proof = load_if_present(folder, DELIVERED, DeployProof, sha256)
    return _Record(folder, setup, profile, plan, outcome, proof, delivered)


def _versions(record: _Record) -> list[Promise]:
    """A row for each runtime of the delivered components."""
    versions = {part.runtime: part.version for part in record.delivered.components}
    rows = []
    for runtime, then in versions.items():
        try:
            now = runtime_version(runtime)
        except BadOption:
            how = f"pip install {runtime}=={then}"
            rows.append(Promise(runtime, then, "not installed", Verdict.UNKNOWN, how))
            continue
        detail = "" if now == then else f"made and verified with {then}: install that, or run taglio optimize again"
        rows.append(Promise(runtime, then, now, Verdict.HOLDS if now == then else Verdict.REPORTED, detail))
    return rows


def _processor(record: _Record, machine: Machine) -> Promise:
    then = record.profile.conditions.machine
    same = (machine.processor, machine.instructions) == (then.processor, then.instructions)
    lacking = lacks(record.plan.assignment().values(), then.instructions, machine.instructions)
    verdict = Verdict.BROKEN if lacking else Verdict.HOLDS if same else Verdict.REPORTED
    return Promise("processor", _named(then), _named(machine), verdict, "; ".join(lacking))


def _named(machine: Machine) -> str:
    return f"{machine.processor} ({', '.join(machine.instructions) or 'no extensions known'})"


def _opened(record: _Record) -> tuple[verify.DeployedModel | None, Promise]:
    """The delivered model, opened with its settings, and whether the runtime applies them."""
    try:
        holds = Promise("settings", "read back", "the same", Verdict.HOLDS)
        return verify.DeployedModel(record.delivered.folder), holds
    except verify.Changed as error:
        return None, Promise("settings", "read back", one_line(error), Verdict.BROKEN, "answers may differ")
    except Exception as error:  # of any kind: it is a runtime's
        problem = f"cannot be opened: {one_line(error, 200)}"
        return None, Promise("settings", "read back", problem, Verdict.BROKEN, "install the earlier versions")


def _work(record: _Record, data: Path | None) -> tuple[Work | None, str]:
    """The source model with its data, or with all of `data` held out; None with the reason if either is gone. The float
    model that the workspace keeps stands in for a source that is gone."""
    setup = record.setup
    if not setup.model or not Path(setup.model).exists():
        setup = replace(setup, model=str(record.folder / FLOAT_MODEL), shapes={}, requantize=False)
    has_data = bool(setup.data) and Path(setup.data).exists()
    if data is None:
        where = f"{setup.data} is gone" if setup.data else "the data came from memory"
        return (open_work(setup), "") if has_data else (None, f"{where}: give data with --data")
    work = open_work(replace(setup, data=str(data), calibration=str(data), labels=""))
    if has_data:  # the limit was kept by the parts that the outputs have on the data of then
        work.kept.put(("parts", work.data.held_out.sha256), open_work(setup).parts)
    return work, ""


def _samples(record: _Record, *, same_platform: bool) -> list[Promise]:
    """Rows for the answers to the delivered samples, and for memory, if samples were delivered."""
    folder = record.delivered.folder / SAMPLES_FOLDER
    if not (folder / verify.SAMPLES).is_file():
        return []
    try:
        report = verified(record.delivered.folder, folder)
    except MeasurementFailed as error:
        return [Promise("samples", "answered", one_line(error), Verdict.BROKEN, "install the earlier versions")]
    off = f"{report.distance:.1e} off"
    verdict = Verdict.HOLDS if not report.problems else Verdict.BROKEN if same_platform else Verdict.REPORTED
    rows = [Promise("samples", f"within {verify.TOLERANCE:.0e}", off, verdict, next(iter(report.problems), ""))]
    then = record.proof and record.proof.peak_memory_bytes
    if then and report.peak_memory_bytes:
        rows.append(Promise("memory", size_text(then), size_text(report.peak_memory_bytes), Verdict.REPORTED))
    return rows


def _error(
    record: _Record, opened: verify.DeployedModel, work: Work | None, lacking: str, *, new: bool, same_platform: bool
) -> Promise:
    limits = record.plan.limits
    metric, then = limits.metric, record.error
    allowed = "" if limits.max_error is None else f" (limit {metric.text(limits.max_error, 2)})"
    before = "not measured" if then is None else f"{metric.text(then, 3)}{allowed}"
    if work is None:
        return Promise("error", before, "not measured", Verdict.UNKNOWN, lacking)

    def run(sample: Sample, _: object) -> Sequence[Any]:
        answer = opened.run({spec.name: sample[spec.name] for spec in work.inputs})
        return [answer[name] for name in work.outputs]

    try:
        answers = answers_by(work, run, limits)
    except Exception as error:  # of any kind: it is a runtime's, or of files that do not fit each other
        problem = f"cannot be run: {one_line(error, 200)}"
        return Promise(
            "error", before, problem, Verdict.BROKEN, "run taglio build again, or install the earlier versions"
        )
    if new or then is None:
        low, high = answers.error_lower, answers.error_upper
        ends = None if low is None or high is None else (low, high)
        verdict, detail = error_on_new_data(answers.judged, ends, limits.max_error)
    else:
        verdict, detail = same_error(then, answers.error, answers.judged, limits.max_error, same_platform=same_platform)
    now = metric.text(answers.error, 3)
    if new and answers.error_upper is not None:
        now = f"{now} (at most {metric.text(answers.error_upper, 2)} on inputs like these)"
    return Promise("error on new data" if new else "error", before, now, verdict, detail)


def _speed(record: _Record, work: Work | None, *, same_processor: bool, progress: Progress | None) -> Promise:
    """The row for the speed-up; for the capacity where the way was chosen for a rate."""
    outcome = record.outcome
    then = None if outcome is None else outcome.speedup if outcome.rate is None else outcome.rate.over_one
    if len(record.delivered.devices) > 1:
        return Promise("speed-up", "for several devices", "not raced", Verdict.REPORTED, "taglio run measures it there")
    if then is None:
        return Promise("speed-up", "none promised", "not raced", Verdict.REPORTED)
    name, detail = "speed-up", ""
    if not isinstance(then, Speedup):
        name, detail = "capacity", "as a multiple of the source model's with one caller"
    model = Path(record.setup.model)
    if not record.setup.model or not model.exists():
        model, detail = record.folder / FLOAT_MODEL, "the source model is gone: raced beside float32.onnx"
    inputs = raced_inputs(work) if work is not None else _inputs_like(record, model)
    now: Speedup | Figure
    try:
        if isinstance(then, Speedup):
            now = _speedup_beside(model, record, inputs, progress)
        else:
            now = _capacity_beside(model, record, inputs, progress)
    except MeasurementFailed as error:
        return Promise(name, str(then), "not measured", Verdict.UNKNOWN, one_line(error, 200))
    return speed_promise(name, then, now, same_processor=same_processor, detail=detail)


def _speedup_beside(source: Path, record: _Record, inputs: Sequence[Sample], progress: Progress | None) -> Speedup:
    """The speed-up of the delivered folder over `source`. Raises MeasurementFailed for what cannot be run."""
    delivered, setup = record.delivered, record.setup
    with scratch() as base, Bench(inputs) as bench:
        write_source(base, source, delivered.inputs, delivered.outputs, setup.threads_of_source)
        return race.confirm(bench, base, record.delivered.folder, setup.run_s, progress=progress)


def _capacity_beside(source: Path, record: _Record, inputs: Sequence[Sample], progress: Progress | None) -> Figure:
    """How many times the capacity of `source`, on all cores with one caller, the delivered folder has in its way, over
    fresh openings of both. Raises MeasurementFailed for what cannot be run."""
    cores, run_s = available_cores(), record.setup.run_s
    burst_s, seconds = burst_of(run_s), race.USUAL.seconds_for(run_s)
    with scratch() as base, Bench(inputs) as bench:
        write_source(base, source, record.delivered.inputs, record.delivered.outputs, cores)
        base_way, way = Way(cores, spinning=True, shared=True), record.delivered.way
        models = [Sized(base_way, {1: base}), Sized(way, {way.joined: record.delivered.folder})]
        opened = openings(bench, models, burst_s, seconds, progress)
    return figure([fresh.ratio(1, 0) for fresh in opened])


def _inputs_like(record: _Record, model: Path) -> Sequence[Sample]:
    """Inputs without the data: the delivered samples, or a random one of the recorded shapes."""
    samples = read_samples(record.delivered.folder)
    if samples:
        return samples
    proto, _ = read_model(model)
    recorded = record.profile.conditions.shapes
    shapes = recorded[0] if recorded else {}
    specs = input_specs(model, proto)
    return [random_feed([replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in specs], seed=0)]
