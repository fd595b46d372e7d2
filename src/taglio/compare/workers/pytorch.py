"""PyTorch: eager and compiled float, and all its quantisation methods, as they run on this machine."""

import copy
import inspect
import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taglio.compare.request import Request
from taglio.compare.row import Wanted
from taglio.compare.workers import torch_model
from taglio.compare.workers.contract import Array, Opened, Refused, Run, reference
from taglio.compare.workers.torch_forms import Int8Watch, quantize
from taglio.compare.workers.torch_model import flat, tensors
from taglio.errors import plural
from taglio.runtimes.processor import listed, sums_saturate


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
        self._request = request
        torch.set_num_threads(request.threads)
        torch.manual_seed(request.seed)
        self._model = torch_model.load(request)
        self._calibration = [tensors(sample) for sample in request.calibration]
        self._sample = request.held_out[0]
        self._wide = not sums_saturate(listed())

    def open(self, wanted: Wanted) -> Opened:
        """The row's module, ready to run."""
        device, compiled = "cpu", "inductor" in wanted.engine
        if wanted.engine.startswith("cuda"):
            device = "cuda"
            if not torch.cuda.is_available():
                raise Refused("no CUDA device here: torch.cuda.is_available() is False")
        if compiled and not shutil.which("g++"):
            raise Refused("torch.compile writes C++ and finds no g++: install a C++ compiler")
        if wanted.method in ("float32", "bfloat16", "float16"):
            return self._float(wanted, device, compiled)
        engine = wanted.engine.partition(" ")[0]
        if engine not in torch.backends.quantized.supported_engines and not compiled:
            raise Refused(f"this PyTorch has no engine {engine}: {torch.backends.quantized.supported_engines}")
        module = quantize(self._model, wanted, self._calibration, "x86" if compiled else engine, wide=self._wide)
        size = _size(module)
        if wanted.format == "pt2e":
            return self._exported(module, size, compiled)
        watch = Int8Watch()
        with torch.no_grad(), watch:
            module(*tensors(self._sample))
        if not watch.int8:
            raise Refused("no operator became int8: this method supports none of the model's")
        return Opened(_runner(module, engine), size, dict(watch.operators), dict(watch.int8))

    def _float(self, wanted: Wanted, device: str, compiled: bool) -> Opened:
        kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(wanted.method)
        model = self._model if device == "cpu" else copy.deepcopy(self._model).to(device)  # rows share the model
        size = _size(model) // (2 if kind else 1)
        if compiled:
            model = _compiled(model)

        def run(sample: Sequence[Array]) -> list[Array]:
            with torch.inference_mode(), torch.autocast(device, kind, enabled=kind is not None):
                outputs = flat(model(*(tensor.to(device) for tensor in tensors(sample))))
            return [output.float().cpu().numpy() for output in outputs]

        operators = {}
        if not compiled and device == "cpu":
            watch = Int8Watch()
            with torch.no_grad(), watch:
                model(*tensors(self._sample))
            operators = dict(watch.operators)
        return Opened(run, size, operators)

    def _exported(self, module: Any, size: int, compiled: bool) -> Opened:
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        operators = [node for node in nodes if "quantize" not in str(node.target)]
        fed = [node for node in operators if any("dequantize" in str(source) for source in node.all_input_nodes)]
        if not fed:
            raise Refused("no operator became int8: X86InductorQuantizer supports none of the model's with this method")
        counts = {"aten": len(operators)}
        if not compiled:
            note = "run as exported: quantise, dequantise and float operators, as a reference"
            return Opened(_runner(module, "x86"), size, counts, {}, (note,))
        inductor = torch._dynamo.utils.counters["inductor"]  # noqa: SLF001
        inductor.clear()
        run = _runner(_compiled(module), "x86")
        run(self._sample)
        lowered = {
            key.removesuffix("_count"): value
            for key, value in inductor.items()
            if key.startswith("q") and key.endswith("_count") and ("lower" in key or "qcat" in key)
        }
        note = f"{plural(len(fed), 'operator')} with dequantised inputs in the exported graph"
        return Opened(run, size, counts, lowered, (note,))


def _compiled(module: nn.Module) -> Any:
    torch._inductor.config.freezing = True  # noqa: SLF001 – weights must be constants for int8 kernels to be chosen
    return torch.compile(module)


def _runner(module: Any, engine: str) -> Run:
    def run(sample: Sequence[Array]) -> list[Array]:
        torch.backends.quantized.engine = engine
        with torch.no_grad():
            return [output.numpy() for output in flat(module(*tensors(sample)))]

    return run


def _size(module: nn.Module) -> int:
    """Bytes of the saved state."""
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    return buffer.tell()


make = PyTorch
