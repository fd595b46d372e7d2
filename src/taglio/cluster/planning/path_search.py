"""The best placement so far by simulation. Proposes no placement."""

from collections.abc import Sequence
from math import inf

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.costs import TOLERANCE, Costs
from taglio.cluster.planning.describe import beyond_blocks, period_s
from taglio.cluster.planning.problem import LATENCY, Totals
from taglio.cluster.planning.replay import Played
from taglio.cluster.planning.resources import request_shares
from taglio.cluster.planning.schedule import Scheduler
from taglio.cluster.planning.simulate import simulate
from taglio.cluster.planning.workload import Objective


class PathSearch:
    """Keeps the placement with the best simulated latency and joules, as weighed by an objective. Limits on latency do
    not apply to the sum of seconds."""

    def __init__(self, assembled: Assembled, objective: Objective) -> None:
        self.assembled, self.latency = assembled, objective.latency
        problem = self.problem = assembled.problem
        self.costs = Costs(problem)
        self.shares = request_shares(assembled.workloads)
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        # Limits that do not apply to sums, and the weights of sums in the objective that the simulated value replaces.
        self.latencies = {resource.name for resource in problem.resources if resource.kind == LATENCY}
        self.summed = np.array([resource.weight if resource.kind == LATENCY else 0.0 for resource in problem.resources])
        # Allowed usage of the limits that component overheads count towards: more if the first placement exceeds it.
        self.limited = [i for i, r in enumerate(problem.resources) if r.upper < inf and r.kind != LATENCY]
        self.uppers = np.array([problem.resources[i].upper for i in self.limited])
        self.best: Totals | None = None
        self.value = inf

    def worth(self, totals: Totals) -> float:
        """The value of a simulated placement: latency and joules."""
        ends_s = [simulate(scheduler.placed(totals)).end_s for scheduler in self.schedulers]
        besides_latency = totals.objective - self.problem.constant - float(self.summed @ totals.resources)
        return self.latency * float(self.shares @ ends_s) + besides_latency

    def replayed(self, played: Sequence[Played]) -> np.ndarray:
        """By placement, the value of replays of all models, but for what labels alone add to it."""
        return np.asarray(self.latency * (np.stack([replay.latency_s for replay in played], axis=1) @ self.shares))

    def besides(self) -> np.ndarray:
        """What labels alone add to the value (node, label): the objective except for latency."""
        unary = self.costs.sums.unary
        return np.asarray(unary[..., 0] - unary[..., 1 : 1 + len(self.summed)] @ self.summed)

    def of_labels(self) -> tuple[np.ndarray, np.ndarray]:
        """The amounts that labels alone add to the value and to the limits (node, label, 1 + limits); and, for these
        limits, the most that a placement may add."""
        costs, rows = self.costs, np.flatnonzero([row.name not in self.latencies for row in self.costs.rows])
        own = np.concatenate([self.besides()[..., None], costs.limited.unary[..., 1 + rows]], axis=2)
        return own, (costs.uppers + costs.saved + TOLERANCE)[rows]

    def kept(self, totals: Totals) -> bool:
        """Whether a placement keeps all limits that apply to sums."""
        return self.latencies.issuperset(totals.broken) and self._has_room(totals)

    def _has_room(self, totals: Totals) -> bool:
        """Whether there is room for the overheads of its components, or at least as much as in the first placement."""
        if not self.limited:
            return True
        beyond = beyond_blocks(self.assembled, [scheduler.placed(totals) for scheduler in self.schedulers])
        amounts = (totals.resources + beyond)[self.limited]
        if self.best is None:
            self.uppers = np.maximum(self.uppers, amounts)
        return bool((amounts <= self.uppers * (1.0 + 1e-9)).all())

    def offer(self, totals: Totals) -> None:
        """Keep a placement if it is within the limits and the best so far."""
        if self.kept(totals) and (value := self.worth(totals)) < self.value:
            self.best, self.value = totals, value


# What a second of a request counts beside one of the period.
_SPARING = 3e-4


class PeriodSearch(PathSearch):
    """Keeps the placement with the shortest period (busy seconds of the busiest device or link), and of those that are
    nearly as short, one whose requests take fewer seconds. Limits on latency apply to the sum of seconds."""

    def __init__(self, assembled: Assembled) -> None:
        super().__init__(assembled, Objective("throughput"))
        self.latencies = set()
        cluster, devices = assembled.cluster, assembled.cluster.devices
        turns = [[cluster.turns(*{source.name, target.name}) for target in devices] for source in devices]
        # Of a second that a model's request keeps a device (on the diagonal) or a link busy, the share that counts.
        self.counted = [share / np.array(turns) for share in self.shares]
        for counted, work in zip(self.counted, assembled.workloads, strict=True):
            counted[np.diag_indices(len(devices))] *= [work.profiles[device.name].sustained() for device in devices]

    def worth(self, totals: Totals) -> float:
        """The period of a placement, and a little of a request's seconds."""
        return period_s(self.assembled, totals) + _SPARING * totals.objective

    def replayed(self, played: Sequence[Played]) -> np.ndarray:
        """By placement, the same of replays, with their latency for the seconds."""
        busy_s = sum(replay.busy_s * counted for replay, counted in zip(played, self.counted, strict=True))
        latency_s = np.stack([replay.latency_s for replay in played], axis=1) @ self.shares
        return np.asarray(busy_s.max(axis=(1, 2)) + _SPARING * latency_s)

    def besides(self) -> np.ndarray:
        """Nothing (node, label)."""
        return np.zeros(self.costs.sums.unary.shape[:2])
