"""Plan workspaces on a cluster: read their profiles, place them, measure the error, keep the plans. Solves nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path

from taglio import artifact
from taglio.cluster.devices import Cluster, Device
from taglio.error.model import ErrorModel
from taglio.errors import BadArtifact, BadOption, Infeasible
from taglio.flow.answers import answers
from taglio.flow.decide import verifier, whole_meter
from taglio.flow.error import loss_limits, open_switchable
from taglio.flow.stages import error_model, keep_plan, reopen_profiled
from taglio.flow.workspace import PLAN, PROFILE, Work
from taglio.model.graph import Graph
from taglio.plan.objective import Objective
from taglio.plan.one_machine import noise_limits
from taglio.plan.place import GAP, Answer, Running, place
from taglio.plan.result import Limits, Plan
from taglio.plan.search import search_by
from taglio.plan.workload import Workload, in_components, scaled
from taglio.profile.result import Profile
from taglio.profile.stopwatch import Progress
from taglio.quantize.qdq import QdqBuilder

CLUSTER = "cluster"
_ROUNDS = 5
# Looser than a plan needs by so much, so that rounding does not forbid it.
_ROUNDING = 1.001


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The cluster that a plan was made for, as it was written."""

    file: str
    text: str
    scenario: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A model to be placed: its workspace, error model, limits and requests a second."""

    folder: Path
    work: Work
    measured: Profile
    error: ErrorModel
    limits: Limits
    rate_per_s: float | None

    def workload(self, cluster: Cluster, slack: float = 1.0) -> Workload:
        """What the planner needs of it. Raises BadArtifact for a device without a profile."""
        bound = self.limits.max_error
        bounds = None if bound is None else noise_limits(self.error, bound, slack)
        measured = device_profiles(self.folder, self.work, cluster, self.measured)
        profiles = {device: in_components(profile) for device, profile in measured.items()}
        name = self.folder.name
        return Workload(name, self.work.graph, profiles, self.error, self.limits, self.rate_per_s, bounds)


def candidate(folder: Path, limits_of: Callable[[Graph], Limits], rate_per_s: float | None = None) -> Candidate:
    """A model from its folder; an error bound comes in the metric's unit and becomes a loss."""
    work, measured = reopen_profiled(folder)
    error, limits = error_model(work, measured), loss_limits(work, limits_of(work.graph))
    return Candidate(folder, work, measured, error, limits, rate_per_s)


def device_profiles(folder: Path, work: Work, cluster: Cluster, measured: Profile) -> dict[str, Profile]:
    """A profile for every device, measured or scaled. Raises BadArtifact for a missing or unfit one, or one taken in
    another runtime than the device's; seconds that are another device's, scaled, are an assumption and may be."""
    found = {}
    for device in cluster.devices:
        file, factor = source(cluster, device)
        if file == f"{PROFILE}.json":
            known = measured
        else:
            try:
                known = artifact.load(folder / file, PROFILE, Profile, model_sha256=work.model.sha256)
            except BadArtifact as error:
                raise BadArtifact(
                    f'device "{device.name}" has no profile of {work.model.name} ({error}); a cluster file names files '
                    f"in {folder}: copy what taglio profile wrote there, or write "
                    'scale = { of = "profile.json", factor = 3.0 }'
                ) from None
        if known.scheme != measured.scheme:
            raise BadArtifact(
                f"{folder / file}: is of scheme {known.scheme}, that of this machine of {measured.scheme}: "
                "profile both under one --scheme"
            )
        if device.scale_of is None and known.conditions.runtime != device.runtime:
            raise BadArtifact(
                f'{folder / file}: was taken in {known.conditions.runtime}, device "{device.name}" runs '
                f"{device.runtime}: profile it with --runtime {device.runtime}, or change runtime in the cluster file"
            )
        # A component elsewhere waits for what it reads, unlike a run of a profile, which follows another.
        if device.name != cluster.start:
            known = replace(known, overhead_s=known.overhead_s + known.conditions.waking_s)
        found[device.name] = known if factor == 1.0 else scaled(known, factor)
    return found


def source(cluster: Cluster, device: Device) -> tuple[str, float]:
    """The profile file that a device's times come from, and what they are multiplied by."""
    factor = 1.0
    names = {each.name: each for each in cluster.devices}
    while device.scale_of is not None:
        factor *= device.scale_factor
        if device.scale_of not in names:
            return device.scale_of, factor
        device = names[device.scale_of]
    assert device.profile is not None, "the cluster file gives every device times"
    return device.profile, factor


