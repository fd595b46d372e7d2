"""A request of the Open Inference Protocol, as REST has it in JSON. gRPC's messages are converted to it."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np

from taglio.serve.refusals import BadRequest
from taglio.serve.served import SequenceStep
from taglio.serve.tensors import BYTES, NUMPY, Buffer, TensorSpec, from_bytes, from_json

EXTENSIONS = ("binary_tensor_data", "model_configuration", "sequence")


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a request, an input or an output; those that are not listed are ignored. `timeout` is in
    microseconds, 0 for none. The last two belong to extensions that we lack, and change what an answer contains."""

    timeout: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    sequence_id: int | str | None = None
    sequence_start: bool = False
    sequence_end: bool = False
    binary_data_output: bool = False
    binary_data: bool | None = None
    binary_data_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    classification: Any = None
    shared_memory_region: Any = None

    def __post_init__(self) -> None:
        for name in ("classification", "shared_memory_region"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not offered: extensions are {', '.join(EXTENSIONS)}")

    @property
    def step(self) -> SequenceStep | None:
        """The step of a sequence; None without an id (0 and "" count as none)."""
        return SequenceStep(self.sequence_id, self.sequence_start, self.sequence_end) if self.sequence_id else None


NONE = Parameters()


class InputTensor(msgspec.Struct, frozen=True):
    """An input. `data` has its elements, nested or flat, unless they are binary."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters | None = None
    data: list[Any] | None = None


class OutputTensor(msgspec.Struct, frozen=True):
    """A requested output."""

    name: str
    parameters: Parameters | None = None


class InferRequest(msgspec.Struct, frozen=True):
    """A request; without `outputs` for all of them."""

    inputs: list[InputTensor]
    id: str | None = None
    parameters: Parameters | None = None
    outputs: list[OutputTensor] | None = None


def feed_of(
    specs: Sequence[TensorSpec], tensors: Sequence[InputTensor], binary: Mapping[str, Buffer], limit_bytes: int
) -> dict[str, np.ndarray]:
    """The model's inputs; `binary` has the elements of those that were sent so. Raises BadRequest for inputs that do
    not fit `specs`, or would take more than `limit_bytes`."""
    feed: dict[str, np.ndarray] = {}
    for tensor in tensors:
        spec = next((spec for spec in specs if spec.name == tensor.name), None)
        if spec is None or spec.name in feed:
            problem = "is given twice" if spec else f"is none of {', '.join(spec.name for spec in specs)}"
            raise BadRequest(f"input {tensor.name[:80]!r} {problem}")
        check_shape(spec, tensor, limit_bytes)
        shape, elements = tuple(tensor.shape), binary.get(spec.name)
        feed[spec.name] = from_json(spec, shape, tensor.data) if elements is None else from_bytes(spec, shape, elements)
    for spec in specs:
        if spec.name not in feed:
            raise BadRequest(f"input {spec.name!r} is missing: inputs are {', '.join(spec.name for spec in specs)}")
    return feed


def check_shape(spec: TensorSpec, tensor: InputTensor, limit_bytes: int) -> None:
    """Check type and shape before anything is allocated. Raises BadRequest if they do not fit `spec`, or the tensor
    would take more than `limit_bytes`."""
    shape = tensor.shape
    if tensor.datatype != spec.datatype:
        raise BadRequest(f"input {spec.name} has datatype {tensor.datatype[:20]}, the model takes {spec.datatype}")
    if len(shape) != len(spec.shape) or any(
        size < 0 or wanted not in (-1, size) for size, wanted in zip(shape, spec.shape, strict=True)
    ):
        raise BadRequest(f"input {spec.name} has shape {str(shape)[:80]}, the model takes {list(spec.shape)}")
    size_bytes = prod(shape) * (1 if spec.datatype == BYTES else NUMPY[spec.datatype].itemsize)
    if size_bytes > limit_bytes:
        raise BadRequest(f"input {spec.name}: {size_bytes:,} bytes, the limit is {limit_bytes:,}")
