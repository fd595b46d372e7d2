"""What is damaged, and the commands that read it. One attempt ends in success or in one line of refusal.

Damages are drawn from a seed, so a finding is repeated by its name: target and seed.
"""

import io
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image

from taglio.cli import main
from tests.backend_suite.compose import compose
from tests.cluster.test_file import FILE
from tests.end_to_end.command import SCHEME
from tests.fuzz.mutate import damage_bytes, damage_json, damage_model, damage_text
from tests.models import TINY

PEAK_BYTES = 2 * 1024**3
CODES = (0, 2, 3)
# Composed graphs that hold an If, a Loop, an LSTM, local functions, several inputs.
COMPOSED = (1, 2, 3, 5, 8, 13, 21, 34)
ARTIFACTS = (
    "setup.json", "calibrated.json", "profile.json", "error.json", "plan.json", "run.json",
    "components/manifest.json",
)  # fmt: skip
PICTURES = ("jpg", "png", "webp", "bmp")
READERS: tuple[tuple[str, ...], ...] = (
    ("error", "{}", "--effort", "0.001"),
    ("plan", "{}", "--max-error", "0.1", "--effort", "0.001"),
    ("plan", "{}", "--max-error", "0.1", "--cluster", "{}/cluster.toml"),
    ("build", "{}"),
    ("run", "{}", "--runs", "3"),
    ("report", "{}"),
)
CLUSTER = FILE.replace("active_watts", "cpus = 0.5\nsend_ms = 2\nreceive_ms_per_mb = 12\nactive_watts").replace(
    "latency_ms = 5\n", "latency_ms = 5\ngap_ms = 1\n"
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One damage of one target, in a copy of `base`."""

    target: str
    seed: int
    base: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What should not have happened; `what` is empty where all was well."""

    what: str
    command: str = ""


def make_models(folder: Path) -> None:
    """Models, and data for some of them."""
    models = folder / "models"
    models.mkdir()
    for name, build in TINY.items():
        onnx.save(build(), models / f"{name}.onnx")
    for seed in COMPOSED:
        (models / f"graph-{seed}.onnx").write_bytes(compose(seed).model)
    samples = np.random.default_rng(0).standard_normal((10, 3, 8, 8)).astype(np.float32)
    np.save(folder / "data.npy", samples)
    np.savez_compressed(folder / "data.npz", x=samples, labels=np.arange(10))
    (folder / "data.csv").write_text("".join(f"{index},{index % 3}\n" for index in range(10)))
    pictures = folder / "pictures"
    pictures.mkdir()
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 3, "maker"
    for index, kind in enumerate(PICTURES):
        image = Image.fromarray(np.uint8(40 * np.abs(samples[index].transpose(1, 2, 0))))
        more: dict[str, Any] = {} if kind == "bmp" else {"exif": exif}
        image.save(pictures / f"{index}.{kind}", **more)


def attempt(what: Attempt) -> Finding:
    """Damage, run, judge. Raises nothing."""
    rng = random.Random(f"{what.target} {what.seed}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = TARGETS[what.target](rng, Path(what.base), folder)
        for command in commands:
            found = _judge(command)
            if found is not None:
                return Finding(found.replace(name, ""), " ".join(command).replace(name, ""))
    return Finding("")


def _judge(command: tuple[str, ...]) -> str | None:
    _reset_peak()
    try:
        code, err = _captured(command)
    except Exception as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "/taglio/" in each.filename]
        where = f"{frames[-1].filename.rpartition('/taglio/')[2]}, {frames[-1].name}" if frames else "?"
        return f"traceback: {type(error).__name__} in {where}: {' '.join(str(error).split())[:200]}"
    if (peak := _peak()) > PEAK_BYTES:
        return f"memory: {peak / 1024**3:.1f} GiB"
    if code not in CODES:
        return f"exit code {code}: {err[-200:]!r}"
    if code != 0 and (len(err.splitlines()) != 1 or not err.startswith("taglio: ")):
        return f"not one line: {err[-300:]!r}"
    if "Traceback" in err:
        return f"a traceback beside success: {err[-300:]!r}"
    return None


def _captured(command: tuple[str, ...]) -> tuple[int, str]:
    """Exit code and standard error. Raises what the command raises."""
    err = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(err):
        try:
            code = main(command)
        except SystemExit as stop:  # --help
            code = stop.code if isinstance(stop.code, int) else 1
    return code, err.getvalue()


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _models(rng: random.Random, base: Path, folder: Path) -> list[tuple[str, ...]]:
    source = rng.choice(sorted((base / "models").iterdir()))
    damage = damage_bytes if rng.random() < 0.3 else damage_model
    path = folder / "model.onnx"
    path.write_bytes(damage(rng, source.read_bytes()))
    commands: list[tuple[str, ...]] = [("inspect", str(path))]
    if rng.random() < 0.3:
        commands.append(("quantize", str(path), "--data", str(base / "data.npy"), "-o", str(folder / "q.onnx")))
    return commands


def _workspace(base: Path, folder: Path) -> Path:
    out = Path(shutil.copytree(base / "out", folder / "out"))
    (out / "cluster.toml").write_text(CLUSTER)
    return out


def _artifacts(rng: random.Random, base: Path, folder: Path) -> list[tuple[str, ...]]:
    out = _workspace(base, folder)
    path = out / rng.choice(ARTIFACTS)
    damage = damage_bytes if rng.random() < 0.1 else damage_json
    path.write_bytes(damage(rng, path.read_bytes()))
    return [tuple(word.format(out) for word in rng.choice(READERS))]


def _clusters(rng: random.Random, base: Path, folder: Path) -> list[tuple[str, ...]]:
    out = _workspace(base, folder)
    path = out / "cluster.toml"
    damage = damage_bytes if rng.random() < 0.1 else damage_text
    path.write_bytes(damage(rng, path.read_bytes()))
    return [("plan", str(out), "--max-error", "0.1", "--cluster", str(path))]


def _data(rng: random.Random, base: Path, folder: Path) -> list[tuple[str, ...]]:
    """Arrays, pictures and labels."""
    model = ("quantize", str(base / "models" / "pyramid.onnx"), "-o", str(folder / "q.onnx"))
    source = base / rng.choice(("data.npy", "data.npz", "data.csv", "pictures"))
    data = folder / source.name
    if source.is_dir():
        shutil.copytree(source, data)
        path = rng.choice(sorted(data.iterdir()))
    else:
        path = Path(shutil.copy(source, folder))
    path.write_bytes(damage_bytes(rng, path.read_bytes()))
    if source.suffix == ".csv":
        plan = (str(base / "models" / "pyramid.onnx"), "--data", str(base / "data.npy"), "--labels", str(data))
        return [("profile", *plan, "--scheme", SCHEME, "--effort", "0.001", "-o", str(folder / "out"))]
    return [(*model, "--data", str(data))]


TARGETS: dict[str, Callable[[random.Random, Path, Path], list[tuple[str, ...]]]] = {
    "models": _models,
    "artifacts": _artifacts,
    "clusters": _clusters,
    "data": _data,
}
