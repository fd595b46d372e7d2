"""Build, remove and inspect the environments of back ends. Chooses no rows and runs no model.

An environment is built from its lock file, by uv if installed, else by venv and pip. A build that does not finish
leaves a file with the reason; the next build starts over, using cached downloads.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Literal

from taglio.compare import environments, supervise
from taglio.compare.environments import BACKENDS, CONVERTERS, CORE, ENVIRONMENTS, UNFINISHED, Environment
from taglio.compare.request import Request
from taglio.compare.supervise import Limits
from taglio.errors import BadEnvironment, BadOption, one_line
from taglio.transaction import held

STAMP = "taglio-lock.txt"
_SILENCE_S = 120.0
_NETWORK_S = 60

Status = Literal[
    "absent",
    "ready",
    "outdated",  # usable, but built from another lock or by another Python
    "unfinished",  # its build failed or was stopped
    "broken",
]


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment on disk: `backends` that use it, `reason` if something is wrong, `need_bytes` its size."""

    name: str
    backends: tuple[str, ...]
    place: str
    status: Status
    reason: str
    versions: dict[str, str]
    bytes: int
    need_bytes: int


def environment(name: str) -> Environment:
    """The environment called `name`, or of the back end `name`. Raises BadOption."""
    wanted = (BACKENDS | CONVERTERS).get(name, name)
    known = {each.name: each for each in ENVIRONMENTS}
    if wanted not in known:
        why = "comes with taglio" if wanted == CORE else "is not a back end"
        raise BadOption(f"{name} {why}: choose among {', '.join(known)}")
    return known[wanted]


def lock_of(environment: Environment) -> str:
    """The pinned packages of an environment, as pip reads them."""
    return (files(__package__) / "locks" / f"{environment.name}.txt").read_text(encoding="utf-8")


def inspect(environment: Environment) -> Installed:
    """State of an environment on disk."""
    place = environments.folder() / environment.name
    status, reason, versions = _status(environment, place)
    users = tuple(name for name, each in (BACKENDS | CONVERTERS).items() if each == environment.name)
    size, need = environments.bytes_below(place), environment.disk_bytes
    return Installed(environment.name, users, str(place), status, reason, versions, size, need)


def _status(environment: Environment, place: Path) -> tuple[Status, str, dict[str, str]]:
    if not place.exists():
        return "absent", "", {}
    if why := environments.unfinished(place):
        return "unfinished", why, {}
    versions = environments.installed(environments.interpreter_of(place), environment.packages)
    if complaint := environments.complaint(environment, versions)[1]:
        return "broken", complaint, {}
    stamp = place / STAMP
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != _stamp(environment):
        return "outdated", "built from other versions or by another Python", versions
    return "ready", "", versions


def check_room(wanted: Sequence[Environment]) -> tuple[int, int]:
    """Bytes needed by these environments, and bytes free on disk. Raises BadEnvironment if too few are free."""
    folder = environments.folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    need, free = sum(each.disk_bytes for each in wanted), shutil.disk_usage(there).free
    if need > free:
        names = ", ".join(each.name for each in wanted)
        raise BadEnvironment(
            f"{names}: needs {need / 1e9:.1f} GB, and {there} has {free / 1e9:.1f} GB free: free some, or set "
            f"{environments.VARIABLE} to a folder on another disk"
        )
    return need, free


def tool() -> str:
    """The build tool: "uv" or "pip"."""
    return "uv" if shutil.which("uv") else "pip"


def build(environment: Environment, *, show: bool = False) -> None:
    """Build an environment, replacing an existing one; with `show` uv or pip show their progress on the terminal.

    Raises BadEnvironment with the reason, which is kept in the environment; Busy if another process is building it.
    """
    if sys.version_info[:2] >= environment.python_below:
        below, own = ".".join(map(str, environment.python_below)), ".".join(map(str, sys.version_info[:2]))
        raise BadEnvironment(
            f"{environment.name} needs a Python below {below}, but taglio runs in {own}: install taglio in an older one"
        )
    check_room([environment])
    place = environments.folder() / environment.name
    with held(place.parent, create=True) as lock:
        marker = place / UNFINISHED
        try:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            marker.write_text("stopped before the end\n", encoding="utf-8")
            (place / STAMP).write_text(_stamp(environment), encoding="utf-8")
            for words in _commands(place):
                _run(words, show, lock)
        except (BadEnvironment, OSError) as error:
            if marker.exists():
                marker.write_text(f"{error}\n", encoding="utf-8")
            raise BadEnvironment(f"{environment.name} could not be built: {error}") from None
        marker.unlink()


def remove(environment: Environment) -> int:
    """Remove an environment; returns the bytes freed, 0 if there was none."""
    place = environments.folder() / environment.name
    if not place.exists():
        return 0
    with held(place.parent):
        size = environments.bytes_below(place)
        shutil.rmtree(place)
    return size


def diagnose(environment: Environment, folder: Path) -> Installed:
    """`inspect`, and if usable, load each of its back ends the way `compare` does; `folder` is scratch space."""
    found = inspect(environment)
    if found.status not in ("ready", "outdated"):
        return found
    interpreter, limits = environments.interpreter_of(Path(found.place)), Limits(_SILENCE_S, sys.maxsize)
    for backend in found.backends:
        job = Request("versions", str(folder / backend), backend)
        _, reason = supervise.collect(interpreter, job, limits, "versions")
        if reason:
            return replace(found, status="broken", reason=f"{backend} does not load: {one_line(reason)}")
    return found


def _stamp(environment: Environment) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{lock_of(environment)}# Python {version} {sys.base_prefix}\n"


def _commands(place: Path) -> list[list[str]]:
    python, lock = str(environments.interpreter_of(place)), str(place / STAMP)
    if tool() == "uv":
        return [
            ["uv", "venv", "--no-python-downloads", "--allow-existing", "--python", sys.executable, str(place)],
            ["uv", "pip", "install", "--compile-bytecode", "--python", python, "-r", lock],
        ]
    patience = ["--retries", "2", "--timeout", str(_NETWORK_S)]
    return [
        [sys.executable, "-m", "venv", str(place)],
        [python, "-m", "pip", "--disable-pip-version-check", "install", *patience, "-r", lock],
    ]


def _run(words: list[str], show: bool, lock: tuple[int, ...]) -> None:
    """Run one step; its output goes to standard error, or is kept for the error's reason. It holds the lock too: where
    taglio is killed it goes on, and the next build must not write beside it."""
    out, err = (sys.stderr, None) if show else (subprocess.PIPE, subprocess.STDOUT)
    variables = supervise.clean_environment()
    done = subprocess.run(words, stdout=out, stderr=err, env=variables, text=True, check=False, pass_fds=lock)
    if done.returncode:
        raise BadEnvironment(f"{Path(words[0]).name} failed, see above" if show else _reason(done.stdout))


def _reason(printed: str) -> str:
    """The last error in the output of uv or pip, on one line."""
    lines = printed.splitlines()
    starts = [index for index, line in enumerate(lines) if line.lower().lstrip(" ×").startswith("error")]
    return one_line(" ".join(lines[starts[-1] :] if starts else lines[-3:]), 300) or "no reason was given"
