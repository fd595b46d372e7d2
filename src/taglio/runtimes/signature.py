"""The inputs and outputs of a file as the runtime that opens it reports them. Runs nothing.

Servers compare their configuration with what the runtime reports, which may know more sizes than the file declares.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taglio.runtimes import onnxruntime, openvino
from taglio.runtimes.onnxruntime import SessionOptions


@dataclass(frozen=True, slots=True)
class RuntimePort:
    """An input or output. `dtype` is the runtime's own name of the type, such as tensor(float) or f32; a size that
    depends on the data is -1."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a file, in its order."""

    inputs: tuple[RuntimePort, ...]
    outputs: tuple[RuntimePort, ...]


def signature(package: str, path: Path) -> Signature:
    """The signature of the file at `path` in the runtime of a package. Raises BadModel if it refuses the file."""
    if package == openvino.NAME:
        model = openvino.read_ir(path)
        return Signature(_of_openvino(model.inputs), _of_openvino(model.outputs))
    session = onnxruntime.open_session(path, SessionOptions(1), label=path.name)
    return Signature(_of_onnxruntime(session.get_inputs()), _of_onnxruntime(session.get_outputs()))


def _of_onnxruntime(values: Iterable[Any]) -> tuple[RuntimePort, ...]:
    return tuple(
        RuntimePort(value.name, value.type, tuple(size if isinstance(size, int) else -1 for size in value.shape or ()))
        for value in values
    )


def _of_openvino(values: Iterable[Any]) -> tuple[RuntimePort, ...]:
    return tuple(
        RuntimePort(
            value.get_any_name(),
            value.get_element_type().get_type_name(),
            tuple(size.get_length() if size.is_static else -1 for size in value.get_partial_shape()),
        )
        for value in values
    )
