"""Accept or reject a plan by held-out inputs that took no part in its selection, as values. Runs nothing.

A plan is accepted if all held-out inputs keep the limit, those of the search and the unseen ones alike, and the upper
end of the error over all of them, one-sided at `LIKELY`, is at most `BEYOND` times the limit. Every candidate that is
measured on unseen inputs is a chance to pass by luck, so there are at most `CANDIDATES`.
"""

from dataclasses import dataclass

from taglio.error.loss import Metric
from taglio.errors import plural
from taglio.notes import Kind, Note

CANDIDATES = 3
# A plan is rejected if the one-sided 80 % upper end of its error is more than a tenth above the limit.
LIKELY, BEYOND = 0.8, 1.1
# The share of the limit to stay within after a rejection: the first if the unseen inputs broke the limit. It does not
# depend on by how much, which would fit plans to these inputs. The second if only the upper end was too large: plans
# come this close to the limit within which they are searched for.
_ROOM, _FULL = 0.8, 0.97
# The upper end that is reported.
UPPER = 0.95
# The confidence with which the share of new inputs that are worse than the worst unseen one is bounded.
_SURE = 0.9


@dataclass(frozen=True, slots=True)
class Unseen:
    """The plan on the unseen `inputs`: its `error` over all of them, and that of the `worst` input (None for a metric
    without a value by input). With 90 % confidence, at most the share `share_worse` of new inputs like these has a
    larger error than the worst; None where these inputs chose among several plans, or are steps of one session.
    `candidates` is how many plans were measured on them until one was accepted."""

    inputs: int
    error: float
    worst: float | None
    share_worse: float | None
    candidates: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """A plan that keeps the limit on the inputs of the search and was rejected. `error` is the one that is too large:
    the upper end over all inputs (`at_end`), or the error on the unseen ones. `speed_up` is over float, in a short
    race. Plans that use no more than the share `room` of the limit are expected to be accepted."""

    speed_up: float
    error: float
    at_end: bool
    room: float

    @property
    def needed(self) -> float:
        """The limit that would have accepted the plan."""
        return self.error / BEYOND if self.at_end else self.error

    def note(self, metric: Metric, limit: float) -> Note:
        """A note that says what the rejection cost in speed, and why the plan was rejected."""
        plan = f"a faster plan (about {self.speed_up:.2f} ×, not confirmed) was rejected"
        digits = next((digits for digits in (2, 3) if metric.text(self.error, digits) != metric.text(limit, digits)), 4)
        reached, most = metric.text(self.error, digits), metric.text(limit, digits)
        if self.at_end:
            why = f": on other inputs its {metric.title} may reach {reached} ({most} allowed; one-sided 80 %)"
        else:
            why = f" on unseen inputs: {metric.title} {reached} ({most} allowed)"
        return Note(Kind.REJECTED_PLAN, f"{plan}{why}")


def rejection(
    speed_up: float, error: float, unseen: float | None, likely_end: float | None, room: float = 1.0
) -> Rejected:
    """The rejection of a plan with this `error` over all inputs, which was searched for within the share `room` of the
    limit. Its error on `unseen` inputs broke the limit; if that is None, its `likely_end` is too large."""
    room = min(room, BEYOND * error / likely_end) if likely_end else room
    if unseen is not None or likely_end is None:
        return Rejected(speed_up, error if unseen is None else unseen, at_end=False, room=_ROOM * room)
    return Rejected(speed_up, likely_end, at_end=True, room=_FULL * room)


def share_worse(inputs: int) -> float:
    """The largest share of new inputs that may be worse than the worst of n `inputs`, with 90 % confidence. If a share
    q of all inputs were worse than it, none of the n would be so only with probability (1 − q)^n."""
    return float(1.0 - (1.0 - _SURE) ** (1.0 / inputs))


def accepted(limit: float, searched: float, unseen: float | None, likely_end: float | None) -> bool:
    """Whether a plan is accepted, from its judged errors on the inputs of the search and on the unseen ones (None:
    there are none), and the end of its error over all at `LIKELY` (None: unknown)."""
    if searched > limit or unseen is None:
        return searched <= limit
    return unseen <= limit and (likely_end is None or likely_end <= BEYOND * limit)


def selected_note(inputs: int) -> Note:
    """A note where there are too few held-out inputs to keep some unseen."""
    return Note(
        Kind.SELECTED,
        f"the plan was selected on the same {plural(inputs, 'held-out input')} on which its error is reported: expect "
        "a larger error on others; from 24 distinct held-out inputs (48 samples of data) on, a third is kept unseen",
    )


def unseen_note(unseen: Unseen, metric: Metric) -> Note | None:
    """What the unseen inputs say about new ones, if anything."""
    if unseen.share_worse is None or unseen.worst is None:
        return None
    return Note(
        Kind.FACT,
        f"if new inputs are like these: worst of {unseen.inputs} unseen inputs {metric.text(unseen.worst, 2)}; with "
        f"90 % confidence at most {unseen.share_worse:.0%} of new ones are worse",
    )
