"""Seconds per part of OpenVINO's compiled graphs, joined to ONNX nodes, for the stop-watch.

OpenVINO runs the parts of a compiled graph. Each part names the operators it was made of, so its seconds go to one node
of the ONNX graph: the Conv or MatMul among them, or else the last that computes. A product that names none of its own
(OpenVINO calls a MatMul with a bias after the Add) belongs to the nearest one before what it names. A part that
OpenVINO inserted itself (Reorder) counts as a layout change behind its producer's tensor, as in ONNX Runtime.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np
import onnx
from onnx import helper

from taglio.errors import MeasurementFailed
from taglio.runtimes import openvino
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.openvino_parts import CompiledPart

_ANCHORS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "MatMulNBits", "DynamicQuantizeMatMul"})
_PAIRS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_PUT_IN = "ReorderOutput"
_PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
# What OpenVINO adds to the name of an int8 operator.
_SCALED = "/DequantizationMultiply"


class OpenVinoRecorder:
    """A KernelRecorder in OpenVINO, by its counters of each part. Reading these takes longer than a small model's run,
    but not having them read slows none."""

    def __init__(self, path: Path, options: SessionOptions) -> None:
        self._session = openvino.open_session(path, options, counters=True)
        self._runs: list[dict[str, float]] = []
        self.is_started = False

    def start(self) -> None:
        """Read the counters after each run from now on."""
        self.is_started = True

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """As Session.run."""
        outputs = self._session.run(output_names, input_feed)
        if self.is_started:
            self._runs.append(self._session.seconds())
        return outputs

    def kernels(self, graph: onnx.ModelProto, together: int, longest_s: float | None) -> dict[str, float]:
        """As KernelRecorder.kernels; `graph` gets nodes for parts that OpenVINO inserted."""
        del longest_s
        rounds = [self._runs[start : start + together] for start in range(0, len(self._runs), together)]
        seconds_of = {
            part: median(fmean(run.get(part, 0.0) for run in runs) for runs in rounds) for part in self._runs[0]
        }
        return join(graph, self._session.parts(), seconds_of)


def join(graph: onnx.ModelProto, parts: Sequence[CompiledPart], seconds: Mapping[str, float]) -> dict[str, float]:
    """`seconds` of `parts` by node of `graph`, to which nodes are added for parts that OpenVINO inserted.

    Raises MeasurementFailed if no part names an operator of the graph.
    """
    nodes = {name: node for node in graph.graph.node for name in (*node.output, node.name) if name}
    made_of = {part.name: _main(part, nodes) for part in parts}
    sources = {part.name: part.source for part in parts}
    if not any(node is not None for node in made_of.values()):
        raise MeasurementFailed("OpenVINO's compiled graph names none of the model's operators: use onnxruntime")
    seconds_of: dict[str, float] = {}
    for part in parts:
        part_s = seconds.get(part.name, 0.0)
        if part_s <= 0.0:
            continue
        node = made_of[part.name]
        if node is None:
            node = _behind(part.name, made_of, sources)
            if node is None:
                continue  # at an input: part of the session overhead
            put_in = helper.make_node(_PUT_IN, [node.output[0]], [f"{part.name}/put in"], name=f"{part.name}/put in")
            graph.graph.node.append(put_in)
            node = put_in
        seconds_of[node.name] = seconds_of.get(node.name, 0.0) + part_s
    return seconds_of


def _main(part: CompiledPart, nodes: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """The node that the time of `part` belongs to; `nodes` by their own and their outputs' names."""
    names = [name.removesuffix(_SCALED) for name in part.originals]
    originals = [nodes[name] for name in names if name in nodes]
    computing = [node for node in originals if node.op_type not in _PAIRS]
    anchors = [node for node in computing if node.op_type in _ANCHORS]
    if part.kind in _PRODUCTS and originals and not anchors:
        anchors = _before(originals[0], nodes)
    return next(iter([*anchors[:1], *computing[-1:], *originals[-1:]]), None)


def _before(node: onnx.NodeProto, nodes: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The Conv or MatMul nearest before a node; empty if there is none."""
    upstream, seen = [node], {node.name}
    for operator in upstream:
        if operator.op_type in _ANCHORS:
            return [operator]
        producers = [nodes[name] for name in operator.input if name in nodes and nodes[name].name not in seen]
        seen |= {producer.name for producer in producers}
        upstream += producers
    return []


def _behind(
    name: str, made_of: Mapping[str, onnx.NodeProto | None], sources: Mapping[str, str]
) -> onnx.NodeProto | None:
    seen = set[str]()
    while name and name not in seen:
        seen.add(name)
        name = sources.get(name, "")
        if made_of.get(name) is not None:
            return made_of[name]
    return None
