"""OpenVINO sessions on the CPU, opening the same files as ONNX Runtime. Times nothing.

OpenVINO is an optional extra, imported when a session is opened. Float parts compute in float32, as in ONNX Runtime, or
in bfloat16 if the options name that place; OpenVINO's own default depends on the processor. A compiled model computes
in one precision, so a model that mixes both is compiled in stretches that run one after another.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from taglio.errors import BadModel, BadOption
from taglio.runtimes.onnxruntime import SessionOptions, Stretch

NAME = "openvino"
BF16 = "openvino-bf16"
# Some stretches of the model compute in bfloat16, the others in float32.
MIXED = "openvino-mixed"
_HINTS = {NAME: "f32", BF16: "bf16"}


@dataclass(frozen=True, slots=True)
class Part:
    """One node of a compiled graph: its kind, the names of the model's operators that were fused into it, and the part
    that writes its first input ("" for none)."""

    name: str
    kind: str
    originals: tuple[str, ...]
    source: str


class OpenVinoSession:
    """A compiled model with the interface of a session."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._ports = {name: port for port in compiled.outputs for name in port.get_names()}
        self._order = list(compiled.outputs)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Values of the outputs named (None: of all) for one feed by input name."""
        results = self._request.infer(dict(input_feed), share_inputs=True)
        ports = self._order if output_names is None else [self._ports[name] for name in output_names]
        return [np.array(results[port]) for port in ports]

    def flow(self, known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Values of all outputs by name, from a feed that may hold more than the inputs. They are not copied: the next
        run overwrites them."""
        feed = {port: known[name] for port in self._compiled.inputs for name in port.get_names() if name in known}
        results = self._request.infer(feed, share_inputs=True, share_outputs=True)
        return {name: results[port] for name, port in self._ports.items()}

    @property
    def precision(self) -> str:
        """The precision of float parts as the compiled model reports it: f32, bf16 or f16. It may differ from the
        hint."""
        return str(self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())

    def parts(self) -> list[Part]:
        """The nodes of the compiled graph, in execution order."""
        return [_part(node) for node in self._compiled.get_runtime_model().get_ordered_ops()]

    def seconds(self) -> dict[str, float]:
        """What the last run took, by part, where the session counts."""
        return {each.node_name: each.real_time.total_seconds() for each in self._request.profiling_info}


class ChainedSession:
    """Compiled stretches of one model, run one after another, with the interface of a session."""

    def __init__(self, outputs: Sequence[str], stretches: Sequence[OpenVinoSession]) -> None:
        self._outputs, self.stretches = tuple(outputs), tuple(stretches)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """As OpenVinoSession.run. Tensors between stretches are not copied."""
        known = dict(input_feed)
        for each in self.stretches:
            known |= each.flow(known)
        return [np.array(known[name]) for name in (self._outputs if output_names is None else output_names)]

    def parts(self) -> list[Part]:
        """The nodes of all stretches in order; names are prefixed with the stretch's number, since they may repeat."""
        return [
            replace(part, name=f"{index}:{part.name}", source=f"{index}:{part.source}")
            for index, each in enumerate(self.stretches)
            for part in each.parts()
        ]

    def seconds(self) -> dict[str, float]:
        """What the last run took, by part, where the session counts."""
        return {
            f"{index}:{name}": taken
            for index, each in enumerate(self.stretches)
            for name, taken in each.seconds().items()
        }


def version() -> str:
    """OpenVINO's version string. Raises BadOption if it is not installed."""
    return str(_openvino().__version__).partition("-")[0]


