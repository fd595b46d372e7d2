"""A component as a server opens it: its files, the settings that the server can express, and its configuration.

Each server is one module beside this one. A setting that a server cannot express is named if answers do not depend on
it; if they do, the component is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taglio.deploy.folder import DeliveredPart
from taglio.errors import BadOption
from taglio.runtimes.signature import RuntimePort

# Settings of ONNX Runtime that change speed and memory and no answer. Others are not known to be harmless.
WITHOUT_EFFECT_ON_ANSWERS = frozenset(
    {
        "session.intra_op.allow_spinning",
        "session.inter_op.allow_spinning",
        "session.force_spinning_stop",
        "optimization.constant_folding_max_output_size_in_bytes",
    }
)


@dataclass(frozen=True, slots=True)
class Joining:
    """Whether a server may join requests along the first dimension: `why_alone` is why not, "" if it may; then at most
    `rows` rows run at once."""

    why_alone: str
    rows: int = 1


@dataclass(frozen=True, slots=True)
class ServedComponent:
    """A component as a server opens it under `model_name`, in the runtime of the delivered `part`. The first of `files`
    is the model, and `settings` are what the server applies, in the format of a delivered settings file.
    `configuration` is the server's own (text for Triton, an object for OpenVINO Model Server); `rows` is the most rows
    that it joins; `remarks` name what differs from the delivered settings."""

    part: DeliveredPart
    model_name: str
    files: tuple[Path, ...]
    settings: Mapping[str, Any]
    configuration: Any
    rows: int
    remarks: tuple[str, ...]


def refused(part: DeliveredPart, server: str, reason: str, fix: str) -> BadOption:
    """The error of a component that a server cannot run as it was delivered."""
    return BadOption(f"component {part.name} cannot be exported for {server}: {reason}: {fix}")


def check_tensors(part: DeliveredPart, server: str, ports: tuple[RuntimePort, ...], types: Mapping[str, str]) -> None:
    """Raise BadOption for a tensor of a type that is not in `types`, or without elements."""
    for port in ports:
        if port.dtype not in types:
            raise refused(part, server, f"it has no type for {port.dtype} ({port.name})", "use `layout` plain")
        if 0 in port.dims:
            raise refused(part, server, f"tensor {port.name} has no elements", "use `layout` plain")
