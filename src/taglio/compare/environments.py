"""Where each back end's interpreter is, which versions it needs, and how to get it. Starts no back end.

Back ends whose packages conflict live in environments of their own, `.backends/NAME` below the working directory or
below the folder that TAGLIO_BACKENDS names; `make backends` builds them. One installed beside taglio is used there.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from taglio.compare.row import Status

FOLDER = ".backends"
VARIABLE = "TAGLIO_BACKENDS"


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that a back end needs, and the versions that taglio's rows are known to work with."""

    name: str
    at_least: str
    below: str

    def __str__(self) -> str:
        return f"{self.name}>={self.at_least},<{self.below}"


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment, named like the extra of pyproject.toml that fills it."""

    name: str
    packages: tuple[Package, ...]


CORE = Environment("core", ())
_TENSORFLOW = Package("tensorflow", "2.21", "2.22")
_ONNX = Package("onnx", "1.19", "2")
ENVIRONMENTS = (
    CORE,
    Environment("openvino", (Package("openvino", "2026.4", "2027"),)),
    Environment("openvino-ep", (Package("onnxruntime-openvino", "1.24", "2"),)),
    Environment(
        "litert",
        (
            _TENSORFLOW,
            Package("ai-edge-litert", "2.3", "3"),
            Package("ai-edge-quantizer", "0.10", "0.11"),
            Package("tf2onnx", "1.17", "2"),
            _ONNX,
        ),
    ),
    Environment("onnx2tf", (Package("onnx2tf", "1.29", "2"),)),
    Environment(
        "torch",
        (
            Package("torch", "2.13", "2.14"),
            Package("torchao", "0.18", "0.19"),
            Package("onnx2torch", "1.5.15", "1.6"),
            Package("onnxscript", "0.7", "0.8"),
            _ONNX,
        ),
    ),
    Environment(
        "qkeras",
        (
            _TENSORFLOW,
            Package("tf-keras", "2.21", "2.22"),
            Package("qkeras", "0.9", "0.10"),
            Package("pyparsing", "3.1", "3.2"),
        ),
    ),
)
# The environment of every back end, in the order of the table.
BACKENDS = {
    "onnxruntime": "core",
    "openvino": "openvino",
    "openvino-ep": "openvino-ep",
    "litert": "litert",
    "pytorch": "torch",
    "qkeras": "qkeras",
    "keras": "litert",
}
# What is no back end but converts for one.
CONVERTERS = {"onnx2tf": "onnx2tf"}


@dataclass(frozen=True, slots=True)
class Found:
    """An environment that can be used (`interpreter`), or why not (`status` and `reason`)."""

    name: str
    interpreter: Path | None
    status: Status
    reason: str
    versions: dict[str, str]


def find(backend: str) -> Found:
    """The environment of a back end or converter."""
    environment = next(each for each in ENVIRONMENTS if each.name == (BACKENDS | CONVERTERS)[backend])
    if not environment.packages:
        return Found(environment.name, Path(sys.executable), "measured", "", {})
    own = folder() / environment.name / "bin" / "python"
    candidates = [own, Path(sys.executable)] if own.exists() else [Path(sys.executable)]
    complaint: tuple[Status | None, str] = ("missing", "")
    for interpreter in candidates:
        versions = installed(interpreter, [package.name for package in environment.packages])
        complaint = _complaint(environment, versions)
        if complaint[0] is None:
            return Found(
                environment.name, interpreter, "measured", "", {k: v for k, v in versions.items() if v is not None}
            )
        if complaint[0] == "wrong version" or interpreter == own:
            break
    status, what = complaint
    assert status is not None
    return Found(environment.name, None, status, f"{what}: {how_to_get(environment)}", {})


def folder() -> Path:
    """Where the environments are."""
    return Path(os.environ.get(VARIABLE) or FOLDER).absolute()


def how_to_get(environment: Environment) -> str:
    """The commands that build an environment."""
    name, packages = environment.name, " ".join(f"'{package}'" for package in environment.packages)
    return (
        f'run make backends BACKENDS="{name}" in taglio\'s repository, or python3 -m venv {FOLDER}/{name} && '
        f"{FOLDER}/{name}/bin/pip install {packages}"
    )


def installed(interpreter: Path, names: list[str]) -> dict[str, str | None]:
    """Versions of distributions in another environment; None where one is absent or the interpreter does not run."""
    code = (
        "import json, sys\nfrom importlib.metadata import PackageNotFoundError, version\nfound = {}\n"
        "for name in sys.argv[1:]:\n    try:\n        found[name] = version(name)\n"
        "    except PackageNotFoundError:\n        found[name] = None\nprint(json.dumps(found))"
    )
    try:
        ran = subprocess.run(
            [str(interpreter), "-P", "-c", code, *names], capture_output=True, text=True, timeout=60, check=True
        )
        found: dict[str, str | None] = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return dict.fromkeys(names)
    return found


def _complaint(environment: Environment, versions: dict[str, str | None]) -> tuple[Status | None, str]:
    absent = [package.name for package in environment.packages if versions.get(package.name) is None]
    if absent:
        return "missing", f"{', '.join(absent)} not installed"
    for package in environment.packages:
        version = versions[package.name] or ""
        if not _numbers(package.at_least) <= _numbers(version) < _numbers(package.below):
            return (
                "wrong version",
                f"{package.name} {version}, needs {package.at_least} or newer, below {package.below}",
            )
    return None, ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
