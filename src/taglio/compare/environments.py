"""Find each back end's interpreter and required versions. Starts no back end and builds nothing.

Back ends with conflicting packages have separate environments, in the user's cache folder or in TAGLIO_BACKENDS;
`taglio backends add NAME` builds them. A back end installed beside taglio is used from there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from platformdirs import user_cache_path

from taglio.compare.row import Status
from taglio.errors import BadEnvironment

VARIABLE = "TAGLIO_BACKENDS"
# A file in an environment that is being built; if the build fails it remains, with the reason.
UNFINISHED = "taglio-unfinished.txt"


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """An environment: its required packages, with the versions known to work with taglio, its size on Linux, and the
    first Python version without wheels for all.

    Everything else in it is pinned in `locks/NAME.txt`.
    """

    name: str
    packages: Mapping[str, str]
    disk_bytes: int
    python_below: tuple[int, int] = (3, 15)


_MB = 10**6
_ONNX, _TENSORFLOW, _TF_KERAS = {"onnx": ">=1.19,<2"}, {"tensorflow": ">=2.21,<2.22"}, {"tf-keras": ">=2.21,<2.22"}
_LITERT = {"ai-edge-litert": ">=2.3,<3", "ai-edge-quantizer": ">=0.10,<0.11", "tf2onnx": ">=1.17,<2"}
_TORCH = {"torch": ">=2.13,<2.14", "torchao": ">=0.18,<0.19", "onnx2torch": ">=1.5.15,<1.6"}
_EXPORT = {"onnxscript": ">=0.7,<0.8", "transformers": ">=5,<6"}
_QKERAS = {"qkeras": ">=0.9,<0.10", "pyparsing": ">=3.1,<3.2"}
ENVIRONMENTS = (
    Environment("openvino", {"openvino": ">=2026.4,<2027"}, 278 * _MB),
    Environment("openvino-ep", {"onnxruntime-openvino": ">=1.24,<2"}, 443 * _MB, (3, 14)),
    Environment("litert", {**_TENSORFLOW, **_LITERT, **_TF_KERAS, **_ONNX}, 2_247 * _MB, (3, 14)),
    Environment("onnx2tf", {"onnx2tf": ">=1.29,<2"}, 2_398 * _MB, (3, 13)),
    Environment("torch", {**_TORCH, **_EXPORT, **_ONNX}, 5_020 * _MB),
    Environment("qkeras", {**_TENSORFLOW, **_TF_KERAS, **_QKERAS}, 2_213 * _MB, (3, 14)),
)
CORE = "core"  # taglio's own environment
# The environment of every back end, in the order of the table.
BACKENDS = {
    "onnxruntime": CORE,
    "openvino": "openvino",
    "openvino-ep": "openvino-ep",
    "litert": "litert",
    "pytorch": "torch",
    "qkeras": "qkeras",
    "keras": "litert",
}
# Environments of converters, which are not back ends.
CONVERTERS = {"onnx2tf": "onnx2tf", "huggingface": "torch"}


@dataclass(frozen=True, slots=True)
class Found:
    """A usable environment (`interpreter`), or why it is not usable (`status` and `reason`)."""

    name: str
    interpreter: Path | None
    status: Status
    reason: str
    versions: dict[str, str]


def find(backend: str) -> Found:
    """The environment of a back end or converter."""
    name = (BACKENDS | CONVERTERS)[backend]
    if name == CORE:
        return Found(CORE, Path(sys.executable), "measured", "", {})
    environment = next(each for each in ENVIRONMENTS if each.name == name)
    place, fix = folder() / name, f"run taglio backends add {name}"
    if why := unfinished(place):
        return Found(name, None, "missing", f"its build did not finish ({why}): {fix}", {})
    own = interpreter_of(place)
    interpreter = own if own.exists() else Path(sys.executable)
    versions = installed(interpreter, environment.packages)
    status, what = complaint(environment, versions)
    if status is not None:
        return Found(name, None, status, f"{what}: {fix}", {})
    return Found(name, interpreter, "measured", "", versions)


def folder() -> Path:
    """The folder of all environments."""
    own = os.environ.get(VARIABLE)
    return Path(own).absolute() if own else cache("backends")


def cache(name: str) -> Path:
    """A folder in the user's cache. Raises BadEnvironment for a user without a home directory."""
    try:
        path = user_cache_path("taglio") / name
    except RuntimeError:
        path = Path()
    if not path.is_absolute():  # what older versions of platformdirs return instead
        raise BadEnvironment(f"this user has no home directory: set XDG_CACHE_HOME, or {VARIABLE} for back ends")
    return path


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder; 0 if there is none."""
    return sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_dir())


def interpreter_of(place: Path) -> Path:
    """The interpreter of an environment."""
    return place / "bin" / "python"


def unfinished(place: Path) -> str:
    """Why an environment's build did not finish; empty if it did, or never started."""
    try:
        return (place / UNFINISHED).read_text(encoding="utf-8").strip() or "no reason was recorded"
    except OSError:
        return ""


def installed(interpreter: Path, names: Iterable[str]) -> dict[str, str]:
    """Versions of those of the packages that are in another environment; none if its interpreter does not run."""
    code = (
        "import contextlib, json, sys\nfrom importlib.metadata import PackageNotFoundError, version\nfound = {}\n"
        "for name in sys.argv[1:]:\n    with contextlib.suppress(PackageNotFoundError):\n"
        "        found[name] = version(name)\nprint(json.dumps(found))"
    )
    words = [str(interpreter), "-P", "-c", code, *names]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, str | None] = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {name: version for name, version in found.items() if version}


def complaint(environment: Environment, versions: Mapping[str, str]) -> tuple[Status | None, str]:
    """Status and reason if these versions cannot be used; None and "" if they can."""
    if absent := [name for name in environment.packages if name not in versions]:
        return "missing", f"{', '.join(absent)} not installed"
    for name, wanted in environment.packages.items():
        if not SpecifierSet(wanted).contains(versions[name], prereleases=True):
            return "wrong version", f"{name} {versions[name]}, needs {wanted}"
    return None, ""
