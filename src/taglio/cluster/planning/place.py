"""Place models on a cluster: from an objective and limits to checked plans. Measures nothing.

To reach a request rate, several identical devices may run the same components, a request each in turn (replicas). A
group of k identical devices is planned as one device that is busy 1/k of the time, as are its links. No plan with
different components on the devices of a group has a shorter period: if every device ran all of them, a request each in
turn, each would be busy for the mean of what the devices were, and no tensors would be sent between them. But every
device then needs memory for all components; if memory is limited, plans without replicas are made too. Only as many
devices of a group take turns as the period needs.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.cluster.planning.assemble import Assembled, assemble, labels_of
from taglio.cluster.planning.check import check
from taglio.cluster.planning.costs import evaluate
from taglio.cluster.planning.critical_path import shorten
from taglio.cluster.planning.describe import amounts, describe, latencies, loads, period_s
from taglio.cluster.planning.problem import LATENCY, Problem, Totals
from taglio.cluster.planning.replicas import alike, taking_turns
from taglio.cluster.planning.schedule import pipelines
from taglio.cluster.planning.solve import SolvedProblem, Undecided, solve
from taglio.cluster.planning.throughput import fastest_stream
from taglio.cluster.planning.workload import Case, Limit, Objective, Workload, limits_of
from taglio.errors import BadOption, Infeasible
from taglio.plan.result import GAP, Plan, Status

_TOO_CLOSE = (
    "no plan was found that keeps the limits on energy and rate once the overhead of components is counted: "
    "loosen one of these limits a little"
)
# Usage of a limit that still counts as kept, and a period that still counts as the same, because of rounding.
_FULL, _SAME = 1.0 + 1e-6, 1.0 + 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A plan for each model, the problem they come from, and the objective's value with its proven bound.

    Except for latency the value covers blocks and messages only: the overhead of components is known once the
    components are.
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

    def loads(self) -> dict[str, float]:
        """Busy share of each device and link, from the models with a request rate."""
        return loads(self.assembled, self.totals, [workload.rate_per_s or 0.0 for workload in self.assembled.workloads])

    def fingerprint(self) -> str:
        """The fingerprints of all plans, joined by spaces."""
        return " ".join(plan.fingerprint() for plan in self.plans)


def place(
    workloads: Sequence[Workload],
    cluster: Cluster,
    objective: Objective,
    *,
    precisions_of: Sequence[Plan] = (),
    gap: float = GAP,
    time_limit_s: float = 20.0,
) -> Answer:
    """The best plans found within `gap` or `time_limit_s`, checked. Blocks keep the precisions that they have in the
    plans `precisions_of`, one for each model. If the objective is throughput or a required rate cannot be reached
    without them, there may be replicas. Raises Infeasible with limits that contradict each other, or if no plan was
    found that keeps limits on energy or rates including the overhead of components."""
    planner = Planner(workloads, cluster, objective, tuple(precisions_of), gap, time_limit_s)
    streamed = objective.kind == "throughput"
    stateful = any(block.state_bytes for workload in workloads for block in workload.graph.blocks)
    may_replicate = not stateful and (streamed or any(workload.needed_per_s for workload in workloads))
    groups = alike(workloads, cluster) if may_replicate else ()
    if not groups:
        return planner.answer(why=True)
    shared = cluster
    for representative, *replaced in groups:
        shared = taking_turns(shared, representative, (representative, *replaced))
        for name in replaced:
            shared = shared.without(name)
    memory_limited = any(isfinite(cluster.device(name).memory_bytes) for group in groups for name in group)
    attempt = replace(planner, time_limit_s=time_limit_s / 2) if memory_limited or not streamed else planner

    def without(*, why: bool) -> Answer:
        return attempt.answer(why=why)

    def with_replicas(*, why: bool) -> Answer:
        return _fewest(replace(attempt, cluster=shared).answer(why=why), workloads, streamed=streamed)

    preferred, fallback = (with_replicas, without) if streamed else (without, with_replicas)
    try:
        first_answer = preferred(why=False)
    except Infeasible:
        return fallback(why=True)
    if not (streamed and memory_limited):
        return first_answer
    try:
        second_answer = fallback(why=False)
    except Infeasible:
        return first_answer
    best = min(first_answer, second_answer, key=lambda answer: answer.value)
    return replace(best, bound=min(first_answer.bound, second_answer.bound))


@dataclass(frozen=True, slots=True, eq=False)
class Planner:
    """One call of `place`, for devices that all run components of their own."""

    workloads: Sequence[Workload]
    cluster: Cluster
    objective: Objective
    precisions_of: tuple[Plan, ...]
    gap: float
    time_limit_s: float

    def answer(self, *, why: bool) -> Answer:
        """The best plans found. Raises Infeasible, which names the limits that contradict each other only with `why`:
        to find them takes as long again."""
        assembled = assemble(self.workloads, self.cluster, self.objective)
        upper_of = {resource.name: resource.upper for resource in assembled.problem.resources}
        uppers = dict[str, float]()
        for number in range(6):
            try:
                answer = self.under(uppers)
            except Undecided:
                limits = ", ".join(map(str, limits_of(self.workloads, self.cluster))) or "all limits"
                raise Infeasible(
                    f"no plan that keeps {limits} was found in {self.time_limit_s:g} s of search, which does not show "
                    "that there is none: raise `time_limit_s`, or loosen a limit"
                ) from None
            if answer is None:
                if why and number == 0:
                    raise _why(self.workloads, self.cluster, self.time_limit_s)
                raise Infeasible(_TOO_CLOSE)
            # The overhead of components is known only for a finished plan, so the limits on blocks are tightened: at
            # first by hardly more than needed, since plans that spend more on blocks may have fewer components.
            used, within_limits = amounts(answer.assembled, pipelines(answer.assembled, answer.totals)), True
            quantities = answer.assembled.problem.resources
            for resource, amount, by_blocks in zip(quantities, used, answer.totals.resources, strict=True):
                if resource.kind != LATENCY and amount > upper_of.get(resource.name, inf) * _FULL:
                    uppers[resource.name], within_limits = float(by_blocks) * max(0.0, 1.0 - 1e-3 * 4.0**number), False
            if within_limits:
                break
        else:
            raise Infeasible(_TOO_CLOSE)
        for work, plan in zip(self.workloads, answer.plans, strict=True):
            check(work.graph, work.error, self.cluster, plan, max_noise=work.noise_limits)
        return answer

    def under(self, uppers: Mapping[str, float]) -> Answer | None:
        """The best plans found whose blocks and messages keep these limits on resources, by name, instead of the
        problem's; None if there is none. Raises Undecided."""
        objective, cluster = self.objective, self.cluster
        assembled = assemble(self.workloads, cluster, objective)
        limited = tuple(
            replace(resource, upper=uppers.get(resource.name, resource.upper))
            for resource in assembled.problem.resources
        )
        assembled = assembled.with_problem(resources=limited)
        if self.precisions_of:
            forms, labels = len(assembled.problem.forms), list[int]()
            for model, plan in enumerate(self.precisions_of):
                places = dict.fromkeys(plan.devices(), cluster.start)
                labels += labels_of(assembled, model, places, plan.assignment())
            same_form = np.array(labels)[:, None] % forms == np.arange(forms)
            assembled = assembled.with_problem(allowed=assembled.problem.allowed & same_form[:, None])
        answer = self._by(objective, assembled)
        if answer is None:
            return None
        answer = replace(answer, value=float(answer.value), bound=float(answer.bound))
        status: Status = "optimal" if answer.gap <= self.gap else "time limit"
        plans = describe(answer.assembled, answer.totals, status=status, gap=answer.gap, objective=str(objective))
        return replace(answer, plans=plans)

    def _by(self, objective: Objective, assembled: Assembled) -> Answer | None:
        """The best answer by one objective, without its plans; None if there is none. Raises Undecided."""
        gap, time_limit_s = self.gap, self.time_limit_s
        if objective.kind == "throughput":
            streams = fastest_stream(assembled, gap, time_limit_s)
            return None if streams is None else Answer((), assembled, *streams)
        unlimited, started_s = _free(assembled), time.perf_counter()
        if not objective.simulated:
            placed = solve(assembled.problem, gap=gap, time_limit_s=time_limit_s)
            totals = _totals(assembled.problem, placed)
            if totals is not None:
                return Answer((), assembled, totals, totals.objective, placed.bound)
            if not any(isfinite(workload.limits.max_latency_s or inf) for workload in assembled.workloads):
                _need_proof(placed)
                return None
            # It may keep the latency limit by its critical path even if its summed seconds do not.
            shortest = self._by(Objective(), assembled)
            if shortest is None:
                return None
            bound = solve(unlimited.problem, gap=gap, time_limit_s=time_limit_s).bound
            value = evaluate(assembled.problem, shortest.totals.labels, shortest.totals.copies).objective
            return replace(shortest, value=value, bound=bound)
        # The sum of seconds does not bound the critical path: only `shorten` has such a bound and checks latency
        # limits.
        least_s = 0.15 * time_limit_s
        placed = solve(unlimited.problem, gap=gap, time_limit_s=least_s, patience_s=time_limit_s)
        totals = _totals(unlimited.problem, placed)
        if totals is None:
            _need_proof(placed)
            return None
        left_s = max(least_s, time_limit_s - (time.perf_counter() - started_s))
        least = placed.bound - unlimited.problem.constant
        shortest_path = shorten(unlimited, objective, totals, least=least, gap=gap, time_limit_s=left_s)
        answer = Answer((), unlimited, *shortest_path)
        latencies_s = latencies(unlimited, answer.totals)
        limits = [workload.limits.max_latency_s for workload in assembled.workloads]
        within_limits = all(
            limit is None or latency_s <= limit * (1.0 + 1e-6)
            for latency_s, limit in zip(latencies_s, limits, strict=True)
        )
        return answer if within_limits else None


