"""How a result is to be run, as the user asks: for the latency of a run or for a rate, with threads that are given or
chosen. Measures nothing itself."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from taglio.arguments import positive
from taglio.errors import BadOption
from taglio.flow.threads import with_threads
from taglio.lab.setup import Setup
from taglio.lab.work import Work
from taglio.notes import Note
from taglio.plan.result import Plan
from taglio.runtimes.way import Way
from taglio.ways.choose import Goal

LATENCY, RATE = "latency", "rate"


@dataclass(frozen=True, slots=True)
class Running:
    """What is sought: the shortest run if `rate` is None. `threads` says whether their number is chosen."""

    rate: Goal | None
    threads: bool

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with which the model is opened. For a rate, forms are chosen for runs of one thread, which is
        usually best where several run at once."""
        alone = self.rate is not None and given.get("threads") is None
        return {**given, "threads": 1} if alone else dict(given)

    def fitted(self, work: Work, plan: Plan | None = None) -> tuple[Work, Note | None]:
        """The work with the threads that suit the source model, or a plan, if they are chosen, and a note."""
        return with_threads(work, plan) if self.threads else (work, None)


def running(objective: str, max_latency_s: float | None, settings: Mapping[str, Any] | None) -> Running:
    """What is sought of a model that is opened with `settings`; None: it is opened already, with its threads. Raises
    BadOption for what does not fit together."""
    if objective not in (LATENCY, RATE):
        raise BadOption(f"`objective` is {objective}: give {LATENCY} or {RATE}; other aims need a cluster")
    if objective == LATENCY:
        if max_latency_s is not None:
            raise BadOption(f"`max_latency_s` limits a rate: give `objective` {RATE}, too")
        return Running(None, settings is not None and settings.get("threads") is None)
    limit_s = None if max_latency_s is None else positive("max_latency_s", max_latency_s)
    return Running(Goal(limit_s, (settings or {}).get("threads")), threads=False)


def in_way(setup: Setup, way: Way) -> Setup:
    """The set-up of a result that is delivered in a way."""
    return replace(setup, **asdict(way))
