"""Place models on a cluster: from an objective and limits to checked plans. Measures nothing."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.errors import BadOption, Infeasible
from taglio.plan.assemble import Assembled, assemble, busy_times, labels_of, request_shares, resources
from taglio.plan.check import check
from taglio.plan.costs import evaluate
from taglio.plan.critical_path import shorten
from taglio.plan.describe import beyond_blocks, describe, latencies, loads
from taglio.plan.problem import ENERGY, LATENCY, Totals, switching
from taglio.plan.result import Plan, Status
from taglio.plan.schedule import pipelines
from taglio.plan.solve import solve
from taglio.plan.throughput import fastest_stream, totals_of
from taglio.plan.workload import Case, Limit, Objective, Workload, limits_of

GAP = 5e-3
# Relative loss of an earlier objective allowed to a later one, so that rounding does not forbid all but one plan.
_GIVE = 1e-3
_ROUNDS = 6
# Seconds for finding the limits that contradict each other.
_CONFLICT_S = 20.0
_TOO_CLOSE = (
    "no plan was found that keeps the limits on energy and rate once the overhead of components is counted: "
    "loosen one of these limits a little"
)
# Share of the time for a critical path that is spent on the plan with the least sum, where the search starts.
_STARTING_SHARE = 0.15
# Usage of a limit that still counts as kept, because of rounding.
_FULL = 1.0 + 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A plan for each model, the problem they come from, and the objective's value with its proven bound.

    With several objectives the value is the last one's. Except for latency it covers blocks and messages only: the
    overhead of components is known once the components are.
    """

    plans: tuple[Plan, ...]
    assembled: Assembled
    totals: Totals
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """Proven relative distance from the optimum."""
        return max(0.0, self.value - self.bound) / max(abs(self.value), 1e-12)

    def moves(self) -> tuple[int, float]:
        """How many blocks differ from the running plans, and the part of the value that is for moving them."""
        extra = self.assembled.problem.extra
        if extra is None:
            return 0, 0.0
        costs = extra.reshape(len(extra), -1)[np.arange(len(extra)), list(self.totals.labels)]
        return int((costs > 0.0).sum()), float(costs.sum())

    def loads(self) -> dict[str, float]:
        """Busy share of each device and link, from the models with a request rate."""
        return loads(self.assembled, self.totals, [each.rate_per_s or 0.0 for each in self.assembled.workloads])

    def fingerprint(self) -> str:
        """The fingerprints of all plans, joined by spaces."""
        return " ".join(plan.fingerprint() for plan in self.plans)


@dataclass(frozen=True, slots=True)
class Running:
    """Running plans, and the cost of moving one block or changing its precision, in units of the objective. If
    `precisions_stay`, only devices are chosen anew."""

    plans: tuple[Plan, ...]
    switching_cost: float
    precisions_stay: bool = False


def place(
    workloads: Sequence[Workload],
    cluster: Cluster,
    objective: Objective,
    *,
    running: Running | None = None,
    gap: float = GAP,
    time_limit_s: float = 20.0,
    why: bool = True,
) -> Answer:
    """The best plans found within `gap` or `time_limit_s`, checked. Raises Infeasible with limits that contradict
    each other (unless `why` is False: finding them takes as long again), or if no plan was found that keeps limits on
    energy or rates including the overhead of components."""
    wanted = {each.name: each.upper for each in resources(workloads, cluster, objective)}
    uppers = dict(wanted)
    for number in range(_ROUNDS):
        found = _place(workloads, cluster, objective, running, gap, time_limit_s, uppers)
        if found is None:
            raise Infeasible(_why(workloads, cluster) if why and number == 0 else _TOO_CLOSE)
        # The overhead of components is known only for a finished plan, so the limits on blocks are tightened: at first
        # by hardly more than needed, since plans that spend more on blocks may have fewer components, then by more.
        beyond, kept = beyond_blocks(found.assembled, pipelines(found.assembled, found.totals)), True
        for each, blocks, more in zip(found.assembled.problem.resources, found.totals.resources, beyond, strict=True):
            if each.kind != LATENCY and blocks + more > wanted.get(each.name, inf) * _FULL:
                uppers[each.name], kept = float(blocks) * max(0.0, 1.0 - 1e-3 * 4.0**number), False
        if kept:
            break
    else:
        raise Infeasible(_TOO_CLOSE)
    for workload, plan in zip(workloads, found.plans, strict=True):
        check(workload.graph, workload.profiles, workload.error, cluster, plan, max_noise=workload.noise_limits)
    return found


