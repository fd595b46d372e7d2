"""Plan models on a cluster: place them, measure the error, place again. Times nothing, writes nothing."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path

from taglio.arguments import not_negative, positive
from taglio.cluster import file as cluster_file
from taglio.cluster.devices import Cluster, Device
from taglio.cluster.planning.place import Answer, Running
from taglio.cluster.planning.place import place as solve
from taglio.cluster.planning.workload import Objective, Workload, parse_objective
from taglio.error.model import ErrorModel
from taglio.errors import BadArtifact, Infeasible
from taglio.flow.answers import answers
from taglio.flow.by_hand import matches, pinned_devices
from taglio.flow.explore import meters
from taglio.flow.limits import Bounds, limits_for, user_limits
from taglio.flow.pareto import Axis, Front, front, with_error
from taglio.flow.search import search_by
from taglio.flow.work import Work, require_own
from taglio.flow.workspace import PROFILE
from taglio.model.graph import Graph
from taglio.plan.result import GAP, Limits, Plan
from taglio.profile.result import Profile, in_components, scaled
from taglio.progress import Progress
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.processor import instructions, sums_saturate

_ROUNDS = 5
# Loosens a limit slightly, so that rounding does not forbid a plan exactly at it.
_ROUNDING = 1.001


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A model to be placed: its work, error model, limits and request rate (`rate_per_s`), and profiles by the name of
    a device or of the file named in the cluster file; `measured` is the profile of this machine."""

    name: str
    work: Work
    measured: Profile
    error: ErrorModel
    limits: Limits
    rate_per_s: float | None
    profiles: Mapping[str, Profile]

    def workload(self, cluster: Cluster, slack: float = 1.0) -> Workload:
        """The planner's view of the model. Raises BadArtifact for a device without a profile."""
        graph, limits = self.work.graph.placeable(self.limits.max_steps), self.limits
        profiles = {device: in_components(profile, graph) for device, profile in self.device_profiles(cluster).items()}
        work = Workload(self.name, graph, profiles, self.error, limits, self.rate_per_s)
        return with_error(work, limits.max_error, slack)

    def device_profiles(self, cluster: Cluster) -> dict[str, Profile]:
        """A profile for every device, measured or scaled, in the device's runtime. Raises BadArtifact for a missing or
        unsuitable profile, or one taken in another runtime than the cluster file gives the device; scaled times of
        another device are an assumption and may be of another runtime."""
        found, owners = {}, {device.profile: device.name for device in cluster.devices}
        for device in cluster.devices:
            file, factor = source(cluster, device)
            known = self.profiles.get(owners.get(file, file)) or self.profiles.get(file)
            if known is None and file == f"{PROFILE}.json":
                known = self.measured
            if known is None:
                raise BadArtifact(
                    f'device "{device.name}" has no profile of {self.work.name}: put the one measured there in the '
                    f"workspace directory, as {file} there, or write in the cluster file "
                    'scale = { of = "profile.json", factor = 3.0 }'
                )
            if known.scheme != self.measured.scheme:
                raise BadArtifact(
                    f"{file}: has scheme {known.scheme}, but this machine's profile has {self.measured.scheme}: "
                    "profile both under one `scheme`"
                )
            if device.runtime and device.runtime != known.conditions.runtime:
                if not device.assumed:
                    raise BadArtifact(
                        f'{file}: was taken in {known.conditions.runtime}, but device "{device.name}" runs '
                        f"{device.runtime}: profile it with `runtime` {device.runtime}, or leave runtime out of the "
                        "cluster file"
                    )
                known = replace(known, conditions=replace(known.conditions, runtime=device.runtime))
            # A component on another device waits for its inputs; the runs of a profile follow each other directly.
            if device.name != cluster.start:
                known = replace(known, overhead_s=known.overhead_s + known.conditions.waking_s)
            found[device.name] = known if factor == 1.0 else scaled(known, factor)
        return found