def place_models(
    candidates: Sequence[Candidate],
    cluster: Cluster,
    objective: Objective,
    *,
    running: Running | None = None,
    gap: float = GAP,
    time_limit_s: float = 20.0,
    used: ClusterFile | None = None,
    progress: Progress | None = None,
) -> Answer:
    """The best plans whose measured errors hold, kept in each model's folder. Raises Infeasible."""
    for each in candidates:  # opening a model takes long: first what can be refused without
        device_profiles(each.folder, each.work, cluster, each.measured)
    meters = [_Meter(each, progress) for each in candidates]
    refusals: list[Infeasible] = []

    def make(slacks: Sequence[float]) -> Answer | None:
        works = [each.workload(cluster, slack) for each, slack in zip(candidates, slacks, strict=True)]
        try:
            return place(works, cluster, objective, running=running, gap=gap, time_limit_s=time_limit_s / 2)
        except Infeasible as error:
            refusals.append(error)
            return None

    def errors(answer: Answer) -> list[float]:
        return [meter.error(plan) for meter, plan in zip(meters, answer.plans, strict=True)]

    bounds = [inf if each.limits.max_error is None else each.limits.max_error for each in candidates]
    if min(bounds) == inf:
        answer = make([1.0] * len(candidates))
        if answer is None:
            raise refusals[0]
    else:
        # What runs may break the bound as predicted, and hold as measured: it is among the first that may be chosen.
        slacks = [1.0] * len(candidates)
        for index, (plan, bound) in enumerate(zip(running.plans if running is not None else (), bounds, strict=False)):
            if 0.0 < bound < inf and isfinite(plan.predicted_error.high):
                slacks[index] = max(1.0, _ROUNDING * plan.predicted_error.high / bound)
        tried = search_by(make, errors, bounds, rounds=_ROUNDS, slacks=slacks, progress=progress)
        if not tried:
            raise refusals[0]
        held = [
            each for each, found in tried if all(error <= bound for error, bound in zip(found, bounds, strict=True))
        ]
        if not held:
            raise Infeasible(_none_holds(candidates, tried))
        answer = min(held, key=lambda each: each.value)
    plans = tuple(
        replace(plan, measured_error=meter.error(plan)) for meter, plan in zip(meters, answer.plans, strict=True)
    )
    for each, plan in zip(candidates, plans, strict=True):
        keep_plan(each.work, plan)
        if used is not None:
            artifact.save(each.folder / f"{CLUSTER}.json", CLUSTER, each.work.model.sha256, used)
    return replace(answer, plans=plans)


def _none_holds(candidates: Sequence[Candidate], tried: Sequence[tuple[Answer, Sequence[float]]]) -> str:
    """Why no plan that was tried will do: how near the nearest comes, and whose bound it breaks most."""

    def shares(errors: Sequence[float]) -> list[tuple[float, str]]:
        bounded = [(error, each) for error, each in zip(errors, candidates, strict=True) if each.limits.max_error]
        return [(error / (each.limits.max_error or 1.0), each.folder.name) for error, each in bounded] or [(inf, "")]

    share, name = min(max(shares(errors)) for _, errors in tried)
    whose = f" of {name}" if len(candidates) > 1 and name else ""
    return f"no plan that was tried keeps the error bound{whose}, the best reaches {share:.2f} x it: raise --max-error"


def loosen_error(workload: Workload, factor: float) -> Workload:
    """A workload whose error may be `factor` times as large; what measuring has loosened already stays so."""
    assert workload.error is not None, "models come here with an error model"
    known = workload.noise_limits or {}
    bounds = {
        each.output: each.noise_limit(factor * each.from_noise(known[each.output]))
        for each in workload.error.outputs
        if each.output in known
    }
    limits = replace(workload.limits, max_error=factor * (workload.limits.max_error or 0.0))
    return replace(workload, limits=limits, noise_limits=bounds)


def with_error(workload: Workload, max_error: float) -> Workload:
    """A workload with another error bound."""
    assert workload.error is not None, "models come here with an error model"
    bounds = noise_limits(workload.error, max_error, 1.0)
    return replace(workload, limits=replace(workload.limits, max_error=max_error), noise_limits=bounds)


def reread(folder: Path, work: Work, name: str) -> Plan:
    """A plan of the same model from a file."""
    path = Path(name) if Path(name).exists() else folder / name
    known = artifact.load(path, PLAN, Plan, model_sha256=work.model.sha256)
    if {each.block for each in known.placements} != {block.name for block in work.graph.blocks}:
        raise BadOption(f"{path}: places other blocks than {work.model.name} has: plan again without --from")
    return known


class _Meter:
    """Measures plans' errors on all held-out inputs; what is quantised for the wire alone by running the very model."""

    def __init__(self, each: Candidate, progress: Progress | None) -> None:
        self._work, scheme = each.work, each.measured.scheme
        self._builder: QdqBuilder = each.work.builder(scheme, progress)
        switchable = open_switchable(each.work, self._builder, scheme)
        self._meter = whole_meter(each.work, switchable, verifier(each.work, switchable))
        self._known: dict[str, float] = {}

    def error(self, plan: Plan) -> float:
        key = plan.fingerprint()
        if key not in self._known:
            wires = plan.wire_only(self._work.graph)
            if wires:
                built = partial(self._builder.build, plan.assignment(), wires)
                self._known[key] = answers(self._work, {"plan": built}, self._meter.metric)["plan"].judged
            else:
                self._known[key] = self._meter.error(plan.assignment())
        return self._known[key]
