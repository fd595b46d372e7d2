"""Models in files, and how many of their sessions fit in memory at once, or in the time of a stage. Times nothing.

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
from taglio.progress import Progress, reported
from taglio.runtimes.footprint import session_bytes
from taglio.runtimes.onnxruntime import NAME, SessionOptions, open_session
from taglio.runtimes.session import Session, opener

# Sessions are opened up to this share of the memory limit, because their needs are estimates. Up to _AT_ONCE of it they
# are opened at the same time, on all cores; the memory of a single session cannot be measured then.
_SHARE, _AT_ONCE = 0.9, 0.25
# A model of thousands of operators takes far longer to build and open than to run, in any runtime: about this many
# seconds per operator. A stage may open sessions for _OPENING_S at any effort.
_OPERATOR_S, _OPENING_S = 2e-3, 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Models:
    """Models in files, by name, with the options of their sessions and the bytes that these are expected to need.

    With `refused`, a model that does not load or run is left out, and the reason is stored there; if all `must_fit`,
    also one outside ONNX Runtime that exceeds the limit by itself, except the first, with which others are compared.
    """

    paths: Mapping[str, Path]
    options: Mapping[str, SessionOptions]
    needs: Mapping[str, float]
    limit_bytes: int | None
    refused: dict[str, str] | None
    must_fit: bool

    @classmethod
    def write(
        cls,
        models: Mapping[str, Callable[[], onnx.ModelProto]],
        folder: Path,
        options: Mapping[str, SessionOptions],
        optimize: SessionOptions | None,
        limit_bytes: int | None,
        refused: dict[str, str] | None,
        progress: Progress | None,
        *,
        must_fit: bool,
    ) -> "Models":
        """Build each model and write it to `folder`, optimised by ONNX Runtime under the options `optimize` (None: not
        at all)."""
        paths, needs = {name: folder / f"{index}.onnx" for index, name in enumerate(models)}, dict[str, float]()
        for name, build in reported([*models.items()], "loading", progress):
            make_room(limit_bytes)
            proto = build()
            needs[name] = session_bytes(proto, options[name].runtime)
            if optimize is None:
                weights.write(paths[name], proto)
            else:
                open_session(proto, optimize, save_optimized=paths[name], label=name)
                _repair_names(paths[name])
            del proto
        return cls(paths, options, needs, limit_bytes, refused, must_fit)

    def open(
        self, names: Sequence[str], create: Callable[[str], Session], start: Callable[[str, Session], Session]
    ) -> dict[str, Session]:
        """Sessions of the models `names`, which `create` opens and `start` warms up, as many as keep this process under
        the limit. At least one, unless all are refused."""
        make_room(self.limit_bytes)
        sessions: dict[str, Session] = {}
        beyond = 0.0
        with ThreadPoolExecutor(available_cores()) as cores, ExitStack() as stack:
            stack.callback(cores.shutdown, wait=False, cancel_futures=True)  # on an interrupt
            created = {name: cores.submit(create, name) for name in self._small(names)}
            for name in names:
                if name not in created and sessions and self._short_bytes(name, beyond) > 0.0:
                    make_room(self.limit_bytes)  # of files that a session has mapped
                    if self._short_bytes(name, beyond) > 0.0:
                        continue
                before = used_bytes()
                try:
                    self.require_room(name)
                    session = created.pop(name).result() if name in created else create(name)
                    sessions[name] = start(name, session)
                except TaglioError as error:
                    self.refuse(name, error)
                else:
                    beyond = max(beyond, used_bytes() - before - self.needs[name])
        return sessions

    def _small(self, names: Sequence[str]) -> list[str]:
        """The first of `names`, as many as leave most of the limit free together."""
        room = _AT_ONCE * (self.limit_bytes or inf) - used_bytes()
        sums = accumulate(self.needs[name] for name in names)
        return [name for name, needs in zip(names, sums, strict=True) if needs <= room]

    def require_room(self, name: str) -> None:
        """Raise BadOption for a model that must fit and does not."""
        checked = self.must_fit and self.refused is not None and name != next(iter(self.paths))
        if checked and self.options[name].runtime != NAME and (short := self._short_bytes(name)) > 0.0:
            allowed = _SHARE * (self.limit_bytes or 0)
            raise BadOption(
                f"it needs an estimated {size_text(short + allowed)} there, and the memory limit leaves "
                f"{size_text(allowed)} for sessions"
            )

    def refuse(self, name: str, error: TaglioError) -> None:
        """Leave a model out for this reason, or raise it. The file that an error may name is a temporary one."""
        if self.refused is None:
            raise error
        self.refused[name] = one_line(str(error).removeprefix(f"{self.paths[name].name}: "), 300)

    def session(self, name: str) -> Session:
        """A session of one model."""
        path, options = self.paths[name], self.options[name]
        if options.runtime != NAME:
            return opener(options.runtime)(path, options)
        session: Session = open_session(path, options, label=name)
        return session

    def graph(self, name: str) -> onnx.ModelProto:
        """The graph without its weights, which are not needed again and are most of its size."""
        proto, bare = onnx.load(self.paths[name], load_external_data=False), onnx.ModelProto()
        del proto.graph.initializer[:]
        bare.CopyFrom(proto)  # a message frees what was deleted from it only as a whole
        return bare

    def _short_bytes(self, name: str, beyond: float = 0.0) -> float:
        """By how much this process would exceed its limit if it opened a model that needs this much `beyond` what is
        expected."""
        return used_bytes() + self.needs[name] + beyond - _SHARE * (self.limit_bytes or inf)


def sessions_within(seconds: float, proto: onnx.ModelProto) -> int:
    """The number of sessions of `proto` that a stage of `seconds` may open."""
    return int(max(_OPENING_S, seconds) / (_OPERATOR_S * max(1, len(proto.graph.node))))


def _repair_names(path: Path) -> None:
    """Rename duplicates in the file at `path`: ONNX Runtime gives layout changes that it adds the same names in a graph
    and its subgraphs, and then refuses to load the file."""
    proto = onnx.load(path, load_external_data=False)
    if captures.separate(proto.graph):
        onnx.save(proto, path)
