"""Attempts in processes until the time is over, and what they found, grouped. Damages nothing itself."""

import re
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.backend_suite.pool import Died, run_all
from tests.fuzz.targets import Attempt, attempt

HANG_S = 60.0
KNOWN = Path(__file__).with_name("known.toml")


@dataclass(frozen=True, slots=True)
class Found:
    """One kind of finding: its signature, and the attempt and command that showed it first."""

    target: str
    what: str
    seed: int
    command: str
    detail: str

    def __str__(self) -> str:
        return f"{self.target} seed {self.seed}: {self.detail} (taglio {self.command})"


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """`attempts` by target; `findings`, one of each signature; `times` each was found."""

    attempts: Counter[str]
    findings: tuple[Found, ...]
    times: Counter[str]


def fuzz(base: str, targets: Sequence[str], seconds: float, *, first_seed: int = 0, workers: int = 2) -> Fuzzed:
    """Attempts of all `targets` in turn, each for about `seconds` of one core."""
    end = time.monotonic() + seconds * len(targets) / workers

    def items() -> Iterator[Attempt]:
        seed = first_seed
        while True:
            for target in targets:
                if time.monotonic() > end:
                    return
                yield Attempt(target, seed, base)
            seed += 1

    return gather(items(), workers)


def gather(items: Iterator[Attempt], workers: int) -> Fuzzed:
    """Run attempts and group what they find."""
    attempts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    findings: dict[str, Found] = {}
    for item, result in run_all(attempt, items, workers=workers, timeout_s=HANG_S):
        attempts[item.target] += 1
        if isinstance(result, Died):
            what = f"hang over {HANG_S:.0f} s" if result.timeout else f"crash, exit code {result.exit_code}"
            command = ""
        else:
            what, command = result.what, result.command
        if what:
            key = signature(item.target, what)
            times[key] += 1
            if key not in findings:
                findings[key] = Found(item.target, key, item.seed, command, what)
    return Fuzzed(attempts, tuple(findings.values()), times)


def signature(target: str, what: str) -> str:
    """What tells one kind of finding from another: names, numbers and paths left out."""
    if what.startswith("traceback: "):
        return f"{target}: {what.split(': ')[1]}"
    return f"{target}: {re.sub(r'[0-9.]+', 'N', what)[:60]}"


def known() -> dict[str, str]:
    """Today's faults by signature, from known.toml: an example, target and seed; "" where what is damaged holds
    measured times, for a seed gives another damage each time then."""
    entries = tomllib.loads(KNOWN.read_text(encoding="utf-8")).get("fault", [])
    return {entry["what"]: entry.get("example", "") for entry in entries}


def report(result: Fuzzed) -> str:
    """A table of what was found."""
    lines = [f"{target}: {count} attempts" for target, count in result.attempts.items()]
    often = sorted(result.findings, key=lambda found: -result.times[found.what])
    lines += [f"{result.times[each.what]:6}  {'known' if each.what in known() else 'NEW':5}  {each}" for each in often]
    return "\n".join(lines)
