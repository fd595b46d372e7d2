"""Suggest the task of a model from the shapes and names of its inputs and outputs and its metadata. Runs no model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from taglio.data.spec import Shape
from taglio.error.tasks.detection import CLASS_NAMES, heads_by_stride, names_classes, on_grid
from taglio.error.tasks.outputs import height_and_width
from taglio.error.tasks.text import CHARACTERS
from taglio.model.captures import ahead, writers
from taglio.model.graph import Graph
from taglio.model.inputs import spec_of
from taglio.model.load import Model

_EMBEDDINGS = ("embed", "feature", "pooled", "pooler")
# Ultralytics' metadata, which names classes too.
_ULTRALYTICS = dict.fromkeys(("detect", "segment", "pose", "obb"), "detection") | {"classify": "top1"}
_MOVERS = ("Identity", "Transpose", "Reshape")
_POOLING = ("ReduceMean", "ReduceMax", "AveragePool", "GlobalAveragePool", "LpNormalization")


@dataclass(frozen=True, slots=True)
class ModelPort:
    """An input or output: its shape, with 0 for unknown sizes, and the name of its type."""

    name: str
    shape: Shape
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether its values are float."""
        return "float" in self.dtype

    def __str__(self) -> str:
        return f"{self.name} [{', '.join(str(size or '?') for size in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A metric that suits the model, and the reason."""

    metric: str
    why: str


def suggest_for(model: Model, graph: Graph, states: Collection[str] = ()) -> Suggestion | None:
    """The suggestion for a model; `graph` has the shapes observed when it ran. Inputs and outputs named in
    `states` are left aside. None if nothing indicates a task."""
    declared = {value.name: spec_of(value).sizes(0) for value in model.proto.graph.output}
    tensors = graph.tensor_map()

    def tensor(name: str) -> ModelPort:
        shape = tensors[name].shape
        return ModelPort(name, declared[name] if shape is None else shape, tensors[name].dtype)

    rows = {name: weight.dims[0] for name, weight in model.initializers().items() if len(weight.dims) == 2}
    nodes = model.proto.graph.node
    writer = writers(nodes)
    sources = {name: ahead(writer.get(name), writer, _MOVERS) for name in model.outputs}
    return suggest(
        [ModelPort(spec.name, spec.sizes(0), spec.dtype) for spec in model.inputs if spec.name not in states],
        [tensor(name) for name in model.outputs if name in tensors and name not in states],
        {entry.key: entry.value for entry in model.proto.metadata_props},
        vocabularies=[rows[node.input[0]] for node in nodes if node.op_type == "Gather" and node.input[0] in rows],
        pooled=[name for name in model.outputs if _embeds(writer.get(name), writer)],
        joined=[name for name, node in sources.items() if node and node.op_type == "Concat" and len(node.input) > 1],
    )


