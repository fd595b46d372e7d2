"""Plans within the limits, near the Lagrangian's bound: each way to find them in turn, until the gap is small."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from taglio.plan.branching import Branching
from taglio.plan.crossover import cross
from taglio.plan.descent import Descent
from taglio.plan.dive import dive
from taglio.plan.known import Known
from taglio.plan.ledger import Ledger
from taglio.plan.multipliers import Prices
from taglio.plan.prices import Account
from taglio.plan.program import Program
from taglio.plan.relaxation import Relaxation

# Plans within this many gaps of the bound are bettered by HiGHS, for so long at most: a share of the time up to then.
_NEAR, _MIXING_S, _MIXING_SHARE = 7.0, 0.3, 0.1
# And so many nodes.
_MIXED = 60
# A given plan within so many gaps of the bound is proven in one go, as it is likely the best: bounds can be that loose.
_GIVEN = 100.0
# What bettering a few answers, and crossing one of them with others, may take: shares of the time up to then.
_NEARING_SHARE, _CROSSING_SHARE = 0.5, 0.5
# Of the time of branching, what bettering its answers may take; of the time up to then, what crossing one of them may.
_BETTERING_SHARE, _CROSSING_THERE = 0.25, 0.03
# What branching gets of the time that is left while no plan is known.
_BRANCHING_SHARE = 0.8
# Gaps above the bound up to which branching looks for plans at first; how much further each time that none is, and
# where so few nodes in all halves had to be looked into that doing so once more costs next to nothing.
_AIM, _FURTHER, _FEW, _FAR = 0.9, 2.0, 300, 10.0
# (share of the rest fixed in a round, chunks it is fixed in, from the back): tried in turn until the gap is small.
_DIVES = ((0.5, 4, False), (0.5, 8, True), (0.5, 1, False), (0.7, 16, True), (0.3, 4, False), (0.3, 8, True))
# Answers that are crossed with each other.
_CROSSED = 20


class Finder:
    """Betters what is known."""

    def __init__(self, known: Known) -> None:
        self.known = known

    def run(self, relaxation: Relaxation, pool: list[Account], prices: Prices) -> None:
        """Plans within the limits from the answers near the best prices."""
        market = self.known.market
        relaxation.run(market.price(prices.multipliers))
        marginals = relaxation.marginals()
        offered = self._offered(marginals)
        ledger = Ledger(market)
        descent = Descent(market, ledger)
        good = self.known.bound / (1.0 - self.known.gap) if self.known.bound > 0 else self.known.bound
        answers = Answers(self.known.worth)
        answers.add(pool)
        if self.known.labels is not None:
            answers.add([market.account(market.price(prices.multipliers), self.known.labels)])
        # A running plan that is not far from the bound is likely the best: prove that in one go.
        given = self.known.given is not None and self._is_near(_GIVEN)
        aim = np.inf if given else _AIM
        for starts, crossing in () if given else ((2, False), (1, True)):
            self._near(descent, offered, answers, prices.multipliers, good, starts, crossing=crossing)
            self._mix(marginals, good)
        further = 1.0
        while further and not self._ended():
            aim *= further
            upto = self.known.bound + aim * self.known.gap * abs(self.known.bound)
            further = self._branch(relaxation, descent, marginals, answers, prices.multipliers, upto, good)
            self._mix(marginals, good)
        for share, chunks, backwards in _DIVES:
            if self._ended():
                break
            found, last = dive(
                market,
                ledger,
                offered,
                pool,
                prices.shares,
                prices.multipliers,
                scale=abs(self.known.bound),
                share=share,
                chunks=chunks,
                arity=relaxation.arity,
                backwards=backwards,
            )
            for account in found:
                self.known.offer(account)
            answers.add(found)
            self._near(descent, offered, answers, last, good, 3, crossing=False)
            self._mix(marginals, good)
        if np.isfinite(self.known.objective) and not self.known.done():
            self.known.keep(marginals, self.known.cutoff())

    def _offered(self, marginals: np.ndarray) -> np.ndarray:
        """Labels that are tried in plans: those with a bound near the least one, and the best of every node."""
        least = float(marginals.min())
        near = least + 3.0 * self.known.gap * abs(least)
        kept: np.ndarray = marginals <= np.maximum(near, marginals.min(axis=1))[:, None]
        return kept

    def _ended(self) -> bool:
        """Whether the gap is small enough, no plan is left among the labels that are alive, or time is up."""
        known = self.known
        proven = known.done() or known.bound >= known.floor or known.bound > known.most
        return proven or time.perf_counter() > known.deadline

    def _branch(
        self,
        relaxation: Relaxation,
        descent: Descent,
        marginals: np.ndarray,
        answers: "Answers",
        multipliers: np.ndarray,
        aim: float,
        good: float,
    ) -> float:
        """Look for plans up to `aim` by branching; where there is none, that is a bound. How much further to look then;
        0 where time ran out."""
        aim = min(aim, self.known.floor)
        upto = min(aim, self.known.cutoff())
        alive = self.known.alive & (marginals <= upto)
        if not alive.any(axis=1).all():
            self.known.bound = max(self.known.bound, upto)
            return _FURTHER
        market = self.known.market
        begun = time.perf_counter()
        seen, spent = 0, 0.0
        worths: list[float] = []

        def show(account: Account, multipliers: np.ndarray, marginals: np.ndarray) -> None:
            nonlocal seen, spent
            self.known.offer(account)
            answers.add([account])
            now = time.perf_counter()
            worths.append(self.known.worth(account))
            # Time goes to the answers that are nearer to a plan than most.
            if spent <= _BETTERING_SHARE * (now - begun) and worths[-1] <= np.median(worths):
                seen += 1
                here, turn = self._offered(marginals), _CROSSING_THERE if seen % 2 == 1 else 0.0
                self._better(descent, here, answers, multipliers, account.labels, good, crossing=turn)
                spent += time.perf_counter() - now

        def close(labels: np.ndarray) -> bool:
            cutoff = min(aim, self.known.cutoff())
            limit = until - time.perf_counter()
            program = Program(market, labels)
            found = program.solve(time_limit_s=limit, gap=0.2 * self.known.gap, cutoff=cutoff)
            self.known.improve(found)
            return found.infeasible or found.bound >= min(aim, self.known.cutoff())

        share = 1.0 if np.isfinite(self.known.objective) else _BRANCHING_SHARE
        until = begun + share * (self.known.deadline - begun)
        branching = Branching(market, lambda: min(aim, self.known.cutoff()), show, close, until)
        bound = branching.run(alive, multipliers, relaxation)
        self.known.bound = max(self.known.bound, bound)
        if bound < min(aim, self.known.cutoff()):
            return 0.0
        return _FAR if market.nodes * (1 + len(worths)) <= _FEW else _FURTHER

    def _is_near(self, gaps: float = _NEAR) -> bool:
        return self.known.objective - self.known.bound <= gaps * self.known.gap * abs(self.known.bound)

    def _mix(self, marginals: np.ndarray, good: float) -> None:
        """Better the best plan by HiGHS, where it is near the bound: the nodes of which a second label raises the bound
        least may change, the others stay."""
        if self.known.done() or self.known.labels is None or not self._is_near():
            return
        if self.known.objective >= self.known.mixed:
            return
        self.known.mixed = self.known.objective
        seconds = np.where(marginals > marginals.min(axis=1)[:, None], marginals, np.inf).min(axis=1)
        seconds = np.sort(seconds[np.isfinite(seconds)])
        reach = self.known.bound + 0.4 * self.known.gap * abs(self.known.bound)
        reach = min(reach, seconds[_MIXED]) if len(seconds) > _MIXED else reach
        offered = marginals <= reach
        offered[np.arange(len(offered)), self.known.labels] = True
        now = time.perf_counter()
        limit = min(_MIXING_S, _MIXING_SHARE * (now - self.known.started), self.known.deadline - now)
        program = Program(self.known.market, offered)
        self.known.improve(
            program.solve(time_limit_s=limit, gap=0.2 * self.known.gap, cutoff=self.known.objective, target=good)
        )

    def _near(
        self,
        descent: Descent,
        offered: np.ndarray,
        answers: "Answers",
        multipliers: np.ndarray,
        good: float,
        starts: int,
        *,
        crossing: bool,
    ) -> None:
        """Better the few answers that are nearest to a plan, then the best plan."""
        begun = time.perf_counter()
        until = min(self.known.deadline, begun + _NEARING_SHARE * (begun - self.known.started))
        for labels in answers.nearest()[:starts]:
            if self.known.done() or time.perf_counter() > until:
                return
            self._better(
                descent, offered, answers, multipliers, labels, good, crossing=_CROSSING_SHARE if crossing else 0.0
            )
        if crossing and self.known.labels is not None and not self.known.done():
            self._better(descent, offered, answers, multipliers, self.known.labels, good, crossing=_CROSSING_SHARE)

    def _better(
        self,
        descent: Descent,
        offered: np.ndarray,
        answers: "Answers",
        multipliers: np.ndarray,
        labels: np.ndarray,
        good: float,
        *,
        crossing: float,
    ) -> None:
        """Take regions of other answers, for a share `crossing` of the time up to now, then single nodes, from `labels`
        on."""
        market, priced = self.known.market, self.known.market.price(multipliers)
        if crossing:
            now = time.perf_counter()
            until = min(self.known.deadline, now + crossing * (now - self.known.started))
            nearest = answers.nearest()
            labels = cross(market, descent.ledger, descent.near, priced, multipliers, labels, nearest, deadline=until)
        objective, labels = descent.improve(priced, multipliers, labels, offered, good_enough=good)
        if objective < self.known.objective:
            self.known.offer(self.known.market.account(priced, labels))


class Answers:
    """Labellings of the Lagrangian, those first that are nearest to a plan."""

    def __init__(self, worth: Callable[[Account], float]) -> None:
        self.worth = worth
        self.known: set[bytes] = set()
        self.kept: list[tuple[float, int, np.ndarray]] = []

    def add(self, accounts: Sequence[Account]) -> None:
        """Take the new ones in; the worst are forgotten."""
        for account in accounts:
            key = account.labels.tobytes()
            if key not in self.known:
                self.known.add(key)
                self.kept.append((self.worth(account), len(self.known), account.labels))
        self.kept = sorted(self.kept, key=lambda each: each[:2])[:_CROSSED]

    def nearest(self) -> list[np.ndarray]:
        """Labels, the nearest first."""
        return [labels for _, _, labels in self.kept]
