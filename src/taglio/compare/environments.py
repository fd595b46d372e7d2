"""Environments of back ends: find, build, remove and check them. Chooses no rows.

Back ends with conflicting packages have separate environments, in the user's cache folder or in TAGLIO_BACKENDS, built
from a lock file by uv if installed, else by venv and pip. The lock file of an environment gets its name when the build
is finished; without it the next build starts over, using cached downloads. A back end installed beside taglio is used
from there.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.resources import files
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet
from platformdirs import user_cache_path

from taglio.compare import supervise
from taglio.errors import BadEnvironment, BadOption
from taglio.runtimes.onnxruntime import version as onnxruntime_version
from taglio.transaction import held

VARIABLE = "TAGLIO_BACKENDS"
# The lock that a finished environment was built from, with the Python.
STAMP = "taglio-lock.txt"
_REQUIREMENTS = "requirements.txt"

State = Literal[
    "absent",
    "ready",
    "outdated",  # usable, but built from another lock or by another Python
    "broken",
]
_USABLE = ("ready", "outdated")


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
_OPENVINO = {"openvino": ">=2026.4,<2027"}
_ONNX, _TENSORFLOW, _TF_KERAS = {"onnx": ">=1.19,<2"}, {"tensorflow": ">=2.21,<2.22"}, {"tf-keras": ">=2.21,<2.22"}
_LITERT = {
    "keras": ">=3.15,<4",
    "ai-edge-litert": ">=2.3,<3",
    "ai-edge-quantizer": ">=0.10,<0.11",
    "tf2onnx": ">=1.17,<2",
}
_TORCH = {"torch": ">=2.13,<2.14", "torchao": ">=0.18,<0.19"}
_EXPORT = {"onnxscript": ">=0.7,<0.8", "transformers": ">=5,<6"}
_QKERAS = {"qkeras": ">=0.9,<0.10", "pyparsing": ">=3.1,<3.2"}
ENVIRONMENTS = (
    Environment("openvino", _OPENVINO, 278 * _MB),
    Environment("nncf", {"nncf": ">=3.4,<4", **_OPENVINO}, 519 * _MB),
    Environment("onnxsim", {"onnxsim": ">=0.8.1,<0.9", "onnxruntime": ">=1.24.4,<2"}, 244 * _MB),
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
    "nncf": "nncf",
    "onnxsim": "onnxsim",
    "litert": "litert",
    "pytorch": "torch",
    "qkeras": "qkeras",
    "keras": "litert",
}
# Environments of converters, which are not back ends.
CONVERTERS = {"onnx2tf": "onnx2tf", "huggingface": "torch"}


@dataclass(frozen=True, slots=True)
class FoundEnvironment:
    """A usable environment (`interpreter`), or the `reason` why it is not usable."""

    name: str
    interpreter: Path | None
    reason: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment on disk: `backends` that use it, `reason` if something is wrong, `need_bytes` its size."""

    name: str
    backends: tuple[str, ...]
    place: str
    status: State
    reason: str
    versions: dict[str, str]
    bytes: int
    need_bytes: int


def find(backend: str) -> FoundEnvironment:
    """The environment of a back end or converter."""
    name = (BACKENDS | CONVERTERS)[backend]
    if name == CORE:
        return FoundEnvironment(CORE, Path(sys.executable), "", {"onnxruntime": onnxruntime_version()})
    wanted = next(candidate for candidate in ENVIRONMENTS if candidate.name == name)
    if (place := folder() / name).exists():
        status, reason, versions = _state(wanted, place)
        if status in _USABLE:
            return FoundEnvironment(name, _interpreter(place), "", versions)
    else:
        versions = installed(None, wanted.packages)
        if not (reason := complaint(wanted, versions)):
            return FoundEnvironment(name, Path(sys.executable), "", versions)
    return FoundEnvironment(name, None, f"{reason}: run taglio backends add {name}", {})


def environment(name: str) -> Environment:
    """The environment called `name`, or of the back end `name`. Raises BadOption."""
    wanted = (BACKENDS | CONVERTERS).get(name, name)
    by_name = {candidate.name: candidate for candidate in ENVIRONMENTS}
    if wanted not in by_name:
        why = "comes with taglio" if wanted == CORE else "is not a back end"
        raise BadOption(f"{name} {why}: choose among {', '.join(by_name)}")
    return by_name[wanted]


