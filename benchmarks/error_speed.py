"""The switchable graph against truly quantised models: are the errors the same, and how much sooner are they known?
And how long the error stage takes on large networks.

Every subset is evaluated on one held-out input, as the notes did. The slow way is the notes' own: ONNX Runtime's
quantize_static, which calibrates and saves, then load and run. Beside it taglio's own builder in its place, which
quantises weights and calibrates once for all. 1,100 evaluations are made on the switchable graph; the slow ways are
timed on every 100th and every 25th of them, interleaved, and multiplied: "extrapolated" says so.

    python benchmarks/error_speed.py [--cases a,b] [--stages yolo11n-seg,yolo11x-seg]    ("" for none of either)
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from cases import markdown, open_case, write
from error_cases import NETWORKS, open_network
from regressions import score
from taglio.error.measure import ErrorMeter
from taglio.error.study import random_subsets
from taglio.error.tally import Tally
from taglio.flow.error import error_model
from taglio.flow.profile import profile_as
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

SUBSETS, EVALUATIONS, EVERY, EVERY_STATIC = 50, 1100, 25, 100
SEED = 31


def measure(name: str) -> dict[str, Any]:
    """Both ways on one network, on one input."""
    network = open_network(name, views=1)
    work = network.work
    sample, names = work.data.held_out.samples[0], work.model.outputs
    options = SessionOptions(work.setup.threads, spinning=work.setup.spinning)
    reference = run_session(open_session(work.model.proto, options), names, sample, name)

    def slowly(assignment: Any, folder: Path) -> float:
        path = folder / "model.onnx"
        onnx.save(network.builder.build(assignment), path)
        tally = Tally(names)
        tally.add(reference, run_session(open_session(path, options), names, sample, name))
        return float(tally.l2().max())

    def statically(assignment: Any, folder: Path) -> None:
        names_of = {block.name: block.operators for block in work.graph.blocks}
        path = folder / "static.onnx"
        onnx.save(work.model.proto, folder / "float32.onnx")
        quantize_static(
            folder / "float32.onnx",
            path,
            _Reader(work.data.calibration.samples),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            nodes_to_quantize=[operator for block in assignment for operator in names_of[block]],
        )
        run_session(open_session(path, options), names, sample, name)

    start = time.perf_counter()
    switchable = work.switchable(DEFAULT_SCHEME)
    meter = ErrorMeter(switchable, [sample], names)
    open_s = time.perf_counter() - start
    subsets = random_subsets(work.graph, precisions(DEFAULT_SCHEME), EVALUATIONS, SEED)
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        slowly(subsets[0], folder)  # quantises the weights, once for all
        fast, slow_s, static_s, fast_s = [], [], list[float](), open_s
        slow: dict[int, float] = {}
        for index, subset in enumerate(subsets):
            start = time.perf_counter()
            fast.append(meter.error(subset))
            fast_s += time.perf_counter() - start
            if index % EVERY == 0 or index < SUBSETS:
                start = time.perf_counter()
                slow[index] = slowly(subset, folder)
                if index % EVERY == 0:
                    slow_s.append(time.perf_counter() - start)
            if index % EVERY_STATIC == 0:
                start = time.perf_counter()
                statically(subset, folder)
                static_s.append(time.perf_counter() - start)
    truth, guess = np.array([slow[i] for i in range(SUBSETS)]), np.array(fast[:SUBSETS])
    compared = score(guess, truth)
    return {
        "case": name,
        "subsets": SUBSETS,
        "median_relative_difference": compared.median_relative,
        "largest_relative_difference": float(np.max(np.abs(guess / truth - 1.0))),
        "spearman": compared.spearman,
        "evaluations": len(subsets),
        "open_s": open_s,
        "fast_s": fast_s,
        "slow_each_s": float(np.mean(slow_s)),
        "slow_timed": len(slow_s),
        "slow_extrapolated_s": float(np.mean(slow_s)) * len(subsets),
        "static_each_s": float(np.mean(static_s)),
        "static_timed": len(static_s),
        "static_extrapolated_s": float(np.mean(static_s)) * len(subsets),
        "calibration_inputs": len(work.data.calibration.samples),
    }


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Calibration samples as quantize_static asks for them."""

    def __init__(self, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._left = iter(samples)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self._left, None)


def stage(name: str, effort: float) -> dict[str, Any]:
    """The whole error stage: opening the switchable graph, measuring, fitting. Calibration is not part of it."""
    work = open_case(name)
    profile = profile_as(work.at(0.05), DEFAULT_SCHEME)
    start = time.perf_counter()
    work.settled(DEFAULT_SCHEME).switchable(DEFAULT_SCHEME)
    open_s = time.perf_counter() - start
    model = error_model(work, profile, effort=effort)
    took = time.perf_counter() - start
    ratios = [abs(each.predicted / each.error - 1.0) for each in model.subsets if each.error > 0.0]
    return {
        "case": name,
        "open_s": open_s,
        "stage_s": took,
        "evaluations": model.evaluations,
        "samples": model.samples,
        "blocks": len([block for block in work.graph.candidates() if not block.movement]),
        "median_relative_error": float(np.median(ratios)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--stages", default="yolo11n-seg,yolo11x-seg")
    parser.add_argument("--effort", type=float, default=1.0)
    options = parser.parse_args()
    results, rows, stages, stage_rows = [], [], [], []
    for name in filter(None, options.cases.split(",")):
        try:
            results.append(measure(name))
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        each = results[-1]
        cells = [name, f"{each['median_relative_difference']:.2e}", f"{each['largest_relative_difference']:.2e}"]
        cells += [f"{each['spearman']:.4f}", f"{each['fast_s']:.1f}", f"{each['slow_extrapolated_s']:.0f}"]
        cells += [f"{each['slow_extrapolated_s'] / each['fast_s']:.1f}", f"{each['static_extrapolated_s']:.0f}"]
        rows.append([*cells, f"**{each['static_extrapolated_s'] / each['fast_s']:.1f}**"])
        print(" | ".join(rows[-1]), flush=True)
    for name in filter(None, options.stages.split(",")):
        try:
            stages.append(stage(name, options.effort))
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        each = stages[-1]
        cells = [name, str(each["blocks"]), str(each["evaluations"]), str(each["samples"])]
        stage_rows.append([*cells, f"{each['stage_s']:.1f}", f"{each['median_relative_error']:.1%}"])
        print(" | ".join(stage_rows[-1]), flush=True)
    if results:
        header = ["network", "median relative difference", "largest", "Spearman", f"{EVALUATIONS} evaluations s"]
        header += ["by taglio's builder s (extrapolated)", "times faster", "by quantize_static s (extrapolated)"]
        table = markdown([*header, "times faster"], rows)
        print(f"wrote {write('error_speed', {'options': vars(options), 'cases': results}, table)}")
    if stages:
        header = ["network", "blocks", "evaluations", "inputs", "error stage s", "unseen subsets within (median)"]
        figures = {"options": vars(options), "cases": stages}
        print(f"wrote {write('error_stage', figures, markdown(header, stage_rows))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
