"""The operators of a .tflite file, as LiteRT's interpreter lists them, and their operation counts. Runs none."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from ai_edge_litert.interpreter import Interpreter, OpResolverType


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: the name of its output tensor, its kind, its inputs' types, its operations."""

    name: str
    kind: str
    types: tuple[str, ...]
    flops: int


def operators(path: Path) -> list[Operator]:
    """The operators in execution order."""
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES  # a delegate would hide the operators that it takes
    interpreter = Interpreter(str(path), experimental_op_resolver_type=plain)
    tensors = {detail["index"]: detail for detail in interpreter.get_tensor_details()}
    listed = []
    for detail in interpreter._get_ops_details():  # noqa: SLF001
        output = tensors[detail["outputs"][0]]
        inputs = [tensors[index] for index in detail["inputs"] if index >= 0]
        types = tuple(tensor["dtype"].__name__ for tensor in inputs)
        shapes = [tuple(map(int, tensor["shape"])) for tensor in inputs]
        size = prod(map(int, output["shape"]))
        listed.append(Operator(output["name"], detail["op_name"], types, _flops(detail["op_name"], shapes, size)))
    return listed


def _flops(kind: str, inputs: list[tuple[int, ...]], size: int) -> int:
    """Operations, counted as in `taglio.model.flops`: two per multiply-add, one per bias or elementwise result."""
    bias = int(len(inputs) > 2)
    match kind:
        case "CONV_2D" | "FULLY_CONNECTED":
            return size * (2 * prod(inputs[1][1:]) + bias)
        case "DEPTHWISE_CONV_2D":
            return size * (2 * prod(inputs[1][1:3]) + bias)
        case "BATCH_MATMUL":
            return 2 * size * inputs[0][-1]
        case "ADD" | "MUL" | "SUB" | "DIV" | "RELU" | "RELU6" | "MAXIMUM" | "MINIMUM" | "NEG" | "EXP" | "SQRT":
            return size
        case "LOGISTIC":
            return 4 * size
        case "SOFTMAX":
            return 5 * size
        case _:
            return 0
