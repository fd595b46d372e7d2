"""What does `taglio optimize` cost? Whole processes: seconds, peak memory, and a fresh installation of the core.

python benchmarks/cost.py [--cases a,b] [--no-install]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cases import CACHE, ROOT, arguments, markdown, write


def optimize(name: str) -> dict[str, Any]:
    """One `taglio optimize --max-error 0.01 --json` in a process of its own."""
    command = [sys.executable, "-m", "taglio", "optimize", *arguments(name), "--max-error", "0.01"]
    command += ["-o", str(CACHE / name / "cost"), "--json"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    del printed["artifacts"]  # paths of one machine say nothing on another
    return {"case": name, "seconds": time.perf_counter() - start, **printed}


def install() -> float:
    """Seconds to make an environment and install the core into it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = Path(folder) / "bin" / "pip"
        subprocess.run(
            [pip, "install", "-q", "--disable-pip-version-check", str(ROOT)], check=True, capture_output=True
        )
        return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,yunet-n-640,yolo11n-seg,yolo11s-seg,yolo11x-seg")
    parser.add_argument("--no-install", action="store_true")
    options = parser.parse_args()
    results, rows = [], []
    for name in options.cases.split(","):
        try:
            results.append(optimize(name))
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        last = results[-1]
        stages = ", ".join(
            f"{stage} {seconds:.0f}" for stage, seconds in last["stage_seconds"].items() if seconds >= 0.5
        )
        rows.append(
            [
                name,
                f"{last['seconds']:.0f} s",
                f"{last['peak_memory_bytes'] / 2**30:.2f} GiB",
                f"{last['float32']['latency_s'] * 1e3:.1f}",
                f"{last['int8']['latency_s'] * 1e3:.1f} ({last['int8']['error']:.2%})",
                f"{last['plan']['latency_s'] * 1e3:.1f} ({last['plan']['error']:.2%})",
                stages,
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    figures: dict[str, Any] = {"cases": results}
    text = markdown(
        [
            "network",
            "optimize",
            "peak memory",
            "float ms",
            "all int8 ms (error)",
            "plan ms (error)",
            "seconds by stage",
        ],
        rows,
    )
    if not options.no_install:
        figures["install_s"] = install()
        text += f"\n\nFresh environment and installation of the core: **{figures['install_s']:.1f} s**."
        print(f"install {figures['install_s']:.1f} s")
    print(f"wrote {write('cost', figures, text)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
