"""An ONNX file or message → a checked, simplified `Model`. Groups no blocks (graph.py) and quantises nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from taglio import weights
from taglio.data.dataset import shapes_of
from taglio.data.spec import InputSpec, contradicted
from taglio.errors import BadModel
from taglio.model.check import name_unknown_operators, refuse_bad_weights
from taglio.model.dequantize import with_zero_points
from taglio.model.exact import with_exact_sums
from taglio.model.inputs import Feed, free_dimensions, input_specs, keep_interface, random_feeds
from taglio.model.opset import declared_opset, no_int8, with_quantizable_opset
from taglio.model.outputs import correct_outputs
from taglio.model.quantized import fold_weights
from taglio.model.same import OriginalAnswers
from taglio.model.simplify import as_it_is, simplify
from taglio.model.written import as_written
from taglio.notes import Kind, Note
from taglio.runtimes.openvino_marks import note_precision


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A checked model: BatchNorm folded into Conv, no initialiser among the inputs, unique names.

    `sha256` identifies the source file together with the shapes that were fixed. `proto` is the simplified model: it
    keeps the source's inputs and outputs and is never modified after `load`. `no_int8` says why no block can be int8,
    or "". `store` has the files that hold large weights, or is None. `notes` are for the user, such as that the
    model answers at random (`random`). `run_s` are the seconds that an inference took while loading; 0 if none was run.
    """

    name: str
    sha256: str
    opset: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    proto: onnx.ModelProto
    no_int8: str = ""
    store: weights.WeightFiles | None = None
    notes: tuple[Note, ...] = ()
    run_s: float = 0.0
    random: bool = False

    def nodes(self) -> dict[str, onnx.NodeProto]:
        """Operators by name."""
        return {node.name: node for node in self.proto.graph.node}

    def initializers(self) -> dict[str, onnx.TensorProto]:
        """Initialisers by name."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}


def load(
    source: Path | onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    samples: Callable[[tuple[InputSpec, ...]], Sequence[Feed]] | None = None,
    *,
    requantize: bool = False,
    exact_sums: bool = False,
) -> Model:
    """Read `source`, fix the input `shapes` given by input name, refuse what cannot be planned, and simplify.

    `samples` gives feeds that fit the inputs; the simplified model must answer them as the original does. None uses
    random feeds, if the model runs on them within seconds. A named dimension to which a feed gives several sizes loses
    its name: ONNX Runtime would reuse memory as if they were equal. A model that ONNX Runtime runs is accepted: if
    simplifying it fails or changes its answers, it stays as it is. Operators that are already quantised stay so; with
    `requantize` their quantise/dequantise pairs are folded to float first, with `exact_sums` they get weights whose
    products do not saturate on any processor.

    Raises BadModel, in one line, for: a missing, truncated or non-ONNX file; operators that ONNX Runtime does not
    know; NaN or Inf among the weights of a convolution or matrix product; an input that is not a tensor.
    """
    written = as_written(source, shapes, requantize=requantize)
    path, proto, store = written.path, written.proto, written.store
    note_precision(proto, None)  # a model that taglio built is a float model like any other
    inputs = input_specs(path, proto)
    outputs = tuple(value.name for value in proto.graph.output)
    feeds = samples(inputs) if samples else random_feeds(inputs)
    notes = [*correct_outputs(proto)]
    if untied := {dim: text for feed in feeds for dim, text in contradicted(inputs, shapes_of(feed)).items()}:
        free_dimensions(proto, untied)
        inputs = input_specs(path, proto)
        untied_texts = [f"dimension {dim} is {text}, so it is taken as several" for dim, text in untied.items()]
        notes += [Note(Kind.FACT, text) for text in untied_texts]
    simple, reference = _simplified(path, proto, feeds, samples is not None, store)
    if store is not None:
        store.only(simple)
    refuse_bad_weights(path, simple)  # again: Constant operators are initialisers now
    if exact_sums:
        simple = with_exact_sums(simple, fused=True)
        written.digest.update(b"exact sums")
    name = path.stem if isinstance(source, Path) else proto.graph.name or path.stem
    opset, refusal = declared_opset(simple), no_int8(simple)
    notes += [reference.random] if reference.random else []
    details = (refusal, store, tuple(notes), reference.run_s, bool(reference.random))
    return Model(name, written.digest.hexdigest(), opset, inputs, outputs, simple, *details)


def _simplified(
    path: Path, proto: onnx.ModelProto, feeds: Sequence[Feed], from_user: bool, store: weights.WeightFiles | None
) -> tuple[onnx.ModelProto, OriginalAnswers]:
    """The first of these that answers as `proto` does: simplified at an opset with int8 forms, simplified, unchanged.
    Also the answers of `proto`."""
    plannable = with_zero_points(proto)
    try:
        session, basic = simplify(path, plannable, store)
    except BadModel as error:
        raise BadModel(name_unknown_operators(path, proto) or str(error)) from None
    reference = OriginalAnswers(path, proto, session, feeds, from_user)
    del session  # and its memory
    reference.take_exact_answers(proto)
    raised = with_quantizable_opset(plannable)
    for candidate in (raised, plannable) if raised is not plannable else (plannable,):
        try:
            simple = basic if candidate is plannable else simplify(path, candidate, store)[1]
            if fold_weights(simple, store):
                simple = simplify(path, simple, store)[1]
            keep_interface(proto, simple)
            reference.refuse_difference(simple)
        except BadModel:
            continue
        return simple, reference
    return as_it_is(plannable), reference
