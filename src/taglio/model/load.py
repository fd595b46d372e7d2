"""An ONNX file or message → a checked, simplified `Model`. Groups no blocks (graph.py) and quantises nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx.inliner import inline_local_functions

from taglio import weights
from taglio.data.spec import InputSpec
from taglio.errors import BadModel
from taglio.model.check import name_unknown_operators, refuse_bad_weights, refuse_damage
from taglio.model.inputs import Feed, fix_shapes, input_specs, keep_interface, random_feeds
from taglio.model.opset import declared_opset, no_int8, with_quantizable_opset
from taglio.model.quantized import fold_weights, quantized_operators, to_float
from taglio.model.read import IN_MEMORY, read
from taglio.model.same import Reference
from taglio.model.simplify import as_it_is, simplify


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A checked model: BatchNorm folded into Conv, no initialiser among the inputs, unique names.

    `sha256` identifies the source file together with the shapes that were fixed. `proto` is the simplified model: it
    keeps the source's inputs and outputs and is never modified after `load`. `no_int8` says why no block can be int8,
    or "". `store` has the files that hold large weights, or is None. `random` tells the user that the model answers at
    random, or is "". `run_s` are the seconds that an inference took while loading; 0 if none was run.
    """

    name: str
    sha256: str
    opset: int
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    proto: onnx.ModelProto
    no_int8: str = ""
    store: weights.Store | None = None
    random: str = ""
    run_s: float = 0.0

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
) -> Model:
    """Read `source`, fix the input `shapes` given by input name, refuse what cannot be planned, and simplify.

    `samples` gives feeds that fit the inputs; the simplified model must answer them as the original does. None uses
    random feeds, if the model runs on them within seconds. A model that ONNX Runtime runs is accepted: if simplifying
    it fails or changes its answers, it stays as it is. Operators that are already quantised stay so, or are folded to
    float first with `requantize`.

    Raises BadModel, in one line, for: a missing, truncated or non-ONNX file; operators that ONNX Runtime does not
    know; NaN or Inf among the weights of a convolution or matrix product; an input that is not a tensor.
    """
    proto, digest = read(source)
    path = source if isinstance(source, Path) else IN_MEMORY
    refuse_damage(path, proto)
    refuse_bad_weights(path, proto)
    store = weights.Store() if weights.float_bytes(proto) >= weights.IN_FILES_BYTES else None
    if store is not None:
        proto = store.take(proto)
    _drop_initializers_from_inputs(proto)
    fix_shapes(path, proto, shapes or {})
    for name, shape in sorted((shapes or {}).items()):
        digest.update(f"{name}={shape}".encode())
    inputs = input_specs(path, proto)
    outputs = tuple(value.name for value in proto.graph.output)
    if requantize and proto.functions:  # they may hold quantised operators
        proto = inline_local_functions(proto)
    if requantize and quantized_operators(proto):
        proto = to_float(proto, store)
        digest.update(b"requantized")
    feeds = samples(inputs) if samples else random_feeds(inputs)
    simple, reference = _simplified(path, proto, feeds, samples is not None, store)
    if store is not None:
        store.only(simple)
    refuse_bad_weights(path, simple)  # again: Constant operators are initialisers now
    name = path.stem if isinstance(source, Path) else proto.graph.name or path.stem
    opset, refusal = declared_opset(simple), no_int8(simple)
    found = (refusal, store, reference.random, reference.run_s)
    return Model(name, digest.hexdigest(), opset, inputs, outputs, simple, *found)


def _simplified(
    path: Path, proto: onnx.ModelProto, feeds: Sequence[Feed], from_user: bool, store: weights.Store | None
) -> tuple[onnx.ModelProto, Reference]:
    """The first that answers as `proto` does of: simplified at an opset with int8 forms, simplified, unchanged. And
    the answers of `proto`."""
    try:
        session, basic = simplify(path, proto, store)
    except BadModel as error:
        raise BadModel(name_unknown_operators(path, proto) or str(error)) from None
    reference = Reference(path, proto, session, feeds, from_user)
    del session  # and its memory
    raised = with_quantizable_opset(proto)
    for candidate in (raised, proto) if raised is not proto else (proto,):
        try:
            simple = basic if candidate is proto else simplify(path, candidate, store)[1]
            if fold_weights(simple, store):
                simple = simplify(path, simple, store)[1]
            keep_interface(proto, simple)
            reference.refuse_difference(simple)
        except BadModel:
            continue
        return simple, reference
    return as_it_is(proto), reference


def _drop_initializers_from_inputs(proto: onnx.ModelProto) -> None:
    # Old exporters list weights as inputs. ONNX Runtime then treats them as overridable and folds nothing.
    names = {tensor.name for tensor in proto.graph.initializer}
    kept = [value for value in proto.graph.input if value.name not in names]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, 4)