def candidate(
    work: Work,
    profile: Profile,
    error: ErrorModel,
    *,
    max_error: Bounds | None = None,
    min_score: Bounds | None = None,
    max_drop: Bounds | None = None,
    rate_per_s: float | None = None,
    profiles: Mapping[str, Profile] | None = None,
    name: str = "",
    keep_float: Sequence[str] = (),
    force_int8: Sequence[str] = (),
    pins: Sequence[str] = (),
    keep_off: Sequence[str] = (),
    max_latency_s: float | None = None,
    max_energy_j: float | None = None,
    min_rate_per_s: float | None = None,
    max_steps: int = 1,
) -> Candidate:
    """A model to be placed on a cluster, under limits (`max_error`, `min_score`, `max_drop`: as in `taglio.optimize`).
    Devices must have memory for the states of a session of `max_steps` steps.

    `profile` is of this machine, `profiles` those of other devices by name. `pins` and `keep_off` are DEVICE=PATTERN.
    Raises BadOption.
    """
    amounts = {
        "rate_per_s": rate_per_s,
        "max_latency_s": max_latency_s,
        "max_energy_j": max_energy_j,
        "min_rate_per_s": min_rate_per_s,
        "max_steps": max_steps,
    }
    for argument, value in amounts.items():
        if value is not None:
            positive(argument, value)
    for each in (profile, *(profiles or {}).values()):
        require_own(work, profile=each, error=error)
    work = work.settled(profile.scheme)
    limits = replace(
        limits_for(work, user_limits(max_error, min_score, max_drop), keep_float, force_int8),
        device_pins=tuple(pinned_devices(work.graph, pins, keep_off).items()),
        device_exclusions=by_device(work.graph, "keep_off", keep_off),
        max_latency_s=max_latency_s,
        max_energy_joules=max_energy_j,
        min_rate_per_s=min_rate_per_s,
        max_steps=max_steps,
    )
    return Candidate(name or work.name, work, profile, error, limits, rate_per_s, profiles or {})


