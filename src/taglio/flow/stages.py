"""One stage at a time on a workspace directory: read artifacts, call the stage, write its artifact."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from taglio import artifact
from taglio.components.build import Manifest
from taglio.components.prove import Proof
from taglio.error.loss import parse_metric
from taglio.error.model import ErrorModel
from taglio.errors import BadOption
from taglio.flow import workspace
from taglio.flow.another_limit import for_another_limit
from taglio.flow.error import error_model, error_of_workspace
from taglio.flow.opening import Model
from taglio.flow.optimize import optimize as optimize_model
from taglio.flow.outcome import Quantized
from taglio.flow.profile import profile_model
from taglio.flow.quantize import quantize as quantize_model
from taglio.flow.result import Delivered, Result, deliver, result_of, write
from taglio.flow.run import run_model
from taglio.flow.run import run_steps as time_run_steps
from taglio.flow.workspace import COMPONENTS, ERROR, MADE_FROM, PROFILE, RUN, SETUP
from taglio.lab.build import Built, read
from taglio.lab.build import build as build_plan
from taglio.lab.work import Work
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.plan.tables import Tables
from taglio.profile.result import Profile
from taglio.progress import Progress
from taglio.run.in_process import RunReport, StepsReport
from taglio.runtimes.onnxruntime import NAME
from taglio.search.decide import decide
from taglio.search.limits import Bounds, limits_for, user_limits
from taglio.transaction import changing, drop, held


def optimize(folder: Path, model: Path, data: Path, *, samples: bool = True, **given: Any) -> tuple[Result, Delivered]:
    """The whole flow into a workspace; `given` are arguments of taglio.optimize, `samples` that of Result.save. An
    older run is replaced at the end; its measured errors are reused. Raises Busy if another command is using
    `folder`."""
    with changing(folder, create=True) as draft:
        result = optimize_model(model, data, reuse=workspace.last_error(draft), **given)
        return result, write(draft, result, with_samples=samples)


def profile(
    folder: Path, model: Path, data: Path, *, progress: Progress | None = None, **given: Any
) -> tuple[Graph, Profile]:
    """Measure times into a new workspace; `given` are arguments of taglio.Model and taglio.profile."""
    asked = {name: given.pop(name) for name in ("scheme", "max_error", "effort") if name in given}
    with changing(folder, create=True) as draft:
        work = Model(model, data, **given).telling(progress)
        result = profile_model(work, **asked)
        sha256, graph = work.model.sha256, work.settled(result.scheme).graph
        setup = replace(work.setup, scheme=result.scheme, runtime=result.conditions.runtime)
        workspace.begin(draft, sha256, setup, work.model.proto, graph, workspace.calibrated(work))
        artifact.save(draft / f"{PROFILE}.json", PROFILE, sha256, result)
    return graph, result


def error(
    folder: Path,
    *,
    metric: str | None = None,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> ErrorModel:
    """Measure errors under `metric` (None: the workspace's)."""
    with changing(folder) as draft:
        work, measured = workspace.reopen_profiled(draft)
        sha256 = work.model.sha256
        if metric is not None:
            parse_metric(metric)
            work = work.but(setup=replace(work.setup, metric=metric))
            artifact.save(draft / f"{SETUP}.json", SETUP, sha256, work.setup)
        there = work.in_place(NAME)  # with all pairs: plans may be for several devices
        result = error_model(there, measured, effort=effort, progress=progress)
        drop(draft, *MADE_FROM[ERROR])
        artifact.save(draft / f"{ERROR}.json", ERROR, sha256, result)
    return result


def plan(
    folder: Path,
    *,
    max_error: Bounds | None = None,
    min_score: Bounds | None = None,
    max_drop: Bounds | None = None,
    keep_float: Sequence[str] = (),
    force_int8: Sequence[str] = (),
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Plan:
    """Plan as taglio.plan_model does; the profile and the error model are updated with the measurements of plans."""
    wanted = user_limits(max_error, min_score, max_drop)
    with changing(folder) as draft:
        work, measured = workspace.reopen_profiled(draft)
        model = error_of_workspace(draft, work, measured)
        limits = limits_for(work, wanted, keep_float, force_int8)
        by_place = {measured.conditions.runtime: measured}
        decision = decide(work.telling(progress).at(effort), by_place, model, limits)
        artifact.save(draft / f"{PROFILE}.json", PROFILE, work.model.sha256, decision.profile)
        artifact.save(draft / f"{ERROR}.json", ERROR, work.model.sha256, decision.error)
        workspace.keep_plan(draft, decision.plan)
    return decision.plan


def build(folder: Path, *, samples: bool = True, progress: Progress | None = None) -> tuple[Manifest, Proof, Delivered]:
    """Write the components of the workspace's plan, and prove on held-out inputs that together they equal the whole
    model; then deploy/, proven in a process without taglio. `samples` is that of Result.save."""
    with changing(folder) as draft:
        work, measured = workspace.reopen_profiled(draft)
        chosen = workspace.read_plan(draft, work, measured)
        built = build_plan(work, chosen, progress=progress)
        result = result_of(work, measured.scheme, Tables(work.graph, measured), chosen, built)
        manifest, delivered = deliver(draft, result, with_samples=samples)
    assert built.proof is not None, "build proves"
    return manifest, built.proof, delivered


def build_for_limit(
    folder: Path,
    *,
    max_error: Bounds | None = None,
    min_score: Bounds | None = None,
    max_drop: Bounds | None = None,
    samples: bool = True,
    progress: Progress | None = None,
) -> tuple[Result, Delivered]:
    """Replace what `optimize` delivered by the fastest plan for other limits, from what it measured;
    those that are not given stay. Raises Infeasible if no plan keeps them."""
    wanted = user_limits(max_error, min_score, max_drop)
    with changing(folder) as draft:
        result = for_another_limit(draft, wanted, progress)
        return result, write(draft, result, with_samples=samples)


def run(
    folder: Path, runs: int | None = None, runtime: str | None = None, progress: Progress | None = None
) -> RunReport:
    """Time the built components beside the float model, both in `runtime` (None: the plan's)."""
    with held(folder):
        work, measured, chosen, built = _reopen_built(folder)
        result = run_model(work, measured, chosen, built, runs=runs, runtime=runtime, progress=progress)
        artifact.save(folder / f"{RUN}.json", RUN, work.model.sha256, result)
    return result


def run_steps(folder: Path, steps: int, runtime: str | None = None, progress: Progress | None = None) -> StepsReport:
    """Time the steps of a session beside the float model's, both in `runtime` (None: the plan's)."""
    with held(folder):
        work, measured, chosen, built = _reopen_built(folder)
        return time_run_steps(work.telling(progress), measured, chosen, built, steps=steps, runtime=runtime)


def _reopen_built(folder: Path) -> tuple[Work, Profile, Plan, Built]:
    """What a workspace holds after its build stage. Raises BadArtifact if the components are of another plan."""
    work, measured = workspace.reopen_profiled(folder)
    chosen = workspace.read_plan(folder, work, measured)
    built = read(folder / COMPONENTS, work.model.sha256)
    workspace.built_from(folder, built, chosen)
    return work, measured, chosen, built


def quantize(
    out: Path,
    model: Path,
    data: Path,
    *,
    method: str = "static",
    scheme: str = "",
    blocks: str = "all",
    progress: Progress | None = None,
    **given: Any,
) -> Quantized:
    """Quantise chosen blocks under one scheme into the file `out`; `given` are arguments of taglio.Model. Raises
    BadOption if `out` is the model itself, or its data."""
    sources = {"model": model, "data": data, "calibration data": given.get("calibration")}
    for name, path in sources.items():
        if path is not None and out.resolve() == Path(path).resolve():
            raise BadOption(f"`out` {out} is the {name} itself: write to another file")
    work = Model(model, data, threads=1, **given)
    proto, result = quantize_model(work, method, scheme=scheme, blocks=blocks, progress=progress)
    artifact.write_model(out, proto)
    return replace(result, path=str(out))