def open_session(path: Path, options: SessionOptions, *, counters: bool = False) -> OpenVinoSession | ChainedSession:
    """Compile the model at `path` for the CPU with `options.threads`; with `counters`, runs are timed part by part. In
    the place MIXED the model is divided at the outputs of `options.stretches`.

    OpenVINO has no optimisation levels and does not spin: those options do not apply. Raises BadOption if OpenVINO is
    not installed, BadModel if it refuses the model.
    """
    core = _openvino().Core()
    if options.runtime == MIXED and not options.stretches:
        raise BadOption(f"{path.name}: {MIXED} needs the stretches of its manifest: open it with taglio run or serve")
    fixed = {"INFERENCE_NUM_THREADS": options.threads, "PERF_COUNT": counters}
    try:
        if options.runtime != MIXED:
            settings = properties(options.runtime) | fixed
            return OpenVinoSession(core.compile_model(str(path), "CPU", settings))
        model = core.read_model(str(path))
        outputs = [min(port.get_names()) for port in model.outputs]
        compiled = [
            core.compile_model(piece, "CPU", {**properties(MIXED), "INFERENCE_PRECISION_HINT": each.precision, **fixed})
            for each, piece in zip(options.stretches, divided(model, options.stretches), strict=True)
        ]
        return ChainedSession(outputs, [OpenVinoSession(each) for each in compiled])
    except Exception as error:  # OpenVINO raises bare RuntimeErrors from C++
        text = " ".join(str(error).split())
        raise BadModel(f"{path.name}: OpenVINO cannot load it: {text[-500:]}") from None


def divided(model: Any, stretches: Sequence[Stretch]) -> list[Any]:
    """The openvino.Model of each stretch. A tensor between stretches becomes an output of the stretch that computes it
    and an input, with the same name, of those that read it."""
    operators = importlib.import_module("openvino").opset13
    pieces, crossing = list[Any](), list[str]()
    for stretch in stretches:
        piece = model.clone()
        nodes = [node for node in piece.get_ops() if node.get_type_name() != "Result"]  # they have names of ports too
        ports = {name: port for node in nodes for port in node.outputs() for name in port.get_names()}
        entries = []
        for name in crossing:
            port = ports[name]
            entry = operators.parameter(port.get_partial_shape(), port.get_element_type(), f"{name}/crosses")
            entry.output(0).set_names({name})
            for reader in port.get_target_inputs():
                reader.replace_source_output(entry.output(0))
            entries.append(entry)
        ends = [operators.result(ports[name]) for name in stretch.outputs]
        needed = _behind(ends)
        inputs = [each for each in (*piece.get_parameters(), *entries) if each.get_friendly_name() in needed]
        pieces.append(_openvino().Model(ends, inputs))
        crossing += stretch.outputs
    return pieces


def _behind(ends: Sequence[Any]) -> set[str]:
    """Names of all nodes that `ends` are computed from."""
    found, waiting = set[str](), list(ends)
    while waiting:
        node = waiting.pop()
        if node.get_friendly_name() not in found:
            found.add(node.get_friendly_name())
            waiting += [port.get_source_output().get_node() for port in node.inputs()]
    return found


def properties(place: str) -> dict[str, str]:
    """The OpenVINO properties that a place fixes, by name. The caller adds the threads and, in MIXED, the precision of
    each stretch."""
    hint = {} if place == MIXED else {"INFERENCE_PRECISION_HINT": _HINTS.get(place, "f32")}
    return {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", **hint}


def capabilities() -> list[str]:
    """The number types that OpenVINO reports for this processor, such as FP32, BF16, INT8."""
    return [str(each) for each in _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")]


def _openvino() -> Any:
    try:
        return importlib.import_module("openvino")
    except ImportError:
        raise BadOption("OpenVINO is not installed here: pip install 'taglio[openvino]'") from None


def _part(node: Any) -> Part:
    info, inputs = node.get_rt_info(), node.inputs()
    source = inputs[0].get_source_output().get_node().get_friendly_name() if inputs else ""
    originals = tuple(name for name in _text(info, "originalLayersNames").split(",") if name)
    return Part(str(node.get_friendly_name()), _text(info, "layerType"), originals, str(source))


def _text(info: Any, key: str) -> str:
    return str(info[key].astype(str)) if key in info else ""
