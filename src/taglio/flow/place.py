"""Plan models on a cluster: place them, measure the error, place again. Times nothing, writes nothing."""

import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path

from taglio.arguments import not_negative, positive
from taglio.cluster import file as cluster_file
from taglio.cluster.devices import Cluster
from taglio.cluster.planning.describe import predicted_error, wired_flows
from taglio.cluster.planning.place import Answer
from taglio.cluster.planning.place import place as solve
from taglio.cluster.planning.workload import Objective, Workload, parse_objective
from taglio.error.measure import ErrorMeter, Evidence
from taglio.error.model import ErrorModel
from taglio.errors import BadArtifact, Infeasible
from taglio.flow.pareto import with_error
from taglio.flow.workspace import PROFILE
from taglio.lab.work import Work, require_own
from taglio.plan.one_machine import noise_limits
from taglio.plan.result import GAP, Limits, Plan
from taglio.profile.result import Profile, in_components, scaled
from taglio.progress import Progress, reported
from taglio.quantize.precision import FLOAT32, key_of
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.processor import instructions, sums_saturate
from taglio.search.answers import answers
from taglio.search.by_hand import matches, pinned_devices
from taglio.search.limits import Bounds, limits_for, user_limits
from taglio.search.search import ErrorTarget

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

    def workload(self, cluster: Cluster) -> Workload:
        """The planner's view of the model. Raises BadArtifact for a device without a profile."""
        graph, limits = self.work.graph.placeable(self.limits.max_steps), self.limits
        profiles = {device: in_components(profile) for device, profile in self.device_profiles(cluster).items()}
        work = Workload(self.name, graph, profiles, self.error, limits, self.rate_per_s)
        return with_error(work, limits.max_error)

    def device_profiles(self, cluster: Cluster) -> dict[str, Profile]:
        """A profile for every device, measured or scaled, in the device's runtime. Raises BadArtifact for a missing or
        unsuitable profile, or one taken in another runtime than the cluster file gives the device; scaled times of
        another device are an assumption and may be of another runtime."""
        by_device: dict[str, Profile] = {}
        owners = {device.profile: device.name for device in cluster.devices if not device.assumed}
        for device in cluster.devices:
            file, factor = device.profile, device.scale or 1.0
            profile = self.profiles.get(owners.get(file, file)) or self.profiles.get(file)
            if profile is None and file == f"{PROFILE}.json":
                profile = self.measured
            if profile is None:
                raise BadArtifact(
                    f'device "{device.name}" has no profile of {self.work.name}: put the one measured there in the '
                    f"workspace directory, as {file} there, or write in the cluster file "
                    'scale = { of = "profile.json", factor = 3.0 }'
                )
            if profile.scheme != self.measured.scheme:
                raise BadArtifact(
                    f"{file}: has scheme {profile.scheme}, but this machine's profile has {self.measured.scheme}: "
                    "profile both under one `scheme`"
                )
            if device.runtime and device.runtime != profile.conditions.runtime:
                if not device.assumed:
                    raise BadArtifact(
                        f'{file}: was taken in {profile.conditions.runtime}, but device "{device.name}" runs '
                        f"{device.runtime}: profile it with `runtime` {device.runtime}, or leave runtime out of the "
                        "cluster file"
                    )
                profile = replace(profile, conditions=replace(profile.conditions, runtime=device.runtime))
            # A component on another device waits for its inputs; the runs of a profile follow each other directly.
            if device.name != cluster.start:
                profile = replace(profile, overhead_s=profile.overhead_s + profile.conditions.waking_s)
            by_device[device.name] = profile if factor == 1.0 else scaled(profile, factor)
        return by_device


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
    for own_profile in (profile, *(profiles or {}).values()):
        require_own(work, profile=own_profile, error=error)
    work = work.settled(profile.scheme)
    limits = replace(
        limits_for(work, user_limits(max_error, min_score, max_drop, required=False), keep_float, force_int8),
        device_pins=tuple(pinned_devices(work.graph, pins, keep_off).items()),
        device_exclusions=tuple(
            (block, device) for device, blocks in matches(work.graph, "keep_off", keep_off) for block in blocks
        ),
        max_latency_s=max_latency_s,
        max_energy_joules=max_energy_j,
        min_rate_per_s=min_rate_per_s,
        max_steps=max_steps,
    )
    return Candidate(name or work.name, work, profile, error, limits, rate_per_s, profiles or {})


