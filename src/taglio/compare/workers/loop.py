"""Run one back end's rows: open, check, time interleaved, report. Independent of back ends."""

import gc
import random
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np

from taglio.compare.request import Request
from taglio.compare.row import Latency, RowCheck, Status, WantedRow
from taglio.compare.workers.binding import Binding, bind
from taglio.compare.workers.contract import Array, Backend, Opened, Refused
from taglio.error.parts import OutputParts, whole
from taglio.error.tally import Tally
from taglio.errors import one_line, with_kind
from taglio.memory import used_bytes
from taglio.profile.refills import refills

Tell = Callable[..., None]  # sends an event: see compare/request.py
Wait = Callable[[bool], None]
FEWEST_ROUNDS, MOST_ROUNDS = 3, 60
# Most rows open at once, which are lost if a comparison is stopped.
MOST_OPEN = 16
# Largest difference between a converted float model and the original; above it every row of the back end has a note.
CONVERSION_TOLERANCE = 1e-3
_MEMORY_WORDS = ("bad_alloc", "out of memory", "can't allocate memory", "cannot allocate memory", "failed to allocate")


def rows(request: Request, backend: Backend, tell: Tell, wait: Wait = lambda _: None) -> None:
    """Open and check every row, then time them in rounds together with the float row.

    Rows stay open until they are timed; when they fill `request.memory_bytes` or number MOST_OPEN, the open rows are
    timed, and only the float row stays for the next group. `wait` is called before each round that counts, with whether
    it is the first of its group.
    """
    open_rows = _OpenRows(request, tell, wait)
    untimed = 0
    for wanted in sorted(request.rows, key=lambda row: not row.baseline):
        tell("at", wanted.id)
        try:
            opened = backend.open(wanted)
            checked = open_rows.check(wanted, opened)
        except Refused as refusal:
            tell("refused", wanted.id, refusal.status, str(refusal))
            continue
        except Exception as error:  # a back end may raise any error, which fails only this row
            traceback.print_exc()
            tell("refused", wanted.id, *describe(error))
            continue
        tell("checked", wanted.id, checked)
        open_rows.group[wanted.id] = opened
        untimed += 1
        if (used_bytes() > request.memory_bytes and len(open_rows.group) > 1) or len(open_rows.group) >= MOST_OPEN:
            open_rows.time()
            untimed = 0
    if untimed:
        open_rows.time()


def describe(error: BaseException) -> tuple[Status, str]:
    """Status and reason of an error."""
    text = one_line(error, 400)
    if isinstance(error, MemoryError) or any(word in text.lower() for word in _MEMORY_WORDS):
        return "out of memory", text or "the back end could not allocate"
    return "failed", with_kind(error, 400)


class _OpenRows:
    """The rows that are open, and what the first rows of a back end decide for all: outputs, baseline, warning."""

    def __init__(self, request: Request, tell: Tell, wait: Wait) -> None:
        self._request, self._tell, self._wait = request, tell, wait
        self._binding: Binding | None = None
        self._float_outputs: list[tuple[Array, ...]] = []
        self._warning = ""
        self._baseline = ""
        self._again = False  # the baseline was already timed with an earlier group
        self.group: dict[str, Opened] = {}

    def check(self, wanted: WantedRow, opened: Opened) -> RowCheck:
        """Run a row on the held-out samples, and compare its outputs with the float row's and the original's."""
        request, notes = self._request, list(opened.notes)
        outputs = []
        for sample in request.held_out:
            raw = [np.asarray(output) for output in opened.run(sample)]
            if self._binding is None:
                self._binding = bind(request.reference[0], raw)
            outputs.append(tuple(np.array(output, copy=True) for output in self._binding(raw)))
        assert self._binding is not None
        if not all(np.isfinite(np.asarray(output, np.float64)).all() for sample in outputs for output in sample):
            raise Refused("its outputs are NaN or infinite on the held-out inputs", "failed")
        to_original = distance(request.reference, outputs, request.parts)
        if wanted.baseline:
            self._baseline, self._float_outputs = wanted.id, outputs
            if to_original > CONVERSION_TOLERANCE:
                self._warning = (
                    f"the float model's answers here differ from the original's by {to_original:.2%} "
                    f"(limit {CONVERSION_TOLERANCE:.1%})"
                )
        to_float = distance(self._float_outputs, outputs, request.parts) if self._float_outputs else None
        notes += [note for note in (self._binding.note() if wanted.baseline else "", self._warning) if note]
        return RowCheck(
            opened.size_bytes,
            to_float,
            to_original,
            dict(sorted(opened.operators.items())),
            dict(sorted(opened.int8_operators.items())),
            tuple(notes),
            opened.file,
        )

    def time(self) -> None:
        """Time the open rows in rounds in which each runs, in a new random order, after one round that does not count;
        then close all but the float row."""
        request, sample, shuffle = self._request, self._request.held_out[0], random.Random(0)
        seconds = {name: list[float]() for name in self.group}
        rounds, done = 1 + FEWEST_ROUNDS, 0
        while done < rounds:
            if done:
                self._wait(done == 1)
            shuffle.shuffle(names := list(seconds))
            total_s = 0.0
            for name in names:
                self._tell("at", name)
                begun = time.perf_counter()
                try:
                    seconds[name].append(timed(partial(self.group[name].run, sample)))
                    total_s += time.perf_counter() - begun
                except Exception as error:
                    self._tell("refused", name, *describe(error))
                    del seconds[name]
            if not done:
                affordable = int(request.budget_s * len(seconds) / max(1, len(request.rows)) / max(total_s, 1e-9))
                rounds = 1 + max(FEWEST_ROUNDS, min(MOST_ROUNDS, affordable))
            done += 1
        counted = {name: samples[1:] for name, samples in seconds.items()}
        middle = median(counted[self._baseline]) if self._baseline in counted else None
        for name, samples in counted.items():
            if name == self._baseline and self._again:
                continue  # reported with the first group; in later groups only compared with
            centre = median(samples)
            spread = median(abs(sample_s - centre) for sample_s in samples)
            latency = Latency(centre, spread, float(np.percentile(samples, 95)), len(samples), middle)
            self._tell("timed", name, latency)
        self.group = {name: opened for name, opened in self.group.items() if name == self._baseline}
        self._again = True
        gc.collect()


def distance(
    reference: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]], parts: OutputParts | None = None
) -> float:
    """Relative L2 pooled over samples, the largest over `parts` (None: outputs); infinite if an output is not
    finite."""
    meter = Tally(parts or whole([str(index) for index in range(len(reference[0]))]))
    for expected, output in zip(reference, outputs, strict=True):
        meter.add(expected, output)
    return float(meter.value())


def timed(run: Callable[[], object]) -> float:
    """Seconds of one run after those that fill the caches: other rows have evicted its weights and code, unlike those
    of a served model. A run too long to be repeated counts itself."""
    taken_s = _once(run)
    for _ in range(refills(taken_s)):
        taken_s = _once(run)
    return taken_s


def _once(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
