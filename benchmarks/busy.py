"""Does `taglio optimize` notice a busy machine? Other programs spin on every processor for half of each run.

One run on a quiet machine comes first, and tells how long half a run is. The others are disturbed from their start,
from a quarter or from the middle on, in turn. Then float and all plans are timed side by side on the quiet machine
again. A disturbed run passes if its plan is there at most 5 % slower than that of the quiet run and was predicted
within 5 % of its time there, or if the run said by how much its figures may be off; and if its plan is not slower than
float.

    python benchmarks/busy.py [--case digits] [--runs 10] [--effort 0.3]
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import onnx

from cases import CACHE, CASES, arguments, markdown, paths, write
from taglio.components.build import read
from taglio.cores import available_cores
from taglio.flow.opening import Model
from taglio.runtimes.onnxruntime import SessionOptions

# What two copies of one model differ by here, and what a plan may be slower than float by.
_WITHIN, _NOISE = 0.05, 0.03
_STARTS = (0.0, 0.25, 0.5)


@dataclass(frozen=True, slots=True)
class Run:
    """One `taglio optimize`: when it was disturbed, as a share of a quiet run, what it said, and its plan's times."""

    name: str
    disturbed_from: float | None
    seconds: float
    predicted_s: float
    measured_s: float
    doubt: str
    folder: Path


def spin() -> None:
    while True:
        pass


def disturb(after_s: float, for_s: float, stop: threading.Event) -> None:
    """Keep every processor busy for a while."""
    if stop.wait(after_s):
        return
    spinning = [multiprocessing.Process(target=spin, daemon=True) for _ in range(available_cores())]
    for process in spinning:
        process.start()
    stop.wait(for_s)
    for process in spinning:
        process.kill()


def optimize(name: str, case: str, effort: float, disturbed_from: float | None, quiet_s: float) -> Run:
    folder = CACHE / "busy" / name
    command = [sys.executable, "-m", "taglio", "optimize", *arguments(case), "--max-error", "0.01"]
    command += ["--effort", str(effort), "--threads", "1", "--json", "-o", str(folder)]
    stop = threading.Event()
    half = (quiet_s * (disturbed_from or 0.0), quiet_s / 2, stop)
    other = threading.Thread(target=disturb, args=half if disturbed_from is not None else (1e6, 0.0, stop))
    other.start()
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    stop.set()
    other.join()
    printed = json.loads(done.stdout)
    plan = printed["plan"]
    doubt = printed["doubt"] or ""
    return Run(name, disturbed_from, seconds, plan["predicted_latency_s"], plan["latency_s"], doubt, folder)


def side_by_side(case: str, runs: list[Run]) -> dict[str, float]:
    """Seconds of float and of every plan as deployed, on the quiet machine."""
    work = Model(*paths(CASES[case]), preprocess=CASES[case].preprocess, threads=1)
    pieces = {run.name: read(run.folder / "components").pieces[0] for run in runs}
    files = {run.name: run.folder / "components" / pieces[run.name].file for run in runs}
    options = {name: SessionOptions(1, runtime=piece.runtime) for name, piece in pieces.items()}
    models = {"float": lambda: work.model.proto} | {name: partial(onnx.load, path) for name, path in files.items()}
    places = {"float": SessionOptions(1)} | options
    timed = work.stopwatch.time(models, work.within(20.0), places=places).all()
    return {name: model.wall.median_s for name, model in timed.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="digits", choices=CASES)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--effort", type=float, default=0.3)
    options = parser.parse_args()
    quiet = optimize("quiet", options.case, options.effort, None, 0.0)
    runs = [
        optimize(f"busy {index + 1}", options.case, options.effort, _STARTS[index % len(_STARTS)], quiet.seconds)
        for index in range(options.runs)
    ]
    measured_s = side_by_side(options.case, [quiet, *runs])
    passed, rows = 0, []
    for run in [quiet, *runs]:
        took_s = measured_s[run.name]
        as_quiet = took_s <= measured_s[quiet.name] * (1.0 + _WITHIN) and abs(run.predicted_s / took_s - 1.0) <= _WITHIN
        good = took_s <= measured_s["float"] * (1.0 + _NOISE) and (as_quiet or bool(run.doubt))
        passed += good and run is not quiet
        start = "" if run.disturbed_from is None else f"{run.disturbed_from:.0%}"
        times = [f"{seconds * 1e3:.3f}" for seconds in (run.predicted_s, run.measured_s, took_s)]
        rows.append([run.name, start, f"{run.seconds:.0f}", *times, run.doubt, "yes" if good else "no"])
    head = [
        "run",
        "disturbed from",
        "seconds",
        "predicted ms",
        "measured ms",
        "on a quiet machine ms",
        "said",
        "passes",
    ]
    text = f"{markdown(head, rows)}\n\nFloat takes {measured_s['float'] * 1e3:.3f} ms. {passed} of {len(runs)} pass."
    figures = {"options": vars(options), "runs": [asdict(run) for run in [quiet, *runs]], "seconds": measured_s}
    print(f"{text}\nwrote {write('busy', figures, text)}")
    return 0 if passed == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
