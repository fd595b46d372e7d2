"""The outputs of an ONNX graph: correct shapes that the file declares and the graph does not compute. Runs no model."""

from copy import deepcopy

import onnx

from taglio.data.spec import Dim, shown
from taglio.model.derived import inferred
from taglio.model.inputs import spec_of
from taglio.notes import Kind, Note

Dims = tuple[Dim, ...]


def correct_outputs(proto: onnx.ModelProto) -> tuple[Note, ...]:
    """Declare, in place, the shape that inference finds for each output whose declared one contradicts it; a note
    on each.

    A declared shape is contradicted by another rank, another size, or a dynamic dimension of the inputs where it has a
    size: tools that make a batch dynamic often leave the outputs as they were.
    """
    bare = deepcopy(proto)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    computes = {value.name: value for value in inferred(bare, data_prop=True).graph.output}
    symbols = {dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim} - {""}
    notes = []
    for value in proto.graph.output:
        declared, computed = spec_of(value).shape, spec_of(computes[value.name]).shape
        if declared is None or computed is None or not _contradicts(declared, computed, symbols):
            continue
        value.type.tensor_type.shape.CopyFrom(computes[value.name].type.tensor_type.shape)
        text = f"the file declares {shown(declared)} for output {value.name}, but the graph computes {shown(computed)}"
        notes.append(Note(Kind.FACT, f"{text}, which is used"))
    return tuple(notes)


def _contradicts(declared: Dims, computed: Dims, symbols: set[str]) -> bool:
    if len(declared) != len(computed):
        return True
    return any(
        isinstance(before, int) and before > 0 and after != before and (isinstance(after, int) or after in symbols)
        for before, after in zip(declared, computed, strict=True)
    )
