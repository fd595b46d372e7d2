"""Whether a promise of an earlier result still holds, as pure rules. Measures nothing.

A promise is judged against its record: files against their hashes, error against the limit and the recorded error,
speed against the recorded interval. What cannot be judged here says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from taglio.confirm.speedup import Speedup
from taglio.errors import plural
from taglio.ways.result import Figure

# Exit codes beside those of errors.py.
BROKEN_CODE, UNKNOWN_CODE = 5, 6
# Half of a speed-up's interval, as a share of its middle. A race on a quiet machine ends at 0.038 (confirm/race.py);
# with both processors in use by others, 0.39 × (0.18 to 0.87) was measured where 1.11 × (1.07 to 1.16) was promised.
_NOISY = 0.1
# The same files on the same versions and processor give the same error, but for the order of float sums, which may flip
# a rounding to int8.
_ROUNDING = 0.01


class Verdict(StrEnum):
    """What became of a promise; `reported` is for what was never promised, or for another machine."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "cannot be judged"
    REPORTED = "not judged"


@dataclass(frozen=True, slots=True)
class Promise:
    """One row: what was promised, the value then and now, the verdict, and the reason or what to do ("" for none)."""

    name: str
    then: str
    now: str
    verdict: Verdict
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """All promises of a result. A broken one outranks one that cannot be judged."""

    promises: tuple[Promise, ...]

    @property
    def verdict(self) -> Verdict:
        """That of the whole."""
        verdicts = {promise.verdict for promise in self.promises}
        return next((verdict for verdict in (Verdict.BROKEN, Verdict.UNKNOWN) if verdict in verdicts), Verdict.HOLDS)

    @property
    def exit_code(self) -> int:
        """0 if everything holds, 5 if a promise is broken, 6 if one cannot be judged."""
        return {Verdict.BROKEN: BROKEN_CODE, Verdict.UNKNOWN: UNKNOWN_CODE}.get(self.verdict, 0)


def same_error(
    then: float, now: float, judged: float, limit: float | None, *, same_platform: bool
) -> tuple[Verdict, str]:
    """The verdict on an error on the same data; `judged` is the value that the limit bounds."""
    if limit is not None and judged > limit:
        return Verdict.BROKEN, "the limit is broken: run taglio optimize on this machine"
    if same_platform and abs(now - then) > _ROUNDING * max(then, 1e-6):
        return Verdict.BROKEN, "files, versions and processor are the same, but the error is not: a file was replaced"
    return Verdict.HOLDS, ""


def error_on_new_data(loss: float, ends: tuple[float, float] | None, limit: float | None) -> tuple[Verdict, str]:
    """The verdict on an error on other data, from the one-sided lower and upper `ends` of its loss (None: they are not
    known)."""
    if limit is None:
        return Verdict.REPORTED, "no limit was given"
    low, high = ends or (loss, loss)
    if low > limit:
        return Verdict.BROKEN, "the limit is broken on these inputs: run taglio optimize with them"
    if high > limit:
        return Verdict.UNKNOWN, "too few inputs to tell: give more"
    return Verdict.HOLDS, ""


def files_promise(delivered: int, changed: Sequence[str]) -> Promise:
    """Whether all files are those delivered."""
    detail = "run taglio build again, or copy the directory again" if changed else ""
    now = f"changed or missing: {', '.join(changed)}" if changed else "unchanged"
    return Promise("files", plural(delivered, "file"), now, Verdict.BROKEN if changed else Verdict.HOLDS, detail)


def speed_promise(
    name: str, then: Speedup | Figure, now: Speedup | Figure, *, same_processor: bool, detail: str = ""
) -> Promise:
    """Whether a speed-up, or a capacity as a multiple of the source's, reaches the lower end of what was promised; on
    another processor it is only reported. It cannot be judged if the interval is wide, and twice as wide would reach
    that end: other programs slow two models differently. `detail` says what it is measured beside."""
    promise = Promise(name, str(then), str(now), Verdict.HOLDS, detail)
    if not same_processor:
        detail = "another processor: run taglio optimize on it for the fastest plan there"
        return replace(promise, verdict=Verdict.REPORTED, detail=detail)
    if now.high >= then.low:
        return promise
    is_noisy = now.high - now.low > _NOISY * (now.high + now.low)
    if is_noisy and now.high**2 >= now.low * then.low:
        detail = "this machine is too noisy to tell: run taglio check again with nothing else running"
        return replace(promise, verdict=Verdict.UNKNOWN, detail=detail)
    return replace(promise, verdict=Verdict.BROKEN, detail="run taglio optimize again with these versions")
