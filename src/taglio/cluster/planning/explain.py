"""Explain a plan by planning again: the cost of its limits, the runner-up, and what-if questions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taglio.cluster.changes import changed
from taglio.cluster.devices import Cluster
from taglio.cluster.planning.place import Answer, place
from taglio.cluster.planning.workload import Objective, Workload, limits_of
from taglio.errors import BadOption, Infeasible
from taglio.plan.result import Plan

# Factor by which a limit is loosened.
_LOOSER = 1.5


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative, its value in the objective's unit (None: no plan), and a sentence about it."""

    name: str
    value: float | None
    words: str
    plans: tuple[Plan, ...] = ()


# Plans workloads on a cluster again; the answer has no measured error.
Again = Callable[[Sequence[Workload], Cluster], Answer]


def again(objective: Objective, time_limit_s: float) -> Again:
    """A planner with a shorter time limit, used alike for everything that is compared."""
    return lambda workloads, cluster: place(workloads, cluster, objective, time_limit_s=time_limit_s)


def amount(objective: Objective, value: float) -> str:
    """A value of the (last) objective with its unit."""
    objective = objective.last
    if objective.kind == "throughput":
        return f"{1.0 / value:.4g} requests/s"
    if objective.kind == "energy":
        return f"{value:.4g} J"
    return f"{value:.4g} weighed" if objective.kind == "weights" else f"{value * 1e3:.4g} ms"


def limits_cost(
    workloads: Sequence[Workload], cluster: Cluster, objective: Objective, plan_again: Again, base: Answer
) -> tuple[Alternative, ...]:
    """The limits that cost something against `base`, the plan under all of them, found by planning with each limit
    loosened by half. Limits with room left are tried too: a better plan may need more than that room."""
    costly = []
    for limit in (any_limit for any_limit in limits_of(workloads, cluster) if any_limit.number):
        try:
            answer = plan_again(*limit.loosened((workloads, cluster), _LOOSER))
        except (Infeasible, BadOption):
            continue
        gain = base.value - answer.value
        if gain > 2e-3 * abs(base.value):  # smaller gains are not worth a line
            streamed = objective.last.kind == "throughput"
            cost = f"{1.0 / answer.value - 1.0 / base.value:.4g} requests/s" if streamed else amount(objective, gain)
            words = (
                f"{limit.name} costs {cost}: at {limit.text(limit.looser(_LOOSER))} the plan would "
                f"{'handle' if streamed else 'take'} {amount(objective, answer.value)} "
                f"instead of {amount(objective, base.value)}"
            )
            costly.append(Alternative(limit.name, answer.value, words, answer.plans))
    return tuple(costly)


def runner_up(
    workloads: Sequence[Workload], cluster: Cluster, objective: Objective, plan_again: Again, plans: Sequence[Plan]
) -> Alternative | None:
    """The best plan without one of the devices in use; None if only the start device is used."""
    used = {place for plan in plans for place in plan.devices().values()} - {cluster.start}
    best: Alternative | None = None
    for name in sorted(used):
        try:
            works = [replace(w, profiles={k: v for k, v in w.profiles.items() if k != name}) for w in workloads]
            answer = plan_again(works, cluster.without(name))
        except (Infeasible, BadOption):
            continue
        if best is None or best.value is None or answer.value < best.value:
            words = f"runner-up, without {name}: {amount(objective, answer.value)}"
            best = Alternative(f"without {name}", answer.value, words, answer.plans)
    return best


def what_if(
    text: str,
    workloads: Callable[[Cluster], Sequence[Workload]],
    cluster: Cluster,
    objective: Objective,
    plan_again: Again,
    base: Answer,
) -> Alternative:
    """The plan under the change `text` (cluster/changes.py), compared with `base`, the plan without it; `workloads`
    returns the workloads for a changed cluster."""
    changed_cluster = changed(cluster, text)
    try:
        answer = plan_again(workloads(changed_cluster), changed_cluster)
    except (Infeasible, BadOption) as error:
        return Alternative(text, None, f"{text}: {error}")
    before, after = amount(objective, base.value), amount(objective, answer.value)
    same = [plan.devices() for plan in answer.plans] == [plan.devices() for plan in base.plans]
    moved = "the same placement" if same else "another placement"
    return Alternative(text, answer.value, f"{text}: {after} instead of {before}, {moved}", answer.plans)