def _embeds(node: onnx.NodeProto | None, writer: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a node pools, or divides by a length or a count, as exporters write pooling and normalisation."""
    node = ahead(node, writer, ("Concat", "Reshape", "Squeeze", "Flatten", "Identity"))
    if node is None or node.op_type != "Div":
        return node is not None and node.op_type in _POOLING
    pooled = writer.get(node.input[0])
    length = ahead(writer.get(node.input[1]), writer, ("Clip", "Max", "Expand", "Add", "Unsqueeze"))
    return (pooled is not None and pooled.op_type == "ReduceSum") or (
        length is not None and length.op_type == "ReduceL2"
    )


def suggest(
    inputs: Sequence[ModelPort],
    outputs: Sequence[ModelPort],
    metadata: Mapping[str, str],
    *,
    vocabularies: Sequence[int] = (),
    pooled: Sequence[str] = (),
    joined: Sequence[str] = (),
) -> Suggestion | None:
    """The most likely task of the outputs; None if nothing indicates one.

    `vocabularies` are the numbers of rows of embedding tables, `pooled` the outputs written by pooling or by a
    normalisation to unit length, `joined` those written by a Concat: of boxes and scores, say, not one map per class.
    """
    if metric := _ULTRALYTICS.get(metadata.get("task", "") if CLASS_NAMES in metadata else ""):
        return Suggestion(metric, f'the metadata names the task "{metadata["task"]}"')
    floats = [output for output in outputs if output.is_float]
    if any(_reads_text(output, metadata.get(CHARACTERS, "")) for output in floats):
        return Suggestion("ctc", f"the metadata names {len(metadata[CHARACTERS].splitlines())} characters")
    rows = {tensor.shape[0] for tensor in inputs if tensor.shape}
    # Of two or four integers, such as the size of the original image, none is a token.
    tokens = any(not tensor.is_float and len(tensor.shape) == 2 and tensor.shape[1] not in (2, 4) for tensor in inputs)
    image = next((height_and_width(tensor.shape) for tensor in inputs if _is_image(tensor)), None)
    if image is not None and not tokens:
        return _of_image(image, floats, outputs, joined) or _of_vector(floats, pooled, rows)
    for output in floats:
        if len(output.shape) == 3 and tokens:
            classes = output.shape[2]
            # Wider outputs are hidden states, unless as wide as a vocabulary.
            if classes in vocabularies or 1 < classes <= 64 or "logits" in output.name.lower():
                width = "as many classes as there are tokens" if classes in vocabularies else "classes for each token"
                return Suggestion("tokens", f"output {output} has {width}")
    return _of_vector(floats, pooled, rows)


def _reads_text(output: ModelPort, characters: str) -> bool:
    """Whether an output has the classes of these characters for each of several steps. Classifiers name their classes
    under the same key."""
    more = output.shape[-1] - len(characters.split("\n")) if output.shape else -1  # a blank, and perhaps a space
    return bool(characters) and len(output.shape) == 3 and (more in (0, 1, 2) or output.shape[-1] == 0)


def _is_image(tensor: ModelPort) -> bool:
    """Whether an input has the channels of an image."""
    return len(tensor.shape) == 4 and not {1, 3, 4}.isdisjoint((tensor.shape[1], tensor.shape[3]))


def _of_image(
    image: tuple[int, int], floats: Sequence[ModelPort], outputs: Sequence[ModelPort], joined: Collection[str]
) -> Suggestion | None:
    """The suggestion for a network that reads an image of this height and width (0: unknown), by its heads."""
    names = {output.name for output in floats}
    if {f"{head}_{stride}" for head in ("cls", "bbox") for stride in (8, 16, 32)} <= names:
        return Suggestion("detection", "classes and boxes are outputs of the strides 8, 16 and 32")
    if heads := heads_by_stride({output.name: output.shape for output in floats}, image):
        strides = [str(stride) for stride, _, _ in heads]
        return Suggestion(
            "detection", f"scores and boxes are outputs of the strides {', '.join(strides[:-1])} and {strides[-1]}"
        )
    flat = [output for output in floats if len(output.shape) == 3]
    for boxes in flat:
        beside = [output for output in flat if output is not boxes and output.shape[1] == boxes.shape[1]]
        if boxes.shape[2] == 4 and beside:
            return Suggestion("detection", f"{boxes} beside {beside[0]} are boxes and scores")
        classes = [output for output in outputs if output.shape == boxes.shape[:2] and names_classes(output.name)]
        if boxes.shape[2] in (4, 5) and classes:
            return Suggestion("detection", f"{boxes} beside {classes[0]} are boxes and their classes")
    for output in flat:
        _, first, second = output.shape
        if first >= 5 and second >= 5 and (on_grid(first, image) or on_grid(second, image)):
            return Suggestion("detection", f"output {output} has a row for each cell of the image")
        if second == 6 and first > second:
            return Suggestion("detection", f"output {output} may be boxes, each with a score and a class")
    for output in outputs:
        rank = len(output.shape)
        maps = output.is_float and output.name not in joined
        if (rank == 4 and maps and image in (output.shape[2:], output.shape[1:3])) or (
            rank in (3, 4) and not output.is_float and output.shape[-2:] == image
        ):
            verb = "is" if all(image) else "may be"
            return Suggestion("segmentation", f"output {output} {verb} as large as the image")
    height, width = image
    line = 2 * height <= width if width else height > 0  # lines of text have one height and any width
    for output in flat:
        if line and min(output.shape[:2]) <= 1 and output.shape[2] > 1:
            return Suggestion("ctc", f"output {output} {'has' if width else 'may have'} classes for steps along a line")
    return None


def _of_vector(floats: Sequence[ModelPort], pooled: Sequence[str], rows: Collection[int]) -> Suggestion | None:
    """The suggestion for one vector for each of as many inputs as `rows` has."""
    if not floats:
        return None
    first = floats[0]
    for output in floats:
        vector = len(output.shape) == 2 and (output.shape[1] == 0 or output.shape[1] >= 32)
        if vector and (output.name in pooled or any(word in output.name.lower() for word in _EMBEDDINGS)):
            return Suggestion("similarity", f"output {output} is one vector for each input")
    if len(first.shape) == 2 and first.shape[1] > 1 and first.shape[0] in {0, 1, *rows}:
        return Suggestion("top1", f"output {first} may be scores of classes")
    if first.shape and set(first.shape) == {1}:
        return Suggestion("r2", f"output {first} is one number")
    return None
