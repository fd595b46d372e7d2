"""What a GPU brings: `taglio optimize` on a machine with an NVIDIA GPU.

Each network is optimised with every place of the machine, so float is timed in all of them in one run; its error is
from the same run.

    python benchmarks/gpu.py --cases ultraface-rfb-320,yunet-n-640 [--max-error 0.01] [--effort 0.05]
    python benchmarks/gpu.py --folder DIR       (NAME.onnx beside NAME.npz)
"""

import argparse
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import taglio
from cases import CASES, markdown, paths, write
from taglio.errors import TaglioError
from taglio.runtimes import cuda
from taglio.runtimes.places import refusal

CPU = ("onnxruntime", "openvino")


def optimized(model: Path, data: Path, preprocess: str, limit: float, effort: float) -> dict[str, Any]:
    start = time.perf_counter()
    result = taglio.optimize(model, data, max_error=limit, effort=effort, preprocess=preprocess)
    table = result.table
    assert table is not None, "a measured result has a table"
    return {
        "seconds": time.perf_counter() - start,
        "plan": {"runtime": result.plan.runtime, "int8": len(result.plan.assignment())},
        "plan_s": table.plan.latency.median_s,
        "error": table.plan.error,
        "places": [{**asdict(row), "latency_s": row.measured_s} for row in table.places],
        "doubt": table.doubt,
    }


def line(name: str, figures: dict[str, Any]) -> list[str]:
    def of(places: tuple[str, ...], label: str = "") -> str:
        rows = [row for row in figures["places"] if row["runtime"] in places and row["latency_s"] is not None]
        rows = [row for row in rows if (row["holds"] or not label) and label in ("", row["name"])]
        if not rows:
            return "–"
        best = min(rows, key=lambda row: row["latency_s"])
        error = "" if best["error"] is None else f" ({best['error']:.2%})"
        return f"{best['latency_s'] * 1e3:.2f}{error}"

    return [
        name,
        of(("onnxruntime",), "float32"),
        of(CPU),
        *(of((place,)) for place in cuda.PLACES),
        figures["plan"]["runtime"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--max-error", type=float, default=0.01)
    parser.add_argument("--effort", type=float, default=0.05)
    options = parser.parse_args()
    if reason := refusal(cuda.NAME):
        sys.exit(f"no GPU here: {reason}")
    given = {name: (*paths(CASES[name]), CASES[name].preprocess) for name in options.cases.split(",") if name}
    if options.folder:
        given |= {path.stem: (path, path.with_suffix(".npz"), "") for path in sorted(options.folder.glob("*.onnx"))}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    figures: dict[str, Any] = {}
    for name, (model, data, preprocess) in given.items():
        try:
            row = optimized(model, data, preprocess, options.max_error, options.effort)
        except TaglioError as error:
            print(f"{name}: {error}", flush=True)
            continue
        figures[name] = row
        print(name, row, flush=True)
    if not figures:
        sys.exit("no network was measured")
    head = ["network", "float on the CPU, ms", "best on the CPU", *cuda.PLACES, "plan"]
    table = markdown(head, [line(network, row) for network, row in figures.items()])
    text = "\n\n".join(part for part in (gpu, table) if part)
    print(f"wrote {write('gpu', {'gpu': gpu, **figures}, text)}")


if __name__ == "__main__":
    main()
