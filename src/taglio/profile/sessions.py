"""Models in files, and as many of their sessions as fit in memory at once. Times nothing.

What a session takes is estimated before it is opened. The next is assumed to exceed its estimate by as much as the
worst so far did.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path

import onnx

from taglio import weights
from taglio.cores import available_cores
from taglio.errors import BadOption, TaglioError, one_line
from taglio.memory import make_room, size_text, used_bytes
from taglio.model import captures
from taglio.runtimes.footprint import session_bytes
from taglio.runtimes.onnxruntime import NAME, SessionOptions, open_session
from taglio.runtimes.session import Session, opener

# Sessions are opened up to this share of the memory limit, because their needs are estimates.
_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model in a file, the options of its sessions, and the bytes that a session is expected to need."""

    path: Path
    options: SessionOptions
    needs_bytes: float

    @classmethod
    def write(
        cls, path: Path, name: str, proto: onnx.ModelProto, options: SessionOptions, optimize: SessionOptions | None
    ) -> "ModelFile":
        """Write `proto` to `path`, optimised by ONNX Runtime under the options `optimize` (None: as it is). Raises
        BadModel, which calls it `name`, if ONNX Runtime refuses it."""
        if optimize is None:
            weights.write(path, proto)
        else:
            open_session(proto, optimize, save_optimized=path, label=name)
            _repair_names(path)
        return cls(path, options, session_bytes(proto, options.runtime))

    def session(self, name: str) -> Session:
        """A session of the model, which errors call `name`."""
        if self.options.runtime != NAME:
            return opener(self.options.runtime)(self.path, self.options)
        session: Session = open_session(self.path, self.options, label=name)
        return session

    def graph(self) -> onnx.ModelProto:
        """The graph without its weights, which are not needed again and are most of its size."""
        proto, bare = onnx.load(self.path, load_external_data=False), onnx.ModelProto()
        del proto.graph.initializer[:]
        bare.CopyFrom(proto)  # a message frees what was deleted from it only as a whole
        return bare


class FittingSessions:
    """Opens sessions of `files`: as many as keep this process under `limit_bytes` (None: no limit).

    `refused` has the reason for every model that does not load, does not run, or, in another runtime than the first
    model's, exceeds the limit by itself.
    """

    def __init__(self, files: Mapping[str, ModelFile], limit_bytes: int | None) -> None:
        self._files, self._limit_bytes = files, limit_bytes
        self._runtimes = {NAME, next(iter(files.values())).options.runtime}
        self.refused: dict[str, str] = {}

    def open(
        self, names: Sequence[str], create: Callable[[str], Session], start: Callable[[str, Session], object]
    ) -> dict[str, Session]:
        """Sessions of the models `names`, which `create` opens and `start` runs first, as many as fit. At least one,
        unless all are refused."""
        make_room(self._limit_bytes)
        sessions: dict[str, Session] = {}
        beyond_bytes = 0.0
        with ThreadPoolExecutor(available_cores()) as cores, ExitStack() as stack:
            stack.callback(cores.shutdown, wait=False, cancel_futures=True)  # on an interrupt
            created = {name: cores.submit(create, name) for name in self._small(names)}
            for name in names:
                if name not in created and sessions and self._short_bytes(name, beyond_bytes) > 0.0:
                    continue
                before_bytes = used_bytes()
                try:
                    self._require_room(name)
                    session = created.pop(name).result() if name in created else create(name)
                    start(name, session)
                except TaglioError as error:
                    # The file that an error may name is a temporary one.
                    self.refused[name] = one_line(str(error).removeprefix(f"{self._files[name].path.name}: "), 300)
                else:
                    sessions[name] = session
                    beyond_bytes = max(beyond_bytes, used_bytes() - before_bytes - self._files[name].needs_bytes)
        return sessions

    def _small(self, names: Sequence[str]) -> list[str]:
        """The first of `names`, as many as take a quarter of the limit together: they are opened at the same time, on
        all cores, and the memory of a single session cannot be measured then."""
        room_bytes = 0.25 * (self._limit_bytes or inf) - used_bytes()
        sums = accumulate(self._files[name].needs_bytes for name in names)
        return [name for name, needs_bytes in zip(names, sums, strict=True) if needs_bytes <= room_bytes]

    def _require_room(self, name: str) -> None:
        """Raise BadOption for a model in another runtime that does not fit by itself."""
        checked = self._files[name].options.runtime not in self._runtimes
        if checked and (short_bytes := self._short_bytes(name)) > 0.0:
            allowed_bytes = _SHARE * (self._limit_bytes or 0)
            raise BadOption(
                f"it needs an estimated {size_text(short_bytes + allowed_bytes)} there, and the memory limit leaves "
                f"{size_text(allowed_bytes)} for sessions"
            )

    def _short_bytes(self, name: str, beyond_bytes: float = 0.0) -> float:
        """By how much this process would exceed its limit if it opened a model that needs `beyond_bytes` more than
        estimated."""
        needed_bytes = used_bytes() + self._files[name].needs_bytes + beyond_bytes
        return needed_bytes - _SHARE * (self._limit_bytes or inf)


def _repair_names(path: Path) -> None:
    """Rename duplicates in the file at `path`: ONNX Runtime gives layout changes that it adds the same names in a graph
    and its subgraphs, and then refuses to load the file."""
    proto = onnx.load(path, load_external_data=False)
    if captures.separate(proto.graph):
        onnx.save(proto, path)
