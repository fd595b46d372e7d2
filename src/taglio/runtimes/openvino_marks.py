"""Keep single operators of a model in float32 where OpenVINO computes the others in bfloat16.

Which ones is noted in the metadata of the ONNX file, so that whoever opens the file gets the same precisions.

OpenVINO's CPU plugin leaves an operator as it is if the operator has the runtime attribute that disables its
conversion. Python can set it only in the XML of OpenVINO's own model format. An operator that a transformation replaces
loses the attribute. So the transformations that all models go through are applied first, and operators that the plugin
would replace are written such that it does not. Where neither helps (Interpolate, Swish behind a sum), it rounds.
"""

import importlib
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from taglio.runtimes.openvino_fusions import read_fused, replace_by

# The attribute in OpenVINO 2026.4, and in versions before.
_MARKS = (
    {"name": "DisablePrecisionConversion", "version": "0", "value": "dynamic:f16"},
    {"name": "precise", "version": "0"},
)
# The metadata entry that lists the tensors to compute in float32. A model without it has no bfloat16.
_NOTE = "taglio.float32"
_UNCHANGED = {"type": "Clamp", "version": "opset1"}
_ALL_VALUES = {"min": "-3.4028234663852886e+38", "max": "3.4028234663852886e+38"}
_NOT_COMPUTED = ("Const", "Parameter", "Result")
# Elementwise operators that the plugin computes before a movement which they read, and these movements.
_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Ceiling", "Clamp", "Cos", "Divide", "Elu", "Erf", "Exp", "Floor", "Gelu", "HSigmoid", "HSwish",
     "Log", "Maximum", "Minimum", "Mish", "Multiply", "Negative", "Power", "Relu", "Sigmoid", "Sign", "Sin",
     "SoftPlus", "Sqrt", "Subtract", "Tanh"}
)  # fmt: skip
_MOVEMENT = frozenset(
    {"Squeeze", "Unsqueeze", "Reshape", "Transpose", "DepthToSpace", "ReverseSequence", "Gather", "Broadcast"}
)  # fmt: skip
# Activations that the plugin replaces, whatever they are written as.
_REPLACED = ("Swish", "PReLU")


def note_precision(proto: onnx.ModelProto, float32: Collection[str] | None) -> None:
    """Note in `proto` that its float parts compute in bfloat16, but for the tensors `float32`; None: all compute in
    float32."""
    others = [entry for entry in proto.metadata_props if entry.key != _NOTE]
    del proto.metadata_props[:]
    proto.metadata_props.extend(others)
    if float32 is not None:
        proto.metadata_props.add(key=_NOTE, value=json.dumps([*float32]))


def noted_float32(model: Any) -> list[str] | None:
    """The tensors that an openvino.Model computes in float32 beside bfloat16, by its note; None without one."""
    path = ["framework", _NOTE]  # where OpenVINO puts the metadata of an ONNX file
    return json.loads(model.get_rt_info(path).astype(str)) if model.has_rt_info(path) else None


class MarkedModel:
    """A model in OpenVINO's format, with its files in `folder`, of which any operators can be kept in float32."""

    def __init__(self, core: Any, path: Path, folder: Path) -> None:
        self._core = core
        self._whole, self._marked, self._weights = (folder / f"whole{end}" for end in (".xml", ".marked.xml", ".bin"))
        model = read_fused(core, str(path))
        importlib.import_module("openvino._offline_transformations").apply_moc_transformations(model, False)
        _replace(model)
        _move_up(model)
        importlib.import_module("openvino").serialize(model, str(self._whole), str(self._weights))

    def read(self, float32: Collection[str] | None = None) -> Any:
        """The openvino.Model in which the operators that compute the tensors `float32` (None: all operators) use
        float32, as far as possible. An operator without tensor names is part of its first reader that has some."""
        tree = ET.parse(self._whole)  # noqa: S314 - OpenVINO wrote it
        net = _Net(tree.getroot())
        for key in net.float32(None if float32 is None else set(float32)):
            net.keep(key)
        tree.write(self._marked)
        return self._core.read_model(str(self._marked), str(self._weights))