def place(
    candidates: Candidate | Sequence[Candidate],
    cluster: Cluster | str | os.PathLike[str],
    *,
    objective: str | Objective = "latency",
    precisions_of: Sequence[Plan] = (),
    gap: float = GAP,
    time_limit_s: float = 20.0,
    progress: Progress | None = None,
) -> Answer:
    """The best plans of models on the devices of a cluster whose measured errors keep the limits.

    `cluster` is the path of a cluster file or a Cluster, `objective` "latency", "throughput", "energy", "sum" or such
    weights as "latency=1,energy=0.5". Blocks keep the precisions that they have in the plans `precisions_of`; the
    search ends within `gap` of the proven optimum or after `time_limit_s`. Nothing is timed here: times come from the
    profiles. Raises Infeasible.

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
    if objective.energy or any(candidate.limits.max_energy_joules is not None for candidate in candidates):
        cluster.refuse_without_watts()
    for candidate in candidates:  # measuring errors is slow: first refuse what needs no measurement
        for _, device in (*candidate.limits.device_pins, *candidate.limits.device_exclusions):
            cluster.device(device)
        candidate.device_profiles(cluster)
    models = [_Judged(replace(candidate, work=candidate.work.telling(progress))) for candidate in candidates]
    for model, plan in zip(models, precisions_of, strict=False):
        model.allow(plan)
    deadline = time.perf_counter() + time_limit_s

    def place_again() -> Answer:
        works = [model.workload(cluster) for model in models]
        return solve(works, cluster, objective, precisions_of=precisions_of, gap=gap, time_limit_s=time_limit_s / 2)

    tried = _search(models, place_again, deadline, progress)
    holding = [
        answer for answer in tried if all(model.holds(plan) for model, plan in zip(models, answer.plans, strict=True))
    ]
    if not holding:
        raise Infeasible(_none_holds(models, tried))
    answer = min(holding, key=lambda answer: answer.value)
    plans = tuple(
        replace(plan, measured_error=model.measured(plan).error)
        for model, plan in zip(models, answer.plans, strict=True)
    )
    if not sums_saturate(instructions()):
        plans = tuple(
            replace(plan, notes=(*plan.notes, *saturating_devices(plan, candidate.device_profiles(cluster))))
            for plan, candidate in zip(plans, candidates, strict=True)
        )
    return replace(answer, plans=plans)


def _search(
    models: Sequence["_Judged"], place_again: Callable[[], Answer], deadline: float, progress: Progress | None
) -> list[Answer]:
    """The answers of `place_again`, called after each has been measured. Raises Infeasible if there are none."""
    tried, refusal = dict[str, Answer](), None
    for _ in reported(range(_ROUNDS), "search", progress):
        try:
            answer = place_again()
        except Infeasible as error:
            is_final = bool(error.limits) and "max_error" not in error.limits  # a larger error does not help
            is_late = not tried and time.perf_counter() > deadline
            if is_final or is_late or not any(model.target for model in models):
                raise
            refusal = refusal or error
            for model in models:
                model.loosen()
            continue
        is_new = answer.fingerprint() not in tried
        tried.setdefault(answer.fingerprint(), answer)
        followed = [model.follow(plan, is_new=is_new) for model, plan in zip(models, answer.plans, strict=True)]
        if not any(followed):
            break
    if refusal is not None and not tried:
        raise refusal
    return [*tried.values()]


def saturating_devices(plan: Plan, profiles: Mapping[str, Profile]) -> tuple[str, ...]:
    """A note if int8 sums may saturate on devices of a plan whose errors were measured where they do not."""
    form = {precision.name: precision for precision in plan.precisions}
    in_int8 = [block for block in plan.placements if form[block.precision] != FLOAT32]
    computing = {placement.device for placement in in_int8}
    devices = sorted(name for name in computing if profiles[name].conditions.machine.lacks_vnni)
    if not devices or not plan.scheme.may_saturate:
        return ()
    return (
        f"{', '.join(devices)}: no VNNI, so int8 sums may saturate there, and the error was measured on a processor "
        f"with it: profile with scheme {plan.scheme.narrow}",
    )


def _none_holds(models: Sequence["_Judged"], tried: Sequence[Answer]) -> str:
    """Why no plan tried is good enough: how close the best comes, and whose limit it breaks most."""
    limited = [(index, model) for index, model in enumerate(models) if model.bound]

    def worst(answer: Answer) -> tuple[float, int]:
        shares = [(model.measured(answer.plans[index]).error / model.bound, index) for index, model in limited]
        return max(shares, default=(inf, 0))

    share, index = min(map(worst, tried))
    candidate = models[index].candidate
    whose = f" of {candidate.name}" if len(models) > 1 else ""
    argument = candidate.limits.metric.argument
    direction = "lower" if argument == "min_score" else "raise"
    return f"no plan tried keeps the error limit{whose}; the best has {share:.2f} x the limit: {direction} `{argument}`"


class _Judged:
    """A model during the search: the errors of its plans on all held-out inputs, measured once for all its placements,
    and what they say about the plans that follow."""

    def __init__(self, candidate: Candidate) -> None:
        work, limits = candidate.work.in_place(NAME), candidate.limits  # as assembled, whatever the devices' runtimes
        self.candidate, self._work = candidate, work
        self.bound = limits.allowed_error
        self.target = None if self.bound == inf else ErrorTarget(work.graph, candidate.error, self.bound)
        key = ("placed", candidate.measured.scheme, limits.max_error, limits.metric, limits.also)
        self._evidence: dict[Hashable, Evidence] = work.kept.once(key, dict)

    @cached_property
    def _meter(self) -> ErrorMeter:
        """What measures errors on all held-out inputs."""
        scheme, work = self.candidate.measured.scheme, self._work
        return work.meter(work.settled(scheme).switchable(scheme), None, self.candidate.limits.also, self.bound)

    def workload(self, cluster: Cluster) -> Workload:
        """The planner's view of the model, with the errors that the measured plans suggest."""
        work = self.candidate.workload(cluster)
        if self.target is None:
            return work
        error = self.target.corrected(self._evidence.values())
        return replace(work, error=error, noise_limits=noise_limits(error, self.bound, self.target.factor))

    def measured(self, plan: Plan) -> Evidence:
        """The error of a plan. If tensors are quantised only for the wire, it is that of the built model."""
        wires = plan.wire_only(self._work.graph)
        key = key_of(plan.assignment()), tuple(sorted(wires))
        if key not in self._evidence:
            self._evidence[key] = self._as_built(plan) if wires else self._meter.evidence(plan.assignment())
        return self._evidence[key]

    def _as_built(self, plan: Plan) -> Evidence:
        limits = self.candidate.limits
        answer = answers(self._work, plan, limits)
        l2 = {part.name: part.loss for part in answer.parts} if limits.metric.smooth else {}
        return Evidence(plan.assignment(), answer.judged, answer.error, l2, wired_flows(self._work.graph, plan))

    def holds(self, plan: Plan) -> bool:
        """Whether the measured error of a plan keeps the limit."""
        return self.bound == inf or self.measured(plan).error <= self.bound

    def allow(self, plan: Plan) -> None:
        """Let the next plan have the predicted error of one that holds, even if that is beyond the limit."""
        if self.target is None or self.bound == 0.0 or not self.holds(plan):
            return
        error = self.target.corrected(self._evidence.values())
        upper = error.upper(predicted_error(error, self._work.graph, plan))
        self.target.allow(_ROUNDING * upper / self.bound)

    def loosen(self) -> None:
        """Allow a larger predicted error after no plan was found."""
        if self.target is not None:
            self.target.loosen()

    def follow(self, plan: Plan, *, is_new: bool) -> bool:
        """Learn from a plan; False if there is nothing left to find."""
        return self.target is not None and self.target.follow(self.measured(plan), is_new=is_new)
