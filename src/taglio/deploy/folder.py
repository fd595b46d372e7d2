"""A delivered folder as values, with every file checked against its hash. Writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from taglio import artifact
from taglio.deploy.verify import MANIFEST, changed_files
from taglio.errors import BadArtifact, one_line
from taglio.runtimes.way import Way

_AGAIN = "run taglio build again"


@dataclass(frozen=True, slots=True)
class DeliveredPart:
    """A component as it was delivered: the package and version of its runtime, its model and settings files, and the
    tensors that it reads and writes."""

    name: str
    device: str
    runtime: str
    version: str
    model: str
    settings: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeliveredModel:
    """A delivered folder as deploy.json describes it. `components` are in running order; `sha256` has the hash of every
    model and settings file; `way` is how the model was measured to run."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    components: tuple[DeliveredPart, ...]
    sha256: Mapping[str, str]
    way: Way
    folder: Path = Path()

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the components, in the order in which they are first used."""
        return tuple(dict.fromkeys(part.device for part in self.components))

    def files(self, part: DeliveredPart) -> tuple[Path, ...]:
        """The model file of a component, then the file of its weights if it has one."""
        beside = {f"{part.model}{artifact.DATA}", f"{Path(part.model).stem}.bin"} & set(self.sha256)
        return (self.folder / part.model, *(self.folder / name for name in sorted(beside)))

    def crossing(self) -> tuple[tuple[str, DeliveredPart, DeliveredPart], ...]:
        """Each tensor that one component sends to another, with both."""
        return tuple(
            (name, sender, reader)
            for reader in self.components
            for name in reader.inputs
            for sender in self.components
            if name in sender.outputs
        )


def read(folder: Path) -> DeliveredModel:
    """The delivered folder. Raises BadArtifact if it is missing, damaged, or a file differs from its hash."""
    model = described(folder)
    for name in changed_files(folder):
        how = "changed since it was delivered" if (folder / name).is_file() else "missing"
        raise BadArtifact(f"{folder / name}: {how}: {_AGAIN}")
    return model


def described(folder: Path) -> DeliveredModel:
    """The delivered folder as deploy.json describes it; its files are not compared with their hashes. Raises
    BadArtifact if deploy.json is missing or damaged."""
    path = folder / MANIFEST
    try:
        model = msgspec.json.decode(artifact.read_bytes(path), type=DeliveredModel)
    except FileNotFoundError:
        raise BadArtifact(f"{folder}: nothing was delivered here: run taglio build first") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadArtifact(f"{path}: damaged ({one_line(error)}): {_AGAIN}") from None
    named = {*model.sha256, *(file for part in model.components for file in (part.model, part.settings))}
    for name in sorted(named):  # the folder may come from someone else: nothing outside it is read
        if Path(name).name != name:
            raise BadArtifact(f"{path}: file {name} lies outside the directory: {_AGAIN}")
        if name not in model.sha256:
            raise BadArtifact(f"{path}: file {name} has no hash: {_AGAIN}")
    return replace(model, folder=folder)