def by_device(graph: Graph, argument: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(block, device) of every block that DEVICE=PATTERN matches."""
    return tuple((name, device) for device, names in matches(graph, argument, texts) for name in names)


def source(cluster: Cluster, device: Device) -> tuple[str, float]:
    """The profile file with a device's times, and the factor on them."""
    factor = 1.0
    names = {device.name: device for device in cluster.devices}
    while device.scale_of is not None:
        factor *= device.scale_factor
        if device.scale_of not in names:
            return device.scale_of, factor
        device = names[device.scale_of]
    assert device.profile is not None, "the cluster file gives every device times"
    return device.profile, factor


def place(
    candidates: Candidate | Sequence[Candidate],
    cluster: Cluster | str | os.PathLike[str],
    *,
    objective: str | Objective = "latency",
    running: Running | None = None,
    gap: float = GAP,
    time_limit_s: float = 20.0,
    progress: Progress | None = None,
) -> Answer:
    """The best plans of models on the devices of a cluster whose measured errors keep the limits.

    `cluster` is the path of a cluster file or a Cluster, `objective` "latency", "throughput", "energy", "sum", weights
    ("latency=1,energy=0.5") or several in order ("throughput,energy"). `running` are deployed plans whose blocks are
    moved only if that pays; the search ends within `gap` of the proven optimum or after `time_limit_s`. Nothing is
    timed here: times come from the profiles. Raises Infeasible.

    >>> answer = taglio.place(taglio.candidate(model, profile, error, max_error=0.02), cluster, time_limit_s=2.0)
    >>> answer.plans[0].start
    'camera'
    """
    not_negative("gap", gap)
    positive("time_limit_s", time_limit_s)
    candidates = [candidates] if isinstance(candidates, Candidate) else list(candidates)
    if not isinstance(cluster, Cluster):
        cluster = cluster_file.load(Path(cluster))
    if isinstance(objective, str):
        objective = parse_objective(objective)
    if objective.weighs_energy or any(candidate.limits.max_energy_joules is not None for candidate in candidates):
        cluster.refuse_without_watts()
    for each in candidates:  # measuring errors is slow: first refuse what needs no measurement
        for _, device in (*each.limits.device_pins, *each.limits.device_exclusions):
            cluster.device(device)
        each.device_profiles(cluster)
    meters = [_Meter(replace(candidate, work=candidate.work.telling(progress))) for candidate in candidates]
    refusals, made, deadline = list[Infeasible](), list[Answer](), time.perf_counter() + time_limit_s

    def make(slacks: Sequence[float]) -> Answer | None:
        works = [candidate.workload(cluster, slack) for candidate, slack in zip(candidates, slacks, strict=True)]
        try:
            made.append(solve(works, cluster, objective, running=running, gap=gap, time_limit_s=time_limit_s / 2))
        except Infeasible as error:
            if error.limits and "max_error" not in error.limits:
                raise  # a larger error does not help
            if not made and time.perf_counter() > deadline:
                raise
            refusals.append(error)
            return None
        return made[-1]

    def errors(answer: Answer) -> list[float]:
        return [meter.error(plan) for meter, plan in zip(meters, answer.plans, strict=True)]

    bounds = [inf if candidate.limits.max_error is None else candidate.limits.max_error for candidate in candidates]
    if min(bounds) == inf:
        answer = make([1.0] * len(candidates))
        if answer is None:
            raise refusals[0]
    else:
        # A running plan may break the limit as predicted yet keep it as measured: it is also a first choice.
        slacks = [1.0] * len(candidates)
        for index, (plan, bound) in enumerate(zip(running.plans if running is not None else (), bounds, strict=False)):
            if 0.0 < bound < inf and isfinite(plan.predicted_error.high):
                slacks[index] = max(1.0, _ROUNDING * plan.predicted_error.high / bound)
        tried = search_by(make, errors, bounds, rounds=_ROUNDS, slacks=slacks, progress=progress)
        if not tried:
            raise refusals[0]
        holding = [
            tried_answer
            for tried_answer, errors_by_model in tried
            if all(error <= bound for error, bound in zip(errors_by_model, bounds, strict=True))
        ]
        if not holding:
            raise Infeasible(_none_holds(candidates, tried))
        answer = min(holding, key=lambda tried_answer: tried_answer.value)
    plans = tuple(
        replace(plan, measured_error=meter.error(plan)) for meter, plan in zip(meters, answer.plans, strict=True)
    )
    if not sums_saturate(instructions()):
        plans = tuple(
            replace(plan, notes=(*plan.notes, *saturating_devices(plan, candidate.device_profiles(cluster))))
            for plan, candidate in zip(plans, candidates, strict=True)
        )
    return replace(answer, plans=plans)


def saturating_devices(plan: Plan, profiles: Mapping[str, Profile]) -> tuple[str, ...]:
    """A note if int8 sums may saturate on devices of a plan whose errors were measured where they do not."""
    form = {precision.name: precision for precision in plan.precisions}
    in_int8 = [block for block in plan.placements if form[block.precision].form != "float"]
    computing = {placement.device for placement in in_int8}
    devices = sorted(name for name in computing if profiles[name].conditions.machine.lacks_vnni)
    if not devices or not plan.scheme.may_saturate:
        return ()
    return (
        f"{', '.join(devices)}: no VNNI, so int8 sums may saturate there, and the error was measured on a processor "
        f"with it: profile with scheme {plan.scheme.narrow}",
    )


def _none_holds(candidates: Sequence[Candidate], tried: Sequence[tuple[Answer, Sequence[float]]]) -> str:
    """Why no plan tried is good enough: how close the best comes, and whose limit it breaks most."""

    def worst(errors: Sequence[float]) -> tuple[float, str]:
        bounds = [(candidate.limits.max_error, candidate.name) for candidate in candidates]
        shares = [(error / bound, name) for error, (bound, name) in zip(errors, bounds, strict=True) if bound]
        return max(shares, default=(inf, ""))

    share, name = min(worst(errors) for _, errors in tried)
    whose = f" of {name}" if len(candidates) > 1 and name else ""
    argument = next(
        (candidate.limits.metric.argument for candidate in candidates if candidate.name == name), "max_error"
    )
    more = "lower" if argument == "min_score" else "raise"
    return f"no plan tried keeps the error limit{whose}; the best has {share:.2f} x the limit: {more} `{argument}`"


def pareto(
    candidates: Sequence[Candidate],
    cluster: Cluster,
    axis: Axis,
    *,
    points: int = 8,
    gap: float = GAP,
    time_limit_s: float = 4.0,
    progress: Progress | None = None,
) -> Front:
    """Plans of all models that trade latency for error, energy or throughput; `time_limit_s` is per placement."""
    not_negative("gap", gap)
    for argument, value in (("points", points), ("time_limit_s", time_limit_s)):
        positive(argument, value)
    if axis == "energy" or any(candidate.limits.max_energy_joules is not None for candidate in candidates):
        cluster.refuse_without_watts()

    def plan(works: Sequence[Workload], objective: Objective) -> Answer:
        return solve(works, cluster, objective, gap=gap, time_limit_s=time_limit_s)

    works = [replace(candidate.workload(cluster), name=candidate.work.name) for candidate in candidates]
    return front(works, axis, plan, points=points, progress=progress)


def moving_from(plans: Sequence[Plan], cost_s: float, objective: Objective, cluster: Cluster) -> Running:
    """Running plans, where moving a block costs `cost_s` seconds, converted to the objective's unit; energy counts at
    the largest power of a device."""
    last, watts = objective.last, max(device.active_watts for device in cluster.devices)
    return Running(tuple(plans), cost_s * (last.latency + last.energy * watts))


class _Meter:
    """Measures plans' errors on all held-out inputs; a plan with tensors quantised only for the wire is measured by
    running the built model."""

    def __init__(self, each: Candidate) -> None:
        self._work = each.work.in_place(NAME)  # as assembled for several devices, whatever their runtimes
        self._meter, self._limits = meters(self._work, each.measured, each.limits)[1](), each.limits
        self._known: dict[str, float] = {}

    def error(self, plan: Plan) -> float:
        key = plan.fingerprint()
        if key not in self._known:
            if plan.wire_only(self._work.graph):
                self._known[key] = answers(self._work, {"plan": plan}, self._limits)["plan"].judged
            else:
                self._known[key] = self._meter.error(plan.assignment())
        return self._known[key]