def unkept(path: Path) -> str:
    """A layer of an OpenVINO file that may compute in bfloat16 although all others are marked, and why; "" if none may.

    Rules, from what OpenVINO 2026.4 was seen to round (docs/notes/openvino.md):

    1. a layer without a mark;
    2. an Interpolate, whatever its mark;
    3. a sum of two computed tensors in a model with int8;
    4. a reshape to a size that depends on the data;
    5. an elementwise operator with a constant of several numbers behind a movement;
    6. a padding of computed width.
    """
    tree = ET.parse(path)  # noqa: S314 - OpenVINO wrote it
    return _Net(tree.getroot()).unkept()


class _Net:
    """The layers of a model by their number, in the order in which they run, and who reads whom."""

    def __init__(self, root: ET.Element) -> None:
        (self._all,), (self._edges,) = root.findall("layers"), root.findall("edges")
        self._layers = {layer.attrib["id"]: layer for layer in self._all}
        self._int8 = any(layer.attrib["type"] == "FakeQuantize" for layer in self._all)
        self._readers: dict[str, list[str]] = {key: [] for key in self._layers}
        self._sources: dict[str, list[ET.Element]] = {key: [] for key in self._layers}
        for edge in self._edges:
            self._readers[edge.attrib["from-layer"]].append(edge.attrib["to-layer"])
            self._sources[edge.attrib["to-layer"]].append(edge)

    def float32(self, tensors: set[str] | None) -> list[str]:
        """The layers to keep in float32, which compute `tensors`; None: all layers.

        A convolution adds a residual in place, so the sum, its activation and its inputs must have one precision.
        Otherwise the plugin fails, or leaves a size unset that is not known beforehand.
        """
        if tensors is None:
            return [key for key in self._layers if self._computes(key)]
        low: dict[str, bool] = {}
        for key, layer in reversed(self._layers.items()):  # readers come after what they read
            names, readers = _names(layer), self._readers[key]
            low[key] = names.isdisjoint(tensors) if names else bool(readers) and low[readers[0]]
            if len(readers) == 1:
                (reader,) = readers
                if self._sums(reader):
                    low[key] = low[reader]
                elif self._sums(key):
                    low[key] |= low[reader] or self._layers[reader].attrib["type"] in _REPLACED
        return [key for key, is_low in low.items() if not is_low and self._computes(key)]

    def keep(self, key: str) -> None:
        """Mark a layer."""
        self._apart(key)
        for inner in self._layers[key].iter("layer"):  # of an If or a Loop all that is inside, too
            if inner.attrib["type"] not in _NOT_COMPUTED:
                _mark(inner)

    def unkept(self) -> str:
        """The answer of `unkept` for these layers."""
        for key, layer in self._layers.items():
            reason = self._why_unkept(key) if self._computes(key) else ""
            if reason:
                return f"{layer.attrib['type']} {layer.attrib['name']}: {reason}"
        return ""

    def _why_unkept(self, key: str) -> str:
        layer = self._layers[key]
        kind, inner = layer.attrib["type"], list(layer.iter("layer"))
        if not all(_marked(part) for part in inner if part.attrib["type"] not in _NOT_COMPUTED):
            return "OpenVINO joins it with its neighbours, which it then computes in one precision"
        if not any(port.attrib.get("precision") == "FP32" for port in layer.findall("output/port")):
            return ""
        if "Interpolate" in (part.attrib["type"] for part in inner):
            return "OpenVINO computes it in bfloat16 whatever the file says"
        if self._int8 and self._sums(key):
            return "OpenVINO ignores the precision of a sum beside int8"
        if kind == "Reshape" and any(size.text == "-1" for size in layer.findall("output/port/dim")):
            return "OpenVINO ignores the precision of a reshape to a size that depends on the data"
        sources = [self._layers[edge.attrib["from-layer"]] for edge in self._sources[key]]
        moved = any(source.attrib["type"] in _MOVEMENT for source in sources)
        several = any(source.attrib["type"] == "Const" and _size(source) > 1 for source in sources)
        if kind in _ELEMENTWISE and moved and several:
            return "OpenVINO ignores the precision of an operator with a number per channel behind a movement"
        if kind == "Pad" and any(source.attrib["type"] != "Const" for source in sources[1:3]):
            return "OpenVINO ignores the precision of a padding of computed width"
        return ""

    def _apart(self, key: str) -> None:
        """Keep the plugin from replacing a MatMul and the bias behind it by one operator.

        Sums beside int8 lose their marks, and then a convolution that adds one in place reads another precision. If its
        size is not known beforehand, the plugin leaves the size unset, answers nothing, or writes beyond its memory. So
        such convolutions are kept apart from their sums.
        """
        if self._sums(key):
            sources = self._sources[key] if self._int8 else []
            apart = [source for source in sources if self._convolves(source.attrib["from-layer"])]
        else:
            biased = self._layers[key].attrib["type"] == "Add"
            apart = self._inputs(key, "MatMul")[:1] if biased else []
        for edge in apart:
            self._put_between(edge)

    def _put_between(self, edge: ET.Element) -> None:
        """Put behind a product what changes no finite value and is fused into it."""
        number = str(1 + max(map(int, self._layers)))
        product = self._layers[edge.attrib["from-layer"]]
        (written,) = product.findall("output/port")
        layer = ET.Element("layer", {"id": number, "name": f"{product.attrib['name']}/kept", **_UNCHANGED})
        ET.SubElement(layer, "data", _ALL_VALUES)
        for side, port in (("input", "0"), ("output", "1")):
            attributes = {"id": port, "precision": written.attrib["precision"]}
            ET.SubElement(ET.SubElement(layer, side), "port", attributes).extend(written.findall("dim"))
        self._all.append(layer)
        self._layers[number] = layer
        ET.SubElement(self._edges, "edge", edge.attrib | {"to-layer": number, "to-port": "0"})
        edge.attrib |= {"from-layer": number, "from-port": "1"}
        _mark(layer)

    def _inputs(self, key: str, kind: str) -> list[ET.Element]:
        """The edges by which a layer reads layers of a kind."""
        return [edge for edge in self._sources[key] if self._layers[edge.attrib["from-layer"]].attrib["type"] == kind]

    def _convolves(self, key: str) -> bool:
        """Whether a layer is a convolution, or its bias, of a size that is not known."""
        biased = self._layers[key].attrib["type"] == "Add" and self._inputs(key, "Const")
        convolves = self._layers[key].attrib["type"] == "Convolution" or (biased and self._inputs(key, "Convolution"))
        return bool(convolves) and any(size.text == "-1" for size in self._layers[key].findall("output/port/dim"))

    def _sums(self, key: str) -> bool:
        """Whether a layer adds two computed tensors."""
        return self._layers[key].attrib["type"] == "Add" and not self._inputs(key, "Const")

    def _computes(self, key: str) -> bool:
        return self._layers[key].attrib["type"] not in _NOT_COMPUTED