def folder() -> Path:
    """The folder of all environments."""
    setting = os.environ.get(VARIABLE)
    return Path(setting).absolute() if setting else cache("backends")


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
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def installed(place: Path | None, names: Iterable[str]) -> dict[str, str]:
    """Versions of those of the packages that are in the environment at `place` (None: in taglio's own); none if its
    Python is gone."""
    if place is not None and not _interpreter(place).exists():
        return {}
    path = sys.path if place is None else [str(folder) for folder in place.glob("lib/python*/site-packages")]
    package_of = {name: next(iter(distributions(name=name, path=path)), None) for name in names}
    return {name: package.version for name, package in package_of.items() if package is not None}


def complaint(environment: Environment, versions: Mapping[str, str]) -> str:
    """Why these versions cannot be used, "" if they can."""
    if absent := [name for name in environment.packages if name not in versions]:
        return f"{', '.join(absent)} not installed"
    for name, wanted in environment.packages.items():
        if not SpecifierSet(wanted).contains(versions[name], prereleases=True):
            return f"{name} {versions[name]}, needs {wanted}"
    return ""


def lock_of(environment: Environment) -> str:
    """The pinned packages of an environment, as pip reads them."""
    return (files(__package__) / "locks" / f"{environment.name}.txt").read_text(encoding="utf-8")


def inspect(environment: Environment) -> Installed:
    """State of an environment on disk."""
    place = folder() / environment.name
    status, reason, versions = _state(environment, place)
    users = tuple(name for name, host in (BACKENDS | CONVERTERS).items() if host == environment.name)
    size, need = bytes_below(place), environment.disk_bytes
    return Installed(environment.name, users, str(place), status, reason, versions, size, need)


def tool() -> str:
    """The build tool: "uv" or "pip"."""
    return "uv" if shutil.which("uv") else "pip"


def build(environment: Environment) -> None:
    """Build an environment, replacing an existing one. The output of uv or pip goes to standard error.

    Raises BadEnvironment with the reason; Busy if another process is building it.
    """
    if sys.version_info[:2] >= environment.python_below:
        below, running = ".".join(map(str, environment.python_below)), ".".join(map(str, sys.version_info[:2]))
        raise BadEnvironment(
            f"{environment.name} needs a Python below {below}, but taglio runs in {running}: install taglio in an "
            "older one"
        )
    place = folder() / environment.name
    with held(place.parent, create=True) as lock:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        requirements = place / _REQUIREMENTS
        try:
            requirements.write_text(_stamp(environment), encoding="utf-8")
            for words in _commands(place):
                _run(words, lock)
            requirements.rename(place / STAMP)
        except (BadEnvironment, OSError) as error:
            shutil.rmtree(place, ignore_errors=True)
            raise BadEnvironment(f"{environment.name} could not be built: {error}") from None


def remove(environment: Environment) -> int:
    """Remove an environment; returns the bytes freed, 0 if there was none."""
    place = folder() / environment.name
    if not place.exists():
        return 0
    with held(place.parent):
        size = bytes_below(place)
        shutil.rmtree(place)
    return size


def _interpreter(place: Path) -> Path:
    return place / "bin" / "python"


def _state(environment: Environment, place: Path) -> tuple[State, str, dict[str, str]]:
    if not place.exists():
        return "absent", "", {}
    if not (stamp := place / STAMP).exists():
        return "broken", "its build did not finish", {}
    versions = installed(place, environment.packages)
    if wrong := complaint(environment, versions):
        return "broken", wrong, {}
    if stamp.read_text(encoding="utf-8") != _stamp(environment):
        return "outdated", "built from other versions or by another Python", versions
    return "ready", "", versions


def _stamp(environment: Environment) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{lock_of(environment)}# Python {version} {sys.base_prefix}\n"


def _commands(place: Path) -> list[list[str]]:
    python, lock = str(_interpreter(place)), str(place / _REQUIREMENTS)
    if tool() == "uv":
        return [
            ["uv", "venv", "--no-python-downloads", "--allow-existing", "--python", sys.executable, str(place)],
            ["uv", "pip", "install", "--compile-bytecode", "--python", python, "-r", lock],
        ]
    return [
        [sys.executable, "-m", "venv", str(place)],
        [python, "-m", "pip", "--disable-pip-version-check", "install", "--retries=2", "--timeout=60", "-r", lock],
    ]


def _run(words: list[str], lock: tuple[int, ...]) -> None:
    """Run one step. It holds the lock too: if taglio is killed the step goes on, and no other build may write at the
    same time."""
    variables = supervise.clean_environment()
    if subprocess.run(words, stdout=2, env=variables, check=False, pass_fds=lock).returncode:
        raise BadEnvironment(f"{Path(words[0]).name} failed, see above")
