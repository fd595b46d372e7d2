"""PyTorch: float in eager mode and compiled, and int8 by PT2E of torchao, compiled. Converts a model to ONNX."""

import importlib
import inspect
import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taglio.compare.request import KINDS, Request
from taglio.compare.row import WantedRow
from taglio.compare.workers import torch_model
from taglio.compare.workers.contract import Array, Opened, Refused, reference
from taglio.compare.workers.torch_model import flat, tensors
from taglio.errors import plural
from taglio.runtimes.processor import listed, sums_saturate

_NEEDS = "PyTorch rows start from a PyTorch model, and this is {}: give its module:function or .pt2 file"
_FLOAT = {"float32": None, "bfloat16": torch.bfloat16}


def convert(request: Request) -> dict[str, str] | list[list[Array]]:
    """Convert a PyTorch model to ONNX, or write its outputs on the held-out inputs."""
    if request.task == "reference":
        return reference(request, torch_model.runner(torch_model.original(request.model)))
    path = Path(request.folder) / "model.onnx"
    if request.model.endswith(".pt2"):  # an exported program declares its inputs
        program = torch.export.load(request.model)
        torch.onnx.export(program, f=str(path), dynamo=True, external_data=False)
        return {"path": str(path), "tool": f"torch.onnx {torch.__version__}"}
    model = torch_model.original(request.model)
    if not request.shapes:
        raise Refused(
            "a PyTorch module does not say its input's shape: give data as .npz or .npy, or --shape x=1x3x224x224"
        )
    dtypes = request.dtypes or ("float32",) * len(request.shapes)
    examples = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype))
        for name, shape, dtype in zip(request.inputs, request.shapes, dtypes, strict=True)
    }
    takes = [*inspect.signature(model.forward).parameters]
    if not takes or len(takes) < len(examples):
        raise Refused(f"its forward takes {', '.join(takes) or 'no inputs'}, but the data has {', '.join(examples)}")
    if set(examples) <= set(takes):  # in the module's order, not the file's
        examples = {name: examples[name] for name in takes if name in examples}
    names = [name or takes[index] for index, name in enumerate(examples)]
    torch.onnx.export(model, tuple(examples.values()), str(path), input_names=names, dynamo=True, external_data=False)
    return {"path": str(path), "tool": f"torch.onnx {torch.__version__}"}


class PyTorch:
    """The modules of one model's rows."""

    def __init__(self, request: Request) -> None:
        """Raises Refused if the model is not a PyTorch model."""
        if request.kind != "torch":
            raise Refused(_NEEDS.format(KINDS[request.kind]))
        torch.set_num_threads(request.threads)
        self._request = request
        self._model = torch_model.original(request.model)

    def open(self, wanted: WantedRow) -> Opened:
        """The row's module, ready to run."""
        if "inductor" in wanted.engine and not shutil.which("g++"):
            raise Refused("torch.compile needs g++, which was not found: install a C++ compiler")
        return self._float(wanted) if wanted.method in _FLOAT else self._int8(wanted.method)

    def _float(self, wanted: WantedRow) -> Opened:
        kind, model = _FLOAT[wanted.method], self._model
        size = _size(model) // (2 if kind else 1)
        if "inductor" in wanted.engine:
            model = _compiled(model)

        def run(sample: Sequence[Array]) -> list[Array]:
            with torch.inference_mode(), torch.autocast("cpu", kind, enabled=kind is not None):
                outputs = flat(model(*tensors(sample)))
            return [output.float().numpy() for output in outputs]

        return Opened(run, size)

    def _int8(self, method: str) -> Opened:
        """The exported model with what X86InductorQuantizer annotates in int8, compiled. Raises Refused if that is
        nothing."""
        module = self._quantized(method)
        operators = [
            node for node in module.graph.nodes if node.op == "call_function" and "quantize" not in str(node.target)
        ]
        fed = [node for node in operators if any("dequantize" in str(source) for source in node.all_input_nodes)]
        if not fed:
            raise Refused("no operator became int8: X86InductorQuantizer supports none of the model's with this method")
        size = _size(module)
        inductor = torch._dynamo.utils.counters["inductor"]  # noqa: SLF001
        inductor.clear()
        run = torch_model.runner(_compiled(module))
        run(self._request.held_out[0])
        lowered = {
            key.removesuffix("_count"): value
            for key, value in inductor.items()
            if key.startswith("q") and key.endswith("_count") and ("lower" in key or "qcat" in key)
        }
        note = f"{plural(len(fed), 'operator')} with dequantised inputs in the exported graph"
        return Opened(run, size, {"aten": len(operators)}, lowered, (note,))

    def _quantized(self, method: str) -> Any:
        """The model quantised by PT2E: weights symmetric and per channel, activations affine."""
        pt2e = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
        x86 = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
        is_dynamic, calibration = method == "dynamic", [tensors(sample) for sample in self._request.calibration]
        config = x86.get_default_x86_inductor_quantization_config(
            is_dynamic=is_dynamic, reduce_range=sums_saturate(listed())
        )
        exported = torch.export.export(self._model, calibration[0]).module()
        prepared = pt2e.prepare_pt2e(exported, x86.X86InductorQuantizer().set_global(config))
        with torch.no_grad():
            for sample in calibration[:1] if is_dynamic else calibration:
                prepared(*sample)
        return pt2e.convert_pt2e(prepared)


def _compiled(module: nn.Module) -> Any:
    torch._inductor.config.freezing = True  # noqa: SLF001 – weights must be constants for int8 kernels to be chosen
    return torch.compile(module)


def _size(module: nn.Module) -> int:
    """Bytes of the saved state."""
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    return buffer.tell()


make = PyTorch