def _totals(problem: Problem, placed: SolvedProblem) -> Totals | None:
    return evaluate(problem, placed.labels, placed.copies) if placed.labels else None


def _need_proof(placed: SolvedProblem) -> None:
    """Raises Undecided unless it is proven that there is no plan."""
    if placed.status != "infeasible":
        raise Undecided


def _free(assembled: Assembled) -> Assembled:
    """The problem without limits on latency."""
    quantities = assembled.problem.resources
    return assembled.with_problem(
        resources=tuple(
            replace(resource, upper=inf) if resource.kind == LATENCY else resource for resource in quantities
        )
    )


def conflict(workloads: Sequence[Workload], cluster: Cluster, time_limit_s: float = 20.0) -> tuple[Limit, ...]:
    """Limits that contradict each other: without any one of them there would be a plan. Empty if they were not found in
    time."""
    deadline = time.perf_counter() + time_limit_s
    kept = limits = limits_of(workloads, cluster)

    def possible(under: Sequence[Limit]) -> bool:
        case: Case = (workloads, cluster)
        for limit in limits:
            if limit not in under:
                case = limit.lifted(case)
        left_s = max(0.1, deadline - time.perf_counter())
        try:
            return Planner(*case, Objective("sum"), (), 0.5, left_s).under({}) is not None
        except (BadOption, Undecided):
            return False

    for limit in limits:  # not part of the conflict if the others still contradict without it
        fewer = [other for other in kept if other is not limit]
        if time.perf_counter() > deadline:
            return ()
        if not possible(fewer):
            kept = fewer
    return tuple(kept)