def _replace(model: Any) -> None:
    """Replace operators as the plugin would, before they are marked."""
    for node in model.get_ordered_ops():
        by = _replacement(node)
        if by is not None:
            replace_by(node, by)


def _move_up(model: Any) -> None:
    """Let elementwise operators read what a movement reads, and the movement read them, as the plugin would."""
    old = importlib.import_module("openvino.opset1")
    for node in model.get_ordered_ops():
        while (move := _movement_before(node)) is not None:
            (reader,) = node.output(0).get_target_inputs()
            for single in node.inputs()[1:]:
                value = single.get_source_output().get_node().data
                single.replace_source_output(old.constant(value.reshape(())).output(0))
            node.input(0).replace_source_output(move.input_value(0))
            reader.replace_source_output(move.output(0))
            move.input(0).replace_source_output(node.output(0))
            move.output(0).set_names(node.output(0).get_names())
            node.output(0).set_names(set())
    model.validate_nodes_and_infer_types()


def _movement_before(node: Any) -> Any | None:
    """The movement that an elementwise operator reads, if they can change places: nothing else reads either's values,
    and what else the operator reads is a single number."""
    if node.get_type_name() not in _ELEMENTWISE:
        return None
    (first, *operands), (written,) = node.input_values(), node.outputs()
    move, rank = first.get_node(), written.get_partial_shape().rank
    alone = all(len(value.get_target_inputs()) == 1 for value in (first, written))
    if move.get_type_name() not in _MOVEMENT or not alone or rank.is_dynamic or rank != first.get_partial_shape().rank:
        return None
    numbers = all(
        operand.get_node().get_type_name() == "Constant" and operand.get_node().data.size == 1 for operand in operands
    )
    return move if numbers else None