def _place(
    workloads: Sequence[Workload],
    cluster: Cluster,
    objective: Objective,
    running: Running | None,
    gap: float,
    time_limit_s: float,
    uppers: Mapping[str, float],
) -> Answer | None:
    assembled = assemble(workloads, cluster, objective)
    held = tuple(replace(each, upper=uppers[each.name]) for each in assembled.problem.resources)
    assembled = replace(assembled, problem=replace(assembled.problem, resources=held))
    start = None if running is None else _labels(assembled, running.plans)
    if start is not None and running is not None:
        costs = np.full(len(assembled.problem.nodes), running.switching_cost)
        problem = replace(assembled.problem, extra=switching(assembled.problem, start, costs))
        if running.precisions_stay:
            kept = np.array(start)[:, None] % len(problem.forms) == np.arange(len(problem.forms))
            problem = replace(problem, allowed=problem.allowed & kept[:, None])
        assembled = replace(assembled, problem=problem)
    answer = _one(assembled, objective, start, gap, time_limit_s)
    for later in objective.then:
        if answer is None:
            return None
        answer = _better(answer, objective, later, gap, time_limit_s)
    if answer is None:
        return None
    # The start device's fixed cost per request is part of the latency; no choice changes it.
    more = objective.last.latency * cluster.device(cluster.start).request_s if objective.last.simulated else 0.0
    answer = replace(answer, value=float(answer.value) + more, bound=float(answer.bound) + more)
    status: Status = "optimal" if answer.gap <= gap else "time limit"
    plans = describe(answer.assembled, answer.totals, status=status, gap=answer.gap, objective=str(objective))
    return replace(answer, plans=plans)


def _one(
    assembled: Assembled, objective: Objective, start: list[int] | None, gap: float, time_limit_s: float
) -> Answer | None:
    """The best answer by one objective, without its plans."""
    if objective.kind == "throughput":
        streams = fastest_stream(assembled, start, gap, time_limit_s)
        return None if streams is None else Answer((), assembled, *streams)
    if not objective.simulated:
        placed = solve(assembled.problem, gap=gap, time_limit_s=time_limit_s, incumbent=start)
        totals = totals_of(assembled.problem, placed)
        if totals is not None:
            return Answer((), assembled, totals, totals.objective, placed.bound)
        if not any(isfinite(each.limits.max_latency_s or inf) for each in assembled.workloads):
            return None
        # It may keep the latency limit by its critical path even if its summed seconds do not.
        shortest = _one(assembled, Objective(), start, gap, time_limit_s)
        if shortest is None:
            return None
        free = solve(_free(assembled).problem, gap=gap, time_limit_s=time_limit_s)
        value = evaluate(assembled.problem, shortest.totals.labels, shortest.totals.copies).objective
        return replace(shortest, value=value, bound=free.bound)
    # The sum of seconds does not bound the critical path: only `shorten` has such a bound and checks latency limits.
    free_of, begun = _free(assembled), time.perf_counter()
    placed = solve(free_of.problem, gap=gap, time_limit_s=_STARTING_SHARE * time_limit_s, incumbent=start)
    totals = totals_of(free_of.problem, placed)
    if totals is None:
        return None
    begin = [totals] if start is None else [totals, evaluate(free_of.problem, start)]
    left = time_limit_s - (time.perf_counter() - begun)
    found = Answer((), free_of, *shorten(free_of, objective, begin, gap=gap, time_limit_s=left))
    taken = latencies(free_of, found.totals)
    limits = [each.limits.max_latency_s for each in assembled.workloads]
    kept = all(limit is None or each <= limit * (1.0 + 1e-6) for each, limit in zip(taken, limits, strict=True))
    return found if kept else None


