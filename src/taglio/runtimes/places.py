"""Which places (runtimes) this machine has, and whether it has bfloat16. Runs no model, and times nothing.

A place is named after its runtime: `onnxruntime` and `openvino`. A runtime that is installed and does not work is
refused by the race of float models (search/places.py), in which it opens and answers the user's model, and its answers
are compared.
"""

from functools import cache

from taglio.errors import BadOption, TaglioError, one_line
from taglio.runtimes import openvino
from taglio.runtimes.session import RUNTIMES, opener, runtime_version

AUTO = "auto"


def here() -> tuple[str, ...]:
    """The places of this machine, ONNX Runtime first."""
    return tuple(name for name in RUNTIMES if not refusal(name))


@cache
def refusal(place: str) -> str:
    """Why this machine does not have `place`, or "" if it has."""
    try:
        runtime_version(place)
    except TaglioError as error:
        return one_line(error)
    return ""


@cache
def bfloat16_refusal() -> str:
    """Why OpenVINO does not compute in bfloat16 on this machine, or "" if it does."""
    if reason := refusal(openvino.NAME):
        return reason
    types = openvino.capabilities()
    if "BF16" in types:
        return ""
    names = " and ".join(name for name in types if name not in ("BIN", "EXPORT_IMPORT"))
    return f"OpenVINO {openvino.version()} has no bfloat16 on this processor, only {names}"


def require_here(place: str, what: str) -> None:
    """Raises BadOption, naming `what`, if this machine does not have `place`."""
    opener(place)
    reason = refusal(place)
    if reason:
        raise BadOption(f"{what} runs in {place}: {reason}")
