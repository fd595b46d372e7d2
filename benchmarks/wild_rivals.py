"""What else a user could do with each network, beside taglio's result, in one interleaved run: `wild.py --rivals`.

Float in ONNX Runtime and in every place that OpenVINO has here, ONNX Runtime's own static and dynamic quantisation, and
NNCF where it is installed, opened in every place of OpenVINO. Errors are relative L2, of the worst part of the outputs,
on the inputs that taglio holds out; only what keeps the limit counts. What cannot be made is a row with the reason.
"""

import json
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from onnxruntime.quantization import QuantType, quantize_dynamic

from rivals import quantized
from taglio.compare import environments
from taglio.components.build import read
from taglio.error.tally import Tally
from taglio.errors import one_line
from taglio.flow.opening import Model
from taglio.lab.work import Work
from taglio.runtimes.onnxruntime import NAME, SessionOptions, open_session
from taglio.runtimes.places import here
from taglio.runtimes.session import Session, opener

_WARMUP, _CALIBRATED = 3, 64
# ConvInteger is three to eight times slower than a float Conv: dynamic int8 is for these.
_DYNAMIC = ["MatMul", "Gemm", "LSTM", "GRU"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a network: what was measured, or why there is nothing."""

    name: str
    place: str
    latency_s: float = inf
    error: float = inf
    reason: str = ""
    ours: float = 0.0

    def holds(self, limit: float) -> bool:
        """Whether it counts at a limit; taglio's results count at their own."""
        return self.error <= limit and self.ours in (0.0, limit)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model to be measured: how it was made, how it is opened, its file, and the limit of one of taglio's."""

    way: str
    options: SessionOptions
    path: Path
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Contest:
    """All ways of one network."""

    network: str
    ways: tuple[Way, ...]

    def best(self, limit: float, *, ours: bool) -> Way | None:
        """The fastest that holds: of taglio's results, or of the others."""
        holding = [way for way in self.ways if bool(way.ours) == ours and way.holds(limit)]
        return min(holding, key=lambda way: way.latency_s, default=None)

    def baseline_s(self) -> float:
        """Seconds of float in ONNX Runtime."""
        return next(way.latency_s for way in self.ways if (way.name, way.place) == ("float", NAME))


def contest(model: Path, data: Path, ours: Mapping[float, Path], threads: int, budget_s: float) -> Contest:
    """Every way of one network; `ours` are the folders that taglio left, by limit."""
    work = Model(model, data, threads=threads)
    with TemporaryDirectory() as name:
        folder = Path(name)
        files, failed = _made(work, model, folder)
        options = [SessionOptions(threads, runtime=place) for place in here()]
        entries = [Entry("float", opening, model) for opening in options]
        entries += [
            Entry(way, opening, path)
            for way, path in files.items()
            for opening in options
            if (opening.runtime == NAME) != (path.suffix == ".xml")
        ]
        for limit, out in ours.items():
            (piece,) = read(out / "components").pieces
            opened = SessionOptions(threads, runtime=piece.runtime)
            entries.append(Entry("taglio", opened, out / "components" / piece.file, limit))
        ways = _measured(work, entries, budget_s)
    return Contest(model.stem, (*ways, *failed))


def _made(work: Work, model: Path, folder: Path) -> tuple[dict[str, Path], list[Way]]:
    """Files by way, and what could not be made."""
    samples = list(work.data.calibration.samples[:_CALIBRATED])

    makers: dict[str, Callable[[Path], None]] = {
        "ONNX Runtime static": lambda target: quantized(model, target, samples),
        "ONNX Runtime dynamic": lambda target: quantize_dynamic(
            model, target, op_types_to_quantize=_DYNAMIC, weight_type=QuantType.QInt8
        ),
    }
    files, failed = dict[str, Path](), list[Way]()
    for index, (way, make) in enumerate(makers.items()):
        target = folder / f"{index}.onnx"
        try:
            make(target)
            open_session(target, SessionOptions(1), label=way)
            files[way] = target
        except Exception as error:  # ONNX Runtime's tools raise whatever they meet
            failed.append(Way(way, NAME, reason=one_line(error, 120)))
    place = environments.find("nncf")
    if place.interpreter is None:
        failed.append(Way("NNCF", "openvino", reason=place.reason))
        return files, failed
    (folder / "data").mkdir()
    for index, sample in enumerate(samples):
        np.savez(folder / "data" / f"{index:04}.npz", allow_pickle=False, **dict(sample))
    worker = Path(__file__).with_name("rivals_nncf.py")
    done = subprocess.run(
        [str(place.interpreter), str(worker), str(model), str(folder / "data"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        failed.append(Way("NNCF", "openvino", reason=one_line((done.stderr.splitlines() or ["it crashed"])[-1])))
        return files, failed
    for index, (way, reason) in enumerate(json.loads((folder / "nncf.json").read_text()).items()):
        if reason:
            failed.append(Way(way, "openvino", reason=reason))
        else:
            files[way] = folder / f"nncf-{index}.xml"
    return files, failed


def _measured(work: Work, entries: Sequence[Entry], budget_s: float) -> list[Way]:
    """Errors on all held-out inputs, then times, interleaved."""
    outputs, held_out = list(work.model.outputs), work.data.held_out.samples
    reference = open_session(work.model.proto, entries[0].options)
    wanted = [reference.run(outputs, dict(sample)) for sample in held_out]
    sessions: dict[int, Session] = {}
    errors: dict[int, float] = {}
    reasons: dict[int, str] = {}
    for index, entry in enumerate(entries):
        try:
            session = opener(entry.options.runtime)(entry.path, entry.options)
            tally = Tally(work.parts, watched=True)
            for sample, answers in zip(held_out, wanted, strict=True):
                tally.add(answers, session.run(outputs, dict(sample)))
            parts = tally.parts()
            errors[index] = inf if any(part.lost for part in parts) else max(part.loss for part in parts)
            sessions[index] = session
        except Exception as error:  # the runtimes' exceptions share no useful base class
            reasons[index] = one_line(error, 120)
    seconds = _times(sessions, work.typical, budget_s)
    return [
        Way(
            entry.way,
            entry.options.runtime,
            seconds.get(index, inf),
            errors.get(index, inf),
            reasons.get(index, ""),
            entry.limit,
        )
        for index, entry in enumerate(entries)
    ]


def _times(
    sessions: Mapping[int, Session], feeds: Sequence[Mapping[str, np.ndarray]], budget_s: float
) -> dict[int, float]:
    """Median seconds by session, every round in a fresh order. Each first runs uncounted, at most three times in 40 ms:
    the caches then hold what they hold where it is deployed alone."""
    once_s = {index: _second(session, dict(feeds[0])) for index, session in sessions.items()}
    refills = {index: min(3, int(0.04 / seconds)) for index, seconds in once_s.items()}
    seconds: dict[int, list[float]] = {index: [] for index in sessions}
    order, shuffle, begun, done = list(sessions), random.Random(0), time.perf_counter(), 0
    while done < _WARMUP + 3 or time.perf_counter() - begun < budget_s:
        shuffle.shuffle(order)
        for index in order:
            for visit in range(refills[index] + 1):
                feed = dict(feeds[(done + visit) % len(feeds)])
                start = time.perf_counter()
                sessions[index].run(None, feed)
            seconds[index].append(time.perf_counter() - start)
        done += 1
    return {index: median(times[_WARMUP:]) for index, times in seconds.items()}


def _second(session: Session, feed: dict[str, np.ndarray]) -> float:
    """Seconds of the second run, which allocates no more."""
    session.run(None, feed)
    start = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - start


def rows(contests: Sequence[Contest], limits: Sequence[float]) -> tuple[list[str], list[list[str]]]:
    """The table: per network and limit, taglio's result beside the best rival, over float in ONNX Runtime."""
    head = ["network", "limit", "float, ms", "best rival", "× float", "taglio in", "× float", "taglio ÷ rival"]
    lines = []
    for result in contests:
        for limit in limits:
            rival, ours = result.best(limit, ours=False), result.best(limit, ours=True)
            base = result.baseline_s()
            rival_s = rival.latency_s if rival else base
            ours_s = ours.latency_s if ours else base
            theirs = f"{rival.name}, {rival.place} ({rival.error:.2%})" if rival else "none"
            mine = f"{ours.place} ({ours.error:.2%})" if ours else "no result: float"
            lines.append(
                [result.network, f"{limit:.0%}", f"{base * 1e3:.2f}", theirs, f"{base / rival_s:.2f}", mine,
                 f"{base / ours_s:.2f}", f"{rival_s / ours_s:.2f}"]
            )  # fmt: skip
    return head, lines


def means(contests: Sequence[Contest], limit: float) -> tuple[float, float]:
    """Geometric means of the speed-up over float in ONNX Runtime: of taglio and of the best rival, or of float."""
    gains = []
    for ours in (True, False):
        speed = []
        for result in contests:
            way, base_s = result.best(limit, ours=ours), result.baseline_s()
            speed.append(base_s / (way.latency_s if way else base_s))
        gains.append(prod(speed) ** (1.0 / max(1, len(speed))))
    return gains[0], gains[1]


def everything(contests: Sequence[Contest]) -> tuple[list[str], list[list[str]]]:
    """A row for each way of each network."""
    lines = []
    for result in contests:
        for way in sorted(result.ways, key=lambda way: way.latency_s):
            name = f"taglio, limit {way.ours:.0%}" if way.ours else way.name
            took = "" if way.latency_s == inf else f"{way.latency_s * 1e3:.2f}"
            error = "" if way.error == inf else f"{way.error:.2%}"
            lines.append([result.network, name, way.place, took, error, way.reason])
    return ["network", "way", "runtime", "ms", "error", ""], lines