def _why(workloads: Sequence[Workload], cluster: Cluster, time_limit_s: float) -> Infeasible:
    limits = conflict(workloads, cluster, time_limit_s)
    *earlier, last = map(str, limits or ("all limits",))
    if not earlier:
        advice = "loosen it" if limits else "loosen one"
        message = f"no plan keeps {last}: {advice}, or add a device or a link"
    else:
        message = f"no plan keeps {', '.join(earlier)} and {last} together: loosen one of them"
    return Infeasible(message, (limit.field for limit in limits))


def _fewest(answer: Answer, workloads: Sequence[Workload], *, streamed: bool) -> Answer:
    """The answer with the fewest replicas that keep its period, or the required rates if it is not `streamed`,
    described again."""
    assembled, totals = answer.assembled, answer.totals
    rates = None if streamed else [workload.needed_per_s for workload in workloads]

    def busiest(shared: Cluster) -> float:
        return period_s(replace(assembled, cluster=shared), totals, rates)

    used = {name for plan in answer.plans for name in plan.devices().values()}
    shared = assembled.cluster
    most = _SAME * (busiest(shared) if streamed else 1.0)
    for device in assembled.cluster.devices:
        counts = range(len(device.replicas)) if device.name in used else (0,)
        fewer = (taking_turns(shared, device.name, device.replicas[: count + 1]) for count in counts)
        shared = next((cluster for cluster in fewer if busiest(cluster) <= most), shared)
    assembled, first = replace(assembled, cluster=shared), answer.plans[0]
    plans = describe(assembled, totals, status=first.status, gap=first.gap, objective=first.objective)
    return replace(answer, plans=plans, assembled=assembled)
