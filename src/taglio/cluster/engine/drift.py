"""Compare the last answers of a plan with its first ones: which devices and links have changed speed. Plans nothing.

A prediction that was wrong from the start is no drift.
"""

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import replace
from statistics import median

from taglio.cluster.devices import Cluster, Link
from taglio.cluster.engine.pipeline import Answer
from taglio.cluster.engine.wiring import Message
from taglio.plan.result import Plan
from taglio.profile.wall_time import summarize

# A window has at least so many answers and lasts at least so many seconds: under a quota of processor time, fifteen
# short requests run at full speed or meet one pause. The first window begins a while after the first answer, because
# deploying takes processor time, too.
_WINDOW, _WINDOW_S, _SETTLING_S = 15, 1.0, 1.0
# A device or link has drifted if the window is off by this factor, by this many seconds, and by this share of a
# request, so that another plan could pay.
_FACTOR, _LEAST_S, _SHARE = 1.5, 0.002, 0.2


class Windows:
    """The first and the last answers of a plan, without their outputs."""

    def __init__(self) -> None:
        self.first: list[Answer] = []
        self.last: deque[Answer] = deque()
        self._settled_s: float | None = None

    def add(self, answer: Answer) -> None:
        """Take the next answer into account."""
        if self._settled_s is None:
            self._settled_s = answer.answered_s + _SETTLING_S
        if answer.sent_s < self._settled_s:
            return
        answer = replace(answer, outputs=[])
        if not _long(self.first):
            self.first.append(answer)
            return
        self.last.append(answer)
        while len(self.last) > _WINDOW and answer.answered_s - self.last[1].sent_s >= _WINDOW_S:
            self.last.popleft()

    def full(self) -> bool:
        """Whether there are enough answers of both kinds to compare."""
        return _long(self.first) and _long(self.last)


def drifted(
    windows: Windows, plan: Plan, cluster: Cluster, messages: Sequence[Message]
) -> tuple[Cluster, dict[str, float], str]:
    """The cluster as measured by the last answers, factors on devices' times, and a description ("": no drift)."""
    factors: dict[str, float] = {}
    said: list[str] = []
    matters_s = max(_LEAST_S, _SHARE * median(answer.latency_s for answer in windows.first))
    for name, machines in plan.machines().items():
        pieces = {piece.component: piece.predicted_s for piece in plan.pieces if piece.device == name}
        planned_s = sum(pieces.values())
        if planned_s <= 0.0:
            continue
        before, now = (_busy_s(window, pieces) for window in (windows.first, windows.last))
        if _off(now, before, matters_s):
            factors |= dict.fromkeys(machines, now / planned_s)
            said.append(f"{name} takes {now / before:.2f} times as long as at first")
    for index, message in enumerate(messages):
        ends = message.ends(cluster.start)
        link = cluster.link(*ends)
        if link is None or ends[0] == ends[1]:
            continue
        before, now = (median(_hop_s(answer, index) for answer in window) for window in (windows.first, windows.last))
        if _off(now, before, matters_s):
            cluster = cluster.with_link(_fitted(link, message.bytes, now))
            said.append(f"{ends[0]} to {ends[1]} takes {now / before:.2f} times as long as at first")
    return cluster, factors, "; ".join(said)


def _long(window: Sequence[Answer]) -> bool:
    return len(window) >= _WINDOW and window[-1].answered_s - window[0].sent_s >= _WINDOW_S


def _busy_s(window: Sequence[Answer], components: Container[str]) -> float:
    """Sustained seconds of the components per request."""
    busy_s = [
        sum(step.end_s - step.start_s for step in answer.steps if step.component in components) for answer in window
    ]
    return summarize(busy_s, [answer.latency_s for answer in window]).steady_s


def _hop_s(answer: Answer, message: int) -> float:
    return max((hop.read_s - hop.sent_s for hop in answer.hops if hop.message == message), default=0.0)


def _off(now_s: float, before_s: float, matters_s: float) -> bool:
    ratio = max(now_s, 1e-9) / max(before_s, 1e-9)
    return max(ratio, 1.0 / ratio) > _FACTOR and abs(now_s - before_s) > matters_s


def _fitted(link: Link, count_bytes: int, found_s: float) -> Link:
    """The link with the bandwidth that explains a message's time, or the latency if bytes hardly matter."""
    rest = found_s - link.latency_s
    if rest <= 0.0 or count_bytes < 1500:
        return replace(link, latency_s=found_s, gap_s=min(link.gap_s, found_s))
    return replace(link, bandwidth_bytes_per_s=count_bytes / rest)
