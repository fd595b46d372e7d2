"""The parts of a model that OpenVINO compiled. Imports no package: workers of `compare` use it too."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CompiledPart:
    """One node of a compiled graph: its kind, the names of the model's operators that were fused into it, the part that
    writes its first input ("" for none), and the number type it computes in, such as "bf16"."""

    name: str
    kind: str
    originals: tuple[str, ...]
    source: str
    precision: str = ""


def parts_of(compiled: Any) -> list[CompiledPart]:
    """The parts of an openvino.CompiledModel, in execution order."""
    return [_part(node) for node in compiled.get_runtime_model().get_ordered_ops()]


def _part(node: Any) -> CompiledPart:
    info, inputs = node.get_rt_info(), node.inputs()

    def text(key: str) -> str:
        return str(info[key].astype(str)) if key in info else ""

    source = inputs[0].get_source_output().get_node().get_friendly_name() if inputs else ""
    originals = tuple(name for name in text("originalLayersNames").split(",") if name)
    return CompiledPart(
        node.get_friendly_name(), text("layerType"), originals, source, text("runtimePrecision").lower()
    )