def _replacement(node: Any) -> Any | None:
    """The operator by which the plugin would later replace an openvino.Node; None if it keeps the node."""
    old = importlib.import_module("openvino.opset1")
    inputs, attributes, shape = node.input_values(), node.get_attributes(), node.get_output_partial_shape(0)
    kind = node.get_type_name()
    if kind in ("Squeeze", "Unsqueeze") and shape.rank.is_static:
        sizes = [size.get_length() if size.is_static else -1 for size in shape]
        if sizes and sizes.count(-1) < 2:
            return old.reshape(inputs[0], old.constant(sizes, np.int64), special_zero=False)
    if kind == "Softmax" and shape.rank.is_static:
        return old.softmax(inputs[0], attributes["axis"] % shape.rank.get_length())
    if kind == "MaxPool" and set(attributes.get("dilations", ())) == {1} and not node.output(1).get_target_inputs():
        names = ("strides", "pads_begin", "pads_end", "kernel", "rounding_type", "auto_pad")
        return old.max_pool(inputs[0], *(attributes[name] for name in names))
    if kind == "Pad" and not any(map(_removes, inputs[1:3])):
        return old.pad(*inputs[:3], attributes["pad_mode"], *inputs[3:])
    constant = kind == "Subtract" and inputs[1].get_node().get_type_name() in ("Constant", "Convert")
    if kind == "Subtract" and not constant and node.get_output_element_type(0).is_real():
        # a + b · (-1). What changes no finite value keeps the plugin from putting -1 into weights, and from undoing it.
        minus, ends = old.constant(-1.0, node.get_output_element_type(0)), [*map(float, _ALL_VALUES.values())]
        return old.add(inputs[0], old.clamp(old.multiply(old.clamp(inputs[1], *ends), minus), *ends))
    return None


def _removes(pads: Any) -> bool:
    """Whether a size of a padding is known to be negative."""
    node = pads.get_node()
    return node.get_type_name() == "Constant" and bool((np.asarray(node.data) < 0).any())


def _names(layer: ET.Element) -> set[str]:
    """The names of the tensors that a layer computes; a comma inside a name is written as `\\,`."""
    joined_names = [port.attrib.get("names", "") for port in layer.findall("output/port")]
    return {name.replace("\\,", ",") for names in joined_names for name in re.split(r"(?<!\\),", names) if name}


def _mark(layer: ET.Element) -> None:
    """Mark a layer; runtime attributes follow the element `data`, if there is one."""
    info = layer.find("rt_info")
    if info is None:
        info = ET.Element("rt_info")
        layer.insert(int(layer.find("data") is not None), info)
    info.extend(ET.Element("attribute", mark) for mark in _MARKS)


def _marked(layer: ET.Element) -> bool:
    names = {attribute.attrib.get("name") for attribute in layer.findall("rt_info/attribute")}
    return any(mark["name"] in names for mark in _MARKS)


def _size(constant: ET.Element) -> int:
    """The number of elements of a constant layer."""
    return prod(int(size.text or 0) for size in constant.findall("output/port/dim"))
