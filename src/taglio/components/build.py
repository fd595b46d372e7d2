"""Write components and their manifest, and read them back verified. Runs nothing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import onnx

from taglio import artifact, weights
from taglio.artifact import require
from taglio.components.cut import Component
from taglio.data.spec import dtype_name, dtype_of
from taglio.errors import BadArtifact
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.session import RUNTIMES

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor that enters or leaves a component. `dtype` is NumPy's name, or ONNX's if it is not a tensor ("sequence",
    "map", "optional"); `bytes` is the size per inference. If dimensions are dynamic, `shape` is the one the plan was
    made for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One component's file and ports, and the place it was built for. `data_sha256` is the hash of its weights file, if
    it has one."""

    name: str
    device: str
    file: str
    sha256: str
    size_bytes: int
    blocks: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    data_sha256: str = ""
    runtime: str = NAME
    runtime_version: str = ""

    @property
    def files(self) -> dict[str, str]:
        """The hash of each of its files, by name."""
        data = {f"{self.file}{artifact.DATA}": self.data_sha256} if self.data_sha256 else {}
        return {self.file: self.sha256, **data}


@dataclass(frozen=True, slots=True)
class State:
    """An output (`present`) that is an input (`past`) of the next step; it starts as zeros of `shape`."""

    present: str
    past: str
    dtype: str
    shape: tuple[int, ...]

    def first(self) -> np.ndarray:
        """The value for the first step."""
        return np.zeros(self.shape, dtype_of(self.dtype))


@dataclass(frozen=True, slots=True)
class Manifest:
    """Components in running order, the model's own inputs and outputs, the fingerprint of the plan they were built
    from, and the states, which are also inputs and outputs."""

    model_sha256: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    pieces: tuple[Piece, ...]
    plan_sha256: str = ""
    states: tuple[State, ...] = ()

    def check(self) -> None:
        """Raise ValueError for components that cannot run one after another."""
        require(len(self.pieces) > 0, "no components")
        available = set(self.inputs)
        for piece in self.pieces:
            require(piece.runtime in RUNTIMES, f"component {piece.name} is for the unknown runtime {piece.runtime}")
            require(Path(piece.file).name == piece.file, f"component file {piece.file} lies outside the directory")
            missing = [port.name for port in piece.inputs if port.name not in available]
            require(not missing, f"component {piece.name} reads {', '.join(missing[:1])}, which none before it writes")
            available |= {port.name for port in piece.outputs}
        missing = [name for name in self.outputs if name not in available]
        require(not missing and len(self.outputs) > 0, f"no component writes the output {', '.join(missing[:1])}")
        unknown = [state for state in self.states if state.present not in self.outputs or state.past not in self.inputs]
        require(not unknown, "a state must be an output and an input of the model")
        for piece in self.pieces:
            written = {port.name for port in piece.outputs}
            lost = [state.past for state in self.kept_by(piece) if state.present not in written]
            require(not lost, f"component {piece.name} reads the state {', '.join(lost[:1])} but does not write it")

    def kept_by(self, piece: Piece) -> tuple[State, ...]:
        """The states that a component reads and writes."""
        read_names = {port.name for port in piece.inputs}
        return tuple(state for state in self.states if state.past in read_names)

    @property
    def planned(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all components' inputs that the plan was made for."""
        return {port.name: port.shape for piece in self.pieces for port in piece.inputs}

    def without_states(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the inputs and outputs that are not states."""
        pasts, presents = {state.past for state in self.states}, {state.present for state in self.states}
        return (
            tuple(name for name in self.inputs if name not in pasts),
            tuple(name for name in self.outputs if name not in presents),
        )


def write(
    folder: Path, manifest: Manifest, parts: Sequence[Component], runtimes: Mapping[str, str] | None = None
) -> Manifest:
    """Write one ONNX file per component, then the `manifest` with them as its pieces, so that it names only complete
    files. `runtimes` is by device; the default is ONNX Runtime."""
    pieces = []
    for part in parts:
        runtime = (runtimes or {}).get(part.device, NAME)
        # Device names may contain characters that file names may not.
        file = re.sub(r"[^A-Za-z0-9._-]", "_", f"{part.name}.onnx") if len(parts) > 1 else "model.onnx"
        model_sha256, *data_sha256 = artifact.write_model(folder / file, part.proto)
        ports = {value.name: value for value in [*part.proto.graph.input, *part.proto.graph.output]}
        pieces.append(
            Piece(
                name=part.name,
                device=part.device,
                file=file,
                sha256=model_sha256,
                size_bytes=weights.size_bytes(part.proto),
                blocks=part.blocks,
                inputs=tuple(_port(ports[name], part.shapes.get(name)) for name in part.inputs),
                outputs=tuple(_port(ports[name], part.shapes.get(name)) for name in part.outputs),
                data_sha256="".join(data_sha256),
                runtime=runtime,
                runtime_version=artifact.version_of(runtime),
            )
        )
    manifest = replace(manifest, pieces=tuple(pieces))
    artifact.save(folder / MANIFEST, "manifest", manifest.model_sha256, manifest)
    return manifest


def read(folder: Path, *, model_sha256: str | None = None) -> Manifest:
    """The manifest of `folder`, after checking every file against its hash. Raises BadArtifact for a missing or changed
    file."""
    manifest = artifact.load(folder / MANIFEST, "manifest", Manifest, model_sha256=model_sha256)
    for piece in manifest.pieces:
        for name, wanted in piece.files.items():
            path = folder / name
            if not path.is_file():
                raise BadArtifact(f"{path}: component {piece.name} is missing: run taglio build again")
            if (digest := weights.sha256(path)) != wanted:
                raise BadArtifact(
                    f"{path}: component {piece.name} was changed ({digest[:12]}, built {wanted[:12]}): build again"
                )
    return manifest


def _port(value: onnx.ValueInfoProto, observed: tuple[int, ...] | None) -> Port:
    kind = value.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        return Port(value.name, kind.removesuffix("_type"), (), 0)
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = tuple(dim.dim_value for dim in tensor.shape.dim) if observed is None else observed
    return Port(value.name, dtype_name(dtype), shape, dtype.itemsize * prod(shape))