def _better(answer: Answer, first: Objective, later: Objective, gap: float, time_limit_s: float) -> Answer | None:
    """The best answer by `later` among those that lose nothing of `first`; `answer` itself if none is better."""
    assembled, room = answer.assembled, 1.0 + _GIVE
    held = list(assembled.problem.resources)
    if first.kind == "throughput":
        works = assembled.workloads
        held += busy_times(works, assembled.cluster, request_shares(works), answer.value * room, "period")
    held_kind = ENERGY if first.kind == "energy" else LATENCY
    for index, each in enumerate(assembled.problem.resources):
        if first.kind != "throughput" and each.kind == held_kind:
            used = float(answer.totals.resources[index]) * room
            held[index] = replace(each, upper=min(each.upper, used))
    shares = request_shares(assembled.workloads)
    for index, each in enumerate(held):
        for kind, weight in ((LATENCY, later.latency), (ENERGY, later.energy)):
            if each.kind == kind:
                held[index] = replace(held[index], weight=weight * float(shares @ each.models))
    stage = replace(assembled, problem=replace(assembled.problem, resources=tuple(held)))
    found = _one(stage, later, list(answer.totals.labels), gap, time_limit_s)
    if found is None:
        return answer
    before, after = (sum(latencies(assembled, each.totals)) for each in (answer, found))
    if first.simulated and after > before * room:
        return answer
    return found


def _free(assembled: Assembled) -> Assembled:
    """The problem without limits on latency."""
    kept = tuple(replace(each, upper=inf) if each.kind == LATENCY else each for each in assembled.problem.resources)
    return replace(assembled, problem=replace(assembled.problem, resources=kept))


def _labels(assembled: Assembled, plans: Sequence[Plan]) -> list[int] | None:
    """Labels of running plans; None if one of their devices is no longer in the cluster."""
    names = {device.name for device in assembled.cluster.devices}
    labels: list[int] = []
    for model, plan in enumerate(plans):
        places = plan.devices()
        if not set(places.values()) <= names:
            return None
        labels += labels_of(assembled, model, places, plan.assignment())
    return labels


def conflict(workloads: Sequence[Workload], cluster: Cluster) -> tuple[Limit, ...]:
    """Limits that contradict each other: without any one of them there would be a plan. Empty if they were not found in
    time."""
    deadline = time.perf_counter() + _CONFLICT_S
    kept = limits = limits_of(workloads, cluster)

    def possible(under: Sequence[Limit]) -> bool:
        case: Case = (workloads, cluster)
        for limit in limits:
            if limit not in under:
                case = limit.loosened(case, inf)
        left = max(0.5, deadline - time.perf_counter())
        try:
            uppers = {each.name: each.upper for each in resources(*case, Objective("sum"))}
            return _place(*case, Objective("sum"), None, 0.5, left, uppers) is not None
        except BadOption:
            return False

    for limit in limits:  # not part of the conflict if the others still contradict without it
        fewer = [each for each in kept if each is not limit]
        if time.perf_counter() > deadline:
            return ()
        if not possible(fewer):
            kept = fewer
    return tuple(kept)


def _why(workloads: Sequence[Workload], cluster: Cluster) -> str:
    limits = [str(each) for each in conflict(workloads, cluster)]
    if not limits:
        return "no plan keeps all limits: loosen one, or add a device or a link"
    if len(limits) == 1:
        return f"no plan keeps {limits[0]}: loosen it, or add a device or a link"
    return f"no plan keeps {', '.join(limits[:-1])} and {limits[-1]} together: loosen one of them"
