"""Store finished rows in a file, so that an interrupted comparison continues where it stopped. Measures nothing."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from taglio import artifact
from taglio.compare.result import Conversion
from taglio.compare.row import Layer, Row
from taglio.errors import BadArtifact

FILE = "rows.json"
_KIND = "unfinished comparison"
# Final results. Other statuses may have had causes outside the back end, so their rows are tried again.
_LASTING = frozenset({"measured", "impossible", "failed", "crashed", "out of memory"})


@dataclass(slots=True)
class Part:
    """The finished part of one back end. `versions` are those of its environment when the rows were measured,
    `reported` those that the back end itself reported; `layers` is None until requested and finished."""

    versions: dict[str, str]
    reported: dict[str, str] = field(default_factory=dict)
    conversion: Conversion | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    layers: tuple[Layer, ...] | None = None
    absent: str = ""


@dataclass(frozen=True, slots=True)
class _Content:
    key: str
    parts: dict[str, Part]


class Checkpoint:
    """The finished rows of one question: `parts` by back end, of whose rows `kept` come from an earlier run. Every
    change is on disk when a call returns; see `artifact.save`."""

    def __init__(self, folder: Path, model_sha256: str, question: dict[str, object]) -> None:
        self._path, self._sha256 = folder / FILE, model_sha256
        self._key = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        self.parts: dict[str, Part] = {}
        with suppress(BadArtifact):  # none, or of another model
            content = artifact.load(self._path, _KIND, _Content, model_sha256=model_sha256)
            if content.key == self._key:
                self.parts = content.parts
        for part in self.parts.values():
            part.rows = {name: row for name, row in part.rows.items() if row.status in _LASTING}
        self.kept = sum(len(part.rows) for part in self.parts.values())

    def part(self, backend: str, versions: dict[str, str]) -> Part:
        """The finished part of a back end; empty if it was measured with other versions."""
        if backend not in self.parts or self.parts[backend].versions != versions:
            self.parts[backend] = Part(versions)
        return self.parts[backend]

    def save(self) -> None:
        """Write everything. Raises BadArtifact if the disk refuses."""
        artifact.save(self._path, _KIND, self._sha256, _Content(self._key, self.parts))
