"""One stage at a time, each from a workspace directory, by the same functions as `optimize`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from taglio import artifact, weights
from taglio.components.build import Manifest, read
from taglio.components.cut import devices_after
from taglio.components.prove import Proof, prove
from taglio.error.doubts import saturating_sums
from taglio.error.loss import Metric, parse_metric
from taglio.error.model import ErrorModel
from taglio.error.switchable import Switchable
from taglio.error.tally import Tally
from taglio.errors import BadArtifact, BadOption
from taglio.flow import workspace
from taglio.flow.answers import answers
from taglio.flow.decide import infeasible, plan_stage, verifier, whole_meter
from taglio.flow.error import loss_limits, open_switchable
from taglio.flow.optimize import build_stage
from taglio.flow.outcome import Quantized
from taglio.flow.transaction import changing, drop, held
from taglio.flow.workspace import (
    COMPONENTS,
    ERROR,
    FLOAT_MODEL,
    MADE_FROM,
    PLAN,
    PROFILE,
    RUN,
    Setup,
    Work,
    covering,
)
from taglio.model.graph import Graph, match, select
from taglio.plan.result import LOCAL, Limits, Plan, placements
from taglio.plan.search import Tried, best
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile, predict
from taglio.profile.stopwatch import Progress
from taglio.quantize.library import DYNAMIC, dynamic, float16, qoperator
from taglio.quantize.precision import Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import parse_scheme
from taglio.run.in_process import Executor, RunReport, time_plan
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session, sums_saturate
from taglio.scratch import scratch

# Inputs, of different shapes where there are, on which components must equal the whole.
PROVEN = 8


def reopen_profiled(folder: Path) -> tuple[Work, Profile]:
    """The workspace, with the blocks float that failed in int8 under its profile's scheme, and the profile."""
    work = workspace.reopen(folder)
    path = folder / f"{PROFILE}.json"
    measured = artifact.load(path, PROFILE, Profile, model_sha256=work.model.sha256)
    fits(path, measured, work.graph, "profile")
    return work.settled(measured.scheme), measured


def fits(path: Path, value: Profile | ErrorModel | Plan, graph: Graph, stage: str) -> None:
    """Raise BadArtifact where an artifact is of other blocks than the model has."""
    wrong = value.misfit(graph)
    if wrong:
        raise BadArtifact(f"{path}: does not fit the model ({wrong}): run taglio {stage} again")


def error_model(work: Work, measured: Profile) -> ErrorModel:
    """The workspace's error model. Raises BadArtifact where it is of another scheme, metric or data."""
    path = work.folder / f"{ERROR}.json"
    model = artifact.load(path, ERROR, ErrorModel, model_sha256=work.model.sha256)
    for what, has, where, wanted in (
        ("scheme", str(model.scheme), "profile", str(measured.scheme)),
        ("metric", model.metric.name, "workspace", parse_metric(work.setup.metric).name),
        ("data", model.data_sha256[:12], "workspace", work.data.held_out.sha256[:12]),
    ):
        if has != wanted:
            raise BadArtifact(f"{path}: is of {what} {has}, the {where} of {wanted}: run taglio error again")
    fits(path, model, work.graph, "error")
    return model


