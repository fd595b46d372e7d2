"""Write and read artifacts: a kind, a version, a model hash and a value. Knows no stage."""

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import onnx

from taglio import weights
from taglio.errors import BadArtifact, one_line

FORMAT_VERSION = 9
_TEMPORARY = ".taglio-"
# Appended to a model's file name to name the file with its weights.
DATA = ".data"
_TOOLS = ("taglio", "onnx", "onnxruntime", "numpy", "highspy")
T = TypeVar("T")


class _Envelope(msgspec.Struct):
    kind: str
    format_version: int
    model_sha256: str
    tools: dict[str, str]
    body: msgspec.Raw
    body_sha256: str = ""


def tools() -> dict[str, str]:
    """Versions of the packages that made an artifact."""
    return {name: version_of(name) for name in _TOOLS}


def version_of(package: str) -> str:
    """The version of an installed package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def save(path: Path, kind: str, model_sha256: str, value: Any) -> None:
    """Write `value` (dataclasses, tuples, dicts, numbers) to `path`; an existing file is replaced only once all is
    written."""
    body = msgspec.json.encode(value)
    envelope = _Envelope(kind, FORMAT_VERSION, model_sha256, tools(), msgspec.Raw(body), _content_sha256(body))
    write_bytes(path, msgspec.json.format(msgspec.json.encode(envelope), indent=1))


def load(path: Path, kind: str, expected: type[T], *, model_sha256: str | None = None) -> T:
    """Read an artifact. Raises BadArtifact for a missing file, one that was changed since it was written, and another
    kind, version or model."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        how = f"run `taglio {_MAKER[kind]}` first" if kind in _MAKER else "run the previous stage"
        raise BadArtifact(f"{path}: no such file: {how}") from None
    except OSError as error:
        raise BadArtifact(f"{path}: cannot be read ({error.strerror}): give a workspace directory of yours") from None
    remedy = f"run `taglio {_MAKER[kind]}` again" if kind in _MAKER else "make it again"
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadArtifact(f"{path}: not a taglio artifact ({_reason(error)}): {remedy}") from None
    if envelope.format_version != FORMAT_VERSION:
        raise BadArtifact(
            f"{path}: format version {envelope.format_version}, but this taglio reads {FORMAT_VERSION}: {remedy}"
        )
    if envelope.kind != kind:
        raise BadArtifact(f"{path}: its kind is {envelope.kind}, not {kind}: {remedy}")
    if model_sha256 is not None and envelope.model_sha256 != model_sha256:
        raise BadArtifact(
            f"{path}: belongs to another model ({envelope.model_sha256[:12]}, wanted {model_sha256[:12]}): {remedy}"
        )
    try:
        if _content_sha256(bytes(envelope.body)) != envelope.body_sha256:
            raise ValueError("it was changed after it was written")
        value = msgspec.json.decode(envelope.body, type=expected)
        if (check := getattr(value, "check", None)) is not None:
            check()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadArtifact(f"{path}: damaged ({_reason(error)}): {remedy}") from None
    return value


def _reason(error: Exception) -> str:
    """A decoder's message, without backticks: in ours they mark arguments."""
    return one_line(error).replace("`", '"')


def _content_sha256(body: bytes) -> str:
    """A hash of what JSON says, whoever formatted it: 1e-7 is 1e-07."""
    return hashlib.sha256(msgspec.json.encode(msgspec.json.decode(body))).hexdigest()


def require(true: bool, message: str) -> None:
    """Raise ValueError with `message` unless `true`; for `check` methods."""
    if not true:
        raise ValueError(message)


def read_bytes(path: Path) -> bytes:
    """The contents of a file. Raises OSError, also for devices and pipes: they may never end."""
    if _is_special(path):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()


def _is_special(path: Path) -> bool:
    """Whether a device, pipe or socket is at `path`."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary file beside `path`, then rename it. Raises BadArtifact if the file cannot be written."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_model(path: Path, proto: onnx.ModelProto) -> tuple[str, ...]:
    """Write a model as `write_bytes` does; large weights go into one file beside it. Returns the SHA-256 of each file,
    the model's first."""
    data = path.with_name(f"{path.name}{DATA}")
    if not weights.refers(proto) or weights.size_bytes(proto) < weights.ONE_FILE_BYTES:
        with replacing(path) as model:
            model.write_bytes(weights.in_memory(proto).SerializeToString())
        data.unlink(missing_ok=True)
        return (weights.sha256(path),)
    with replacing(data) as stored, replacing(path) as model:
        weights.save(model, proto, stored, data.name)
    return tuple(weights.sha256(file) for file in (path, data))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it replaces `path` on success and is removed on failure. Raises BadArtifact, also
    for a device or pipe at `path`, which a file would replace."""
    if _is_special(path):
        raise BadArtifact(f"{path}: not a regular file: choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}{_TEMPORARY}{secrets.token_hex(4)}")
        temporary.touch(exist_ok=False)  # readable by whom the umask lets
    except OSError as error:
        raise refusal(path, error) from None
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise refusal(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> None:
    """Remove temporary files that a killed process left in `folder`."""
    for path in folder.glob(f".*{_TEMPORARY}*"):
        path.unlink(missing_ok=True)


def refusal(path: Path, error: OSError) -> BadArtifact:
    """The error for a failed write to `path`."""
    if error.errno == errno.ENOSPC:
        return BadArtifact(f"{path}: the disk is full: free some space; the previous contents are unchanged")
    return BadArtifact(f"{path}: cannot be written ({error.strerror or error}): choose another directory")


# The command that makes each kind of artifact.
_MAKER = {
    "setup": "profile",
    "graph": "profile",
    "profile": "profile",
    "error": "error",
    "plan": "plan",
    "manifest": "build",
    "run": "run",
    "outcome": "optimize",
}
