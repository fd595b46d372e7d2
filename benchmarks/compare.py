"""What does each back end make of each network? The fastest row within 1 %, and how many of its rows could be measured.

    python benchmarks/compare.py --cases ultraface-rfb-320,yolo11n-seg [--backends a,b] [--effort 0.1]

Each comparison is `taglio compare MODEL --data DATA`, kept under out/ with its page, and is not repeated while
it is there. Rows that could not be measured say why in the table that the command prints, and below.
"""

import argparse
import subprocess
import sys
from collections import Counter
from typing import Any

from cases import CACHE, CASES, markdown, paths, write
from taglio import artifact
from taglio.compare.ranking import standings
from taglio.compare.result import COMPARISON, Comparison


def compared(name: str, options: argparse.Namespace) -> Comparison:
    """The comparison of one network, made by the command line where it is missing."""
    out = CACHE / name / "compare"
    path = out / f"{COMPARISON}.json"
    if not path.exists():
        model, data = paths(CASES[name])
        words: list[Any] = ["compare", model, "--data", data, "--effort", options.effort, "-o", out]
        words += ["--preprocess", CASES[name].preprocess] if CASES[name].preprocess else []
        words += ["--backends", options.backends] if options.backends else []
        subprocess.run([sys.executable, "-m", "taglio", *map(str, words)], check=True)
    return artifact.load(path, COMPARISON, Comparison)


def rows_of(name: str, result: Comparison) -> list[list[str]]:
    """A line for each back end."""
    found = []
    for each in standings(result.rows, result.backends, result.max_error):
        line = [name, each.backend, f"{each.measured} of {each.total}"]
        if each.row is None or each.row.latency is None or each.row.checked is None or each.seconds is None:
            found.append([*line, "none", "", "", "", ""])
            continue
        latency, checked = each.row.latency, each.row.checked
        found.append(
            [
                *line,
                each.row.wanted.id.partition("/")[2],
                f"{each.seconds * 1e3:.2f} ms",
                "" if latency.speedup is None else f"{latency.speedup:.2f}",
                "" if latency.against_reference is None else f"{latency.against_reference:.2f}",
                f"{checked.error_to_original:.2%}",
            ]
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,yunet-n-640,yolo11n-seg")
    parser.add_argument("--backends", default="", help="those of taglio compare, in its order; all without")
    parser.add_argument("--effort", type=float, default=0.1)
    options = parser.parse_args()
    rows, figures = [], {}
    for name in options.cases.split(","):
        try:
            result = compared(name, options)
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        rows += rows_of(name, result)
        reasons = Counter(
            f"{row.wanted.backend}: {row.status}: {row.reason}" for row in result.rows if row.status != "measured"
        )
        figures[name] = {
            "seconds": result.wall_s,
            "versions": result.versions,
            "recommended": result.recommended,
            "not_measured": dict(reasons),
        }
        print(f"{name}: {result.wall_s:.0f} s; fastest within the limit: {result.recommended}", flush=True)
    header = ["network", "back end", "rows measured", "fastest within 1 %", "latency", "× own float"]
    header += ["× ONNX Runtime's float", "error"]
    text = markdown(header, rows)
    print(f"{text}\nwrote {write('compare', figures, text)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