def plan(
    folder: Path,
    limits_of: Callable[[Graph], Limits],
    *,
    pins: Sequence[str] = (),
    cuts: Sequence[str] = (),
    devices: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[Work, Plan]:
    """Solve, measure the error, and keep the fastest plan by prediction that holds; devices are placed by hand.

    `pins` are DEVICE=PATTERN, `cuts` tensors that separate `devices` in order. Raises BadOption for contradictions.
    """
    with changing(folder) as staged:
        work, measured = reopen_profiled(staged)
        model = error_model(work, measured)
        limits = loss_limits(work, limits_of(work.graph))
        places = place(work.graph, pins, cuts, devices)
        builder = work.builder(measured.scheme, progress)
        switchable = open_switchable(work, builder, measured.scheme)
        chosen = _plan_that_holds(work, builder, switchable, measured, model, limits, progress)
        placed = placements(work.graph, chosen.assignment(), places)
        result = replace(chosen, placements=placed, shapes=work.measured_shapes)
        keep_plan(work, result)
    return replace(work, folder=folder), result


def keep_plan(work: Work, plan: Plan) -> None:
    """Keep a plan in the workspace; what was made from another one goes."""
    path = work.folder / f"{PLAN}.json"
    try:
        before = artifact.load(path, PLAN, Plan, model_sha256=work.model.sha256).fingerprint()
    except BadArtifact:
        before = ""
    if before != plan.fingerprint():
        drop(work.folder, *MADE_FROM[PLAN])
    artifact.save(path, PLAN, work.model.sha256, plan)


def _plan_that_holds(
    work: Work,
    builder: QdqBuilder,
    switchable: Switchable,
    measured: Profile,
    model: ErrorModel,
    limits: Limits,
    progress: Progress | None,
) -> Plan:
    """The fastest plan by prediction whose error, as it is deployed, holds on every held-out input."""
    meter = verifier(work, switchable)
    full = whole_meter(work, switchable, meter)
    tried = plan_stage(work, measured, model, limits, meter, progress, full=full)
    chosen = _first_that_holds(work, builder, tried, full.metric, limits)
    if chosen is None and full is not meter:
        tried = plan_stage(work, measured, model, limits, full, progress)
        chosen = _first_that_holds(work, builder, tried, full.metric, limits)
    if chosen is None:
        raise infeasible(limits, min(each.error for each in tried))
    return chosen


def _first_that_holds(
    work: Work, builder: QdqBuilder, tried: Sequence[Tried], metric: Metric, limits: Limits
) -> Plan | None:
    for each in best(tried, len(tried)):
        built = partial(builder.build, each.plan.assignment())
        answered = answers(work, {"plan": built}, metric)["plan"]
        if limits.max_error is None or answered.judged <= limits.max_error:
            return replace(each.plan, measured_error=answered.error)
    return None


def place(graph: Graph, pins: Sequence[str], cuts: Sequence[str], devices: Sequence[str]) -> dict[str, str]:
    """Device of every block from --cut or --pin."""
    for name in [*devices, *(pin.partition("=")[0] for pin in pins)]:
        if "/" in name or "\\" in name or name.strip(". ") == "":
            raise BadOption(f'device "{name}": a name may not be empty, or a path')
    if devices and not cuts:
        raise BadOption(f"--devices {','.join(devices)} names what --cut separates: give a --cut TENSOR")
    if cuts:
        if pins:
            raise BadOption("--cut and --pin both place blocks: use one of them")
        names = list(devices) or [f"device{index}" for index in range(len(cuts) + 1)]
        return devices_after(graph, list(cuts), names)
    result = {block.name: LOCAL for block in graph.blocks}
    pinned: dict[str, str] = {}
    for device, hits in matches(graph, "--pin", pins):
        for name in hits:
            if pinned.get(name, device) != device:
                raise BadOption(f"block {name} is pinned to {pinned[name]} and to {device}: drop one of the pins")
            pinned[name] = device
    return result | pinned


def matches(graph: Graph, option: str, texts: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Blocks by device from DEVICE=PATTERN. Raises BadOption for a pattern that matches nothing."""
    found = []
    for text in texts:
        device, _, pattern = text.partition("=")
        if not device or not pattern:
            raise BadOption(f'{option} "{text}": write DEVICE=PATTERN')
        hits = [block.name for block in graph.blocks if fnmatchcase(block.name, pattern)]
        if not hits:
            raise BadOption(f'{option} "{text}": the pattern matches none of {len(graph.blocks)} blocks')
        found.append((device, hits))
    return found


def _known_plan(folder: Path, work: Work, measured: Profile) -> Plan:
    path = folder / f"{PLAN}.json"
    known = artifact.load(path, PLAN, Plan, model_sha256=work.model.sha256)
    if known.scheme != measured.scheme:
        raise BadArtifact(
            f"{path}: is of scheme {known.scheme}, the profile of {measured.scheme}: run taglio plan again"
        )
    fits(path, known, work.graph, "plan")
    return known


def build(folder: Path, progress: Progress | None = None) -> tuple[Manifest, Proof]:
    """Write the components of the folder's plan, and prove on held-out inputs that together they equal the whole."""
    with changing(folder) as staged:
        work, measured = reopen_profiled(staged)
        known = _known_plan(staged, work, measured)
        builder = work.builder(measured.scheme, progress)
        manifest = build_stage(work, builder, known)
        whole = builder.build(known.assignment(), known.wire_only(work.graph))
        proof = prove(staged / COMPONENTS, manifest, whole, covering(work.data.held_out.samples)[:PROVEN])
    return manifest, proof


def run(folder: Path, runs: int, progress: Progress | None = None, runtime: str | None = None) -> RunReport:
    """Time the built components beside the float model, both in `runtime` (None: in that of the profile)."""
    with held(folder):
        return _run(folder, runs, progress, runtime)


def _run(folder: Path, runs: int, progress: Progress | None, runtime: str | None) -> RunReport:
    work, measured = reopen_profiled(folder)
    known = _known_plan(folder, work, measured)
    manifest = read(folder / COMPONENTS, model_sha256=work.model.sha256)
    if manifest.plan_sha256 != known.fingerprint():
        raise BadArtifact(f"{folder / COMPONENTS}: was built from another plan: run taglio build again")
    options = work.setup.options()
    profiled = next(each for each in measured.runs if each.name == FLOAT_RUN).wall.median_s
    # A plan for a cluster predicts its own devices and links: here it runs on neither.
    expected = (
        predict(measured, work.graph, known.assignment()).total_s if known.usage else known.predicted_latency_s.value
    )
    result = time_plan(
        Executor(folder / COMPONENTS, manifest, options, runtime or measured.conditions.runtime),
        folder / FLOAT_MODEL,
        work.typical,
        options,
        runs,
        predicted_s=expected,
        profiled_float_s=profiled,
        progress=progress,
    )
    result = replace(result, here=bool(known.usage), profiled_in=measured.conditions.runtime)
    artifact.save(folder / f"{RUN}.json", RUN, work.model.sha256, result)
    return result


def quantize(
    setup: Setup, method: str, blocks: str, also: Sequence[str], out: Path, progress: Progress | None = None
) -> Quantized:
    """Quantise the chosen blocks under `setup.scheme` into one ONNX file; its error is measured on held-out inputs.

    `also` gives other blocks another scheme, as SCHEME=PATTERN; later ones win.
    """
    with scratch() as folder:  # what calibration keeps is nothing that was asked for
        return _quantize(folder, setup, method, blocks, also, out, progress)


def _quantize(
    folder: Path,
    setup: Setup,
    method: str,
    blocks: str,
    also: Sequence[str],
    out: Path,
    progress: Progress | None,
) -> Quantized:
    scheme = setup.scheme
    if scheme is None:
        raise BadOption("--scheme auto needs a bound to choose by: name a scheme, or use taglio optimize")
    work = workspace.open_only(folder, setup)
    if method == "static" and scheme.format == "qdq":
        work = work.settled(scheme, progress)
    names = select(work.graph, blocks)
    if not names:
        raise BadOption(f'--blocks "{blocks}" chooses no block of {work.model.name}')
    used = [] if method == "float16" else [scheme]
    if method == "float16":
        proto = float16(work.model, work.graph, names)
    elif method == "dynamic":
        if ":" in blocks or blocks == "all":  # a rule, not names: of its blocks those that have such a form
            names = tuple(name for name in names if work.graph.block(name).kind.split("+")[0] in DYNAMIC)
        proto = dynamic(work.model, work.graph, names, scheme)
    else:
        assignment = {name: Precision("int8", scheme, "whole") for name in names}
        for text in also:
            other, _, pattern = text.partition("=")
            if not pattern:
                raise BadOption(f'--also "{text}": write SCHEME=PATTERN, such as qdq-s8s8-sym-pc=*head*')
            for name in match(work.graph, [pattern]):
                assignment[name] = Precision("int8", parse_scheme(other), "whole")
        used = list(dict.fromkeys(each.scheme for each in assignment.values() if each.scheme is not None))
        methods = {each.calibration for each in used}
        ranges: dict[str, Ranges] = {each: work.measure_ranges(each, progress) for each in methods}
        if scheme.format == "qoperator":
            if also:
                raise BadOption("--also mixes schemes in the qdq format only: use a qdq scheme")
            proto = qoperator(work.model, work.graph, names, scheme, ranges[scheme.calibration])
        else:
            proto = QdqBuilder(work.model, work.graph, ranges).build(assignment)
        names = tuple(assignment)
    before = open_session(work.model.proto, SessionOptions(1), label=work.model.name)
    after = open_session(proto, SessionOptions(1), label=str(out))
    total = Tally(work.parts, watched=True)
    wanted = list(work.model.outputs)
    for sample in covering(work.data.held_out.samples)[:16]:
        total.add(run_session(before, wanted, sample, setup.data), run_session(after, wanted, sample, setup.data))
    artifact.write_model(out, proto)
    saturates = sums_saturate()
    return Quantized(
        str(out),
        method,
        len(names),
        len(work.graph.candidates()),
        weights.size_bytes(proto),
        weights.size_bytes(work.model.proto),
        max(each.loss for each in total.parts()),
        tuple(note for each in used if (note := saturating_sums(each, saturates))),
        total.parts(),
    )
