"""The source model as it is written: read, with its shapes fixed, and opened so that it answers what its graph says.
Simplifies nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import onnx
from onnx.inliner import inline_local_functions
from onnxruntime import InferenceSession

from taglio import weights
from taglio.cores import available_cores
from taglio.model.captures import graphs, node_inputs, operators, set_operators
from taglio.model.check import refuse_bad_weights, refuse_damage
from taglio.model.exact import with_exact_sums
from taglio.model.inputs import fix_shapes
from taglio.model.operators import standard
from taglio.model.quantized import quantized_operators, to_float
from taglio.model.read import IN_MEMORY, read
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session


@dataclass(frozen=True, slots=True, eq=False)
class SourceModel:
    """A model as written. `digest` is a hash of the file and of what was changed on request; `store` has the files that
    hold large weights, or is None."""

    path: Path
    proto: onnx.ModelProto
    digest: Any
    store: weights.WeightFiles | None = None


def as_written(
    source: Path | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None, *, requantize: bool = False
) -> SourceModel:
    """`source` with its operators in topological order, its input `shapes` fixed and no initialiser among its inputs;
    with `requantize` its quantise/dequantise pairs are folded to float. Raises BadModel for a file that is no usable
    model."""
    proto, digest = read(source)
    path = source if isinstance(source, Path) else IN_MEMORY
    refuse_damage(path, proto)
    refuse_bad_weights(path, proto)
    store = weights.WeightFiles() if weights.float_bytes(proto) >= weights.IN_FILES_BYTES else None
    if store is not None:
        proto = store.take(proto)
    _drop_initializers_from_inputs(proto)
    for graph in graphs(proto.graph):
        _sort(graph)
    _write_out_one_sided(proto)
    fix_shapes(path, proto, shapes or {})
    for name, shape in sorted((shapes or {}).items()):
        digest.update(f"{name}={shape}".encode())
    if requantize and proto.functions:  # they may hold quantised operators
        proto = inline_local_functions(proto)
    if requantize and quantized_operators(proto):
        proto = to_float(proto, store)
        digest.update(b"requantized")
    return SourceModel(path, proto, digest, store)


def open_exact(proto: onnx.ModelProto, label: str, threads: int | None = None) -> InferenceSession:
    """A session of `proto` that computes what the graph says: without ONNX Runtime's optimisations, and with sums that
    saturate on no processor. Raises BadModel if ONNX Runtime cannot load it so."""
    proto = with_exact_sums(inline_local_functions(proto) if proto.functions else proto)
    options = SessionOptions(threads or available_cores(), Optimization.NONE, lean=True)
    return open_session(proto, options, label=label)


def _drop_initializers_from_inputs(proto: onnx.ModelProto) -> None:
    # Old exporters list weights as inputs. ONNX Runtime then treats them as overridable and folds nothing.
    names = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in names]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = max(proto.ir_version, 4)


def _sort(graph: onnx.GraphProto) -> None:
    """Sort the operators topologically, in place. ONNX Runtime runs files in any order, and saves a graph that it did
    not rewrite in the order of the file."""
    writer = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    reads = [{writer[name] for name in node_inputs(node) if name in writer} for node in graph.node]
    if all(index > other for index, others in enumerate(reads) for other in others):
        return
    order = TopologicalSorter(dict(enumerate(reads)))
    try:
        nodes = [graph.node[index] for index in order.static_order()]
    except CycleError:  # ONNX Runtime refuses it
        return
    set_operators(graph, nodes)


def _write_out_one_sided(proto: onnx.ModelProto) -> None:
    """Write out, in place, that an STFT without `onesided` is one-sided: shape inference takes it for two-sided, and
    declares twice as many frequencies as there are."""
    for node in operators(proto):
        is_stft = standard(node) and node.op_type == "STFT"
        if is_stft and "onesided" not in {attribute.name for attribute in node.attribute}:
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))
