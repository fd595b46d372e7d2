"""What the research notes found beside what is measured here. Holds no experiment: each has a file of its own.

A claim is `confirmed`, `refuted`, `within the noise` (what was measured cannot tell), or `not testable here`, and says
what it was decided by.
"""

import argparse
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cases import CACHE, CASES, RESULTS, ROOT, SHARED, markdown, paths, write
from taglio.compare.environments import find
from taglio.compare.measure import compare
from taglio.compare.result import Comparison
from taglio.compare.row import Row
from taglio.cores import available_cores
from taglio.profile.machine import describe

FOLDER = CACHE / "notes"
CONFIRMED, REFUTED, UNTESTABLE, UNDECIDED = "confirmed", "refuted", "not testable here", "within the noise"


@dataclass(frozen=True, slots=True)
class Claim:
    """One finding of the notes: `theirs` as in their text, `ours` with its figures, and why the verdict is that."""

    what: str
    theirs: str
    ours: str
    verdict: str
    why: str


def options(doc: str | None) -> argparse.Namespace:
    """The options that every experiment has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effort", type=float, default=1.0, help="scales the time given to measuring")
    parser.add_argument("--threads", type=int, default=available_cores())
    return parser.parse_args()


def run(
    name: str,
    source: tuple[Path, Path],
    preprocess: str,
    asked: argparse.Namespace,
    backends: str,
    rows: tuple[str, ...],
    *,
    layers: bool = False,
) -> Comparison:
    """Compare `rows` of `backends` on a model."""
    model, data = source
    return compare(
        model, data, out=FOLDER / name, backends=backends.split(","), rows=rows, layers=layers, preprocess=preprocess,
        max_error=1.0, threads=asked.threads, effort=asked.effort, row_limit_s=600.0,
    )  # fmt: skip


def case_paths(name: str) -> tuple[Path, Path]:
    """Model and data of one of the benchmarks' networks."""
    return paths(CASES[name])


def run_case(name: str, asked: argparse.Namespace, backends: str, rows: tuple[str, ...]) -> Comparison:
    """Compare `rows` on one of the benchmarks' networks."""
    return run(name, case_paths(name), CASES[name].preprocess, asked, backends, rows)


def keras_network(name: str) -> tuple[Path, Path]:
    """A network of keras.applications with random weights, and random pictures: for time. Raises FileNotFoundError."""
    place = find("keras")
    if place.interpreter is None:
        raise FileNotFoundError(f"{name}: {place.reason}")
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    model, data = folder / f"{name}.keras", folder / "pictures.npy"
    if not model.exists():
        code = f"import keras\nkeras.applications.{name}(weights=None).save({str(model)!r})"
        subprocess.run([place.interpreter, "-c", code], check=True, capture_output=True)
    np.save(data, np.random.default_rng(0).standard_normal((6, 224, 224, 3)).astype(np.float32))
    return model, data


def trained_resnet() -> tuple[Path, Path]:
    """The trained Keras classifier for pictures of 32 by 32, and pictures. Raises FileNotFoundError."""
    model = SHARED / "models" / "mlperf-tiny-resnet8.h5"
    if not model.exists():
        raise FileNotFoundError(f"{model.name}: {model} is missing: benchmarks need ../shared")
    if (place := find("litert")).interpreter is None:
        raise FileNotFoundError(f"{model.name}: {place.reason}")
    return model, SHARED / "images"


def row(result: Comparison, key: str) -> Row:
    """The row `backend/key`. Raises LookupError, with the reason, where it was not measured."""
    found = next(each for each in result.rows if each.wanted.id == key)
    if found.latency is None:
        raise LookupError(f"{key} {found.status}: {found.reason}")
    return found


def seconds(result: Comparison, key: str) -> float:
    """Median seconds of a row."""
    latency = row(result, key).latency
    assert latency is not None
    return latency.median_s


def speedup(result: Comparison, key: str) -> float:
    """Float seconds over a row's, from the same rounds."""
    latency = row(result, key).latency
    assert latency is not None
    assert latency.speedup is not None
    return latency.speedup


def megabytes(result: Comparison, key: str) -> float:
    """Size of a row's file."""
    checked = row(result, key).checked
    assert checked is not None
    return checked.size_bytes / 1e6


def decided(condition: bool) -> str:
    """Confirmed or refuted."""
    return CONFIRMED if condition else REFUTED


def instructions() -> str:
    """What this machine has of the instructions that the notes speak of."""
    have = [each for each in describe().instructions if "vnni" in each or "amx" in each or "bf16" in each]
    return ", ".join(have) or "no VNNI, no AMX"


def multiplies_signed() -> bool:
    """Whether the processor multiplies s8 by s8 itself, which is what ONNX Runtime's x86 kernels for it need."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "avx_vnni_int8" in cpuinfo.read_text().split()


def ms(value_s: float) -> str:
    """Milliseconds."""
    return f"{value_s * 1e3:.2f} ms"


def report(what: str, claims: list[Claim], results: list[Comparison]) -> int:
    """Print the claims and write them with every row's figures."""
    for claim in claims:
        print(f"{claim.verdict.upper()}: {claim.what}\n  theirs: {claim.theirs}\n  ours:   {claim.ours}\n  {claim.why}")
    table = markdown(
        ["claim", "notes", "here", "verdict", "reason"],
        [[each.what, each.theirs, each.ours, f"**{each.verdict}**", each.why] for each in claims],
    )
    (RESULTS / "notes").mkdir(parents=True, exist_ok=True)
    print(f"wrote {write(f'notes/{what}', {'comparisons': [_portable(asdict(each)) for each in results]}, table)}")
    return 0


def _portable(value: Any) -> Any:
    """`value` with paths below this repository, or beside it, told from its root."""
    if isinstance(value, dict):
        return {name: _portable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(each) for each in value]
    return value.replace(f"{ROOT}/", "").replace(f"{ROOT.parent}/", "../") if isinstance(value, str) else value
