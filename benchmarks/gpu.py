"""What a GPU brings: `taglio optimize` beside PyTorch on a machine with an NVIDIA GPU.

Each network is optimised with every place of the machine, so float is timed in all of them in one run; its error, the
share of copies and what the provider leaves to the CPU are from the same run. With --pytorch the float rows of
`taglio compare` on the GPU follow, in ONNX Runtime and in PyTorch, each in a process of its own.

    python benchmarks/gpu.py --cases ultraface-rfb-320,yunet-n-640 [--max-error 0.01] [--effort 0.05] [--pytorch]
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

ROWS = ("float32", "float32 cuda", "float32 cuda tf32", "float16 cuda", "float32 cuda compiled")
CPU = ("onnxruntime", "openvino", "openvino-bf16")


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
        "places": [asdict(row) for row in table.places],
        "notes": [note for note in table.notes if note.startswith(cuda.NAME)],
        "doubt": table.doubt,
    }


def compared(model: Path, data: Path, preprocess: str, effort: float) -> list[dict[str, Any]]:
    found = taglio.compare(
        model, data, backends=["onnxruntime", "pytorch"], rows=ROWS, preprocess=preprocess, effort=effort
    )
    return [
        {
            "row": row.wanted.id,
            "status": row.status,
            "reason": row.reason,
            "median_s": row.latency.median_s if row.latency else None,
            "error": row.checked.error_to_float if row.checked else None,
        }
        for row in found.rows
    ]


def line(name: str, found: dict[str, Any]) -> list[str]:
    def of(places: tuple[str, ...], label: str = "") -> str:
        rows = [row for row in found["places"] if row["runtime"] in places and row["latency_s"] is not None]
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
        *(of((each,)) for each in cuda.PLACES),
        found["plan"]["runtime"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--max-error", type=float, default=0.01)
    parser.add_argument("--effort", type=float, default=0.05)
    parser.add_argument("--pytorch", action="store_true")
    asked = parser.parse_args()
    if reason := refusal(cuda.NAME):
        sys.exit(f"no GPU here: {reason}")
    given = {name: (*paths(CASES[name]), CASES[name].preprocess) for name in asked.cases.split(",") if name}
    if asked.folder:
        given |= {each.stem: (each, each.with_suffix(".npz"), "") for each in sorted(asked.folder.glob("*.onnx"))}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    figures: dict[str, Any] = {}
    for name, (model, data, preprocess) in given.items():
        try:
            found = optimized(model, data, preprocess, asked.max_error, asked.effort)
            if asked.pytorch:
                found["compare"] = compared(model, data, preprocess, asked.effort)
        except TaglioError as error:
            print(f"{name}: {error}", flush=True)
            continue
        figures[name] = found
        print(name, found, flush=True)
        head = ["network", "float on the CPU, ms", "best on the CPU", *cuda.PLACES, "plan"]
        table = markdown(head, [line(each, found) for each, found in figures.items()])
        notes = "\n".join(f"* {each}: {note}" for each, found in figures.items() for note in found["notes"])
        rows = "\n".join(f"* {each}: {row}" for each, found in figures.items() for row in found.get("compare", ()))
    print(
        "wrote",
        write("gpu", {"gpu": told, **figures}, "\n\n".join(part for part in (told, table, notes, rows) if part)),
    )


if __name__ == "__main__":
    main()
