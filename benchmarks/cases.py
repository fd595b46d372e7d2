"""The networks that benchmarks run on, and how their results are written. Measures nothing.

Real networks lie in ../shared beside the repository and are not part of it; a case whose files are missing is skipped
and said.
"""

import gzip
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import onnx

from taglio.artifact import tools
from taglio.cores import available_cores
from taglio.embedded import digits_data, digits_model
from taglio.flow.opening import Model
from taglio.lab.work import Work
from taglio.profile.machine import describe
from taglio.runtimes.places import AUTO

Row = TypeVar("Row")

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
RESULTS = ROOT / "benchmarks" / "results"
CACHE = ROOT / "out" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Case:
    """A network with its data: photographs with their preprocessing, or what make_data.py calls its `samples`."""

    name: str
    model: str
    images: str = ""
    preprocess: str = ""
    samples: str = ""


CASES = {
    case.name: case
    for case in (
        Case("digits", ""),
        Case("ultraface-rfb-320", "models/ultraface-rfb-320.onnx", "faces-*.jpg", "rgb,mean=127,scale=1/128"),
        Case("yunet-n-640", "models/yunet-n-640.onnx", "faces-*.jpg", "bgr,mean=0,scale=1"),
        Case("yolo11n-seg", "models/yolo11n-seg.topology.onnx.gz", "coco-*.jpg", "rgb,mean=0,scale=1/255,letterbox"),
        Case("yolo11s-seg", "models/yolo11s-seg.topology.onnx.gz", "coco-*.jpg", "rgb,mean=0,scale=1/255,letterbox"),
        Case("yolo11x-seg", "models/yolo11x-seg.topology.onnx.gz", "coco-*.jpg", "rgb,mean=0,scale=1/255,letterbox"),
        Case("magika", "models/wild/magika-standard_v3_3.onnx", samples="magika"),
        Case("paraphrase-MiniLM-L3-v2-6000", "models/wild/paraphrase-MiniLM-L3-v2-6000.onnx", samples="minilm"),
        Case("ch_PP-OCRv4_rec_infer", "models/wild/ch_PP-OCRv4_rec_infer.onnx", samples="rec"),
        Case("ch_PP-OCRv4_det_infer", "models/wild/ch_PP-OCRv4_det_infer.onnx", samples="det"),
        Case("silero_vad_op18_ifless", "models/wild/silero_vad_op18_ifless.onnx", samples="silero"),
    )
}
# Trained networks of others.
WILD = tuple(name for name, case in CASES.items() if case.samples)


def paths(case: Case) -> tuple[Path, Path]:
    """Model file and data of a case, prepared under out/. Raises FileNotFoundError where ../shared lacks it."""
    if case.name == "digits":
        return digits_model(), digits_data()
    source = SHARED / case.model
    if not source.exists():
        raise FileNotFoundError(f"{case.name}: {source} is missing: benchmarks need ../shared")
    if case.samples:
        samples = CACHE / "wild" / f"{case.samples}.npz"
        if not samples.exists():
            runpy.run_path(str(source.with_name("make_data.py")))["main"](samples.parent)
        return source, samples
    folder = CACHE / case.name
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    for image in sorted((SHARED / "images").glob(case.images)):
        link = images / image.name
        if not link.exists():
            link.symlink_to(image)
    if not source.name.endswith(".gz"):
        return source, images
    filled = folder / f"{case.name}.onnx"
    if not filled.exists():
        fill = runpy.run_path(str(SHARED / "models" / "fill_weights.py"))["fill"]
        with gzip.open(source) as file:
            onnx.save(fill(file.read(), 0), filled)
    return filled, images


def arguments(name: str) -> list[str]:
    """The model and data of a case, as `taglio optimize` takes them."""
    case = CASES[name]
    model, data = paths(case)
    return [str(model), "--data", str(data), *(["--preprocess", case.preprocess] if case.preprocess else [])]


def optimized(name: str, out: Path, *more: object, python: str = sys.executable) -> tuple[float, dict[str, Any]]:
    """Seconds of one `taglio optimize` of a case in a process of its own, and what it printed as JSON; `python` may be
    that of an environment with another version. Raises RuntimeError if it fails."""
    command = [python, "-m", "taglio", "optimize", *arguments(name), *map(str, more), "--json", "-o", str(out)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" or python == sys.executable}
    CACHE.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=CACHE)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr.strip().splitlines()[-1:]}")
    return time.perf_counter() - start, json.loads(done.stdout)


def open_case(name: str, threads: int | None = None, runtime: str = AUTO) -> Work:
    """The model of a case with its data."""
    case = CASES[name]
    model, data = paths(case)
    return Model(model, data, preprocess=case.preprocess, threads=threads or available_cores(), runtime=runtime)


def write(what: str, figures: dict[str, Any], table: str) -> Path:
    """Write results/<what>_<hardware>_<date>[_<cases>][_<number>].md: table, configuration, raw figures as JSON."""
    machine, now = describe(), datetime.now().astimezone()
    hardware = "-".join(machine.processor.replace("(R)", "").replace("(TM)", "").split()).lower()
    cases = next((sys.argv[i + 1] for i, word in enumerate(sys.argv) if word in ("--case", "--cases")), "")
    named = f"_{cases.replace(',', '+')}" if cases else ""  # runs of other cases on one day keep apart
    stem = f"{what}_{hardware}-{machine.cores}c_{now:%Y-%m-%d}{named}"
    # What is there stays: two machines of one name and day, or one at two hours, are two results.
    numbers = chain([""], (f"_{number}" for number in count(2)))
    path = next(path for number in numbers if not (path := RESULTS / f"{stem}{number}.md").exists())
    commit = _commit()
    config = {"machine": asdict(machine), "commit": commit, "tools": tools(), "figures": figures}
    body = json.dumps(config, indent=1, default=_plain)
    path.write_text(
        f"# {what}\n\n{machine}, {machine.system}, {now:%Y-%m-%d %H:%M}, commit {commit}.\n"
        f"Command: `{shlex.join(['python', str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]])}`\n\n"
        f"{table}\n\n<details><summary>configuration and raw figures</summary>\n\n```json\n{body}\n```\n\n</details>\n"
    )
    return path


def show(what: str, figures: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Write a result and print it: one JSON object instead of `text` if asked for."""
    written = write(what, figures, text)
    print(json.dumps({**figures, "wrote": str(written)}) if as_json else f"{text}\nwrote {written}")


class Kept(Generic[Row]):
    """The rows of a long benchmark in a file, one JSON object a line, so that an interrupted run goes on."""

    def __init__(self, path: Path, kind: type[Row], *, again: bool) -> None:
        """`again` starts anew."""
        if again:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._path, self.rows = path, [msgspec.json.decode(line, type=kind) for line in lines]

    def add(self, row: Row) -> None:
        """Keep another row."""
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(msgspec.json.encode(row).decode() + "\n")


def end_once() -> None:
    """On SIGTERM unwind, so that what is emulated goes and what was measured is written; a second one does not cut that
    short."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _commit() -> str:
    """The commit of the code that runs, with a mark where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "not recorded"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
