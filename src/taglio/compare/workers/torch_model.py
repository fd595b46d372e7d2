"""The PyTorch form of a model: loaded, or converted by onnx2torch and made static so that every tool accepts it.

onnx2torch computes shapes at run time, which FX, export and scripting refuse. Shapes are fixed here, so one run with
the real sizes records the static graph: torch.nn modules as they are, every other operator as a function of constants.
"""

import contextlib
import importlib
import operator
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from taglio.compare.request import Request
from taglio.compare.workers.contract import Array, Refused, Run
from taglio.errors import one_line


def load(request: Request) -> nn.Module:
    """The float model in evaluation mode. Raises Refused, with onnx2torch's message, if it cannot be converted."""
    if request.kind == "torch":
        return original(request.model)
    _stand_in_for_torchvision()
    onnx2torch = importlib.import_module("onnx2torch")
    proto = onnx.load(request.onnx)
    try:  # only the conversion: errors before or after it are not onnx2torch's
        converted = onnx2torch.convert(proto).eval()
    except (NotImplementedError, ValueError, RuntimeError, KeyError) as error:
        raise Refused(f"onnx2torch cannot convert the model: {one_line(error, 300)}", "failed") from error
    examples = [torch.zeros(shape) for shape in request.shapes]
    module = static(converted, examples)
    # A Gemm's weight is a transposed view, which inductor's int8 linear would read as if not transposed.
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()
    return module


def original(source: str) -> nn.Module:
    """A module from `module:function` (also `folder/module.py:function`) or from an exported program."""
    path, _, name = source.rpartition(":")
    if source.endswith(".pt2"):
        exported: nn.Module = torch.export.load(source).module()
        return exported
    with contextlib.suppress(ValueError):
        sys.path.insert(0, str(Path(path).parent.resolve()))
    torch.manual_seed(0)  # each process builds the module again: random weights must be equal in all of them
    module = importlib.import_module(Path(path).name.removesuffix(".py"))
    built: nn.Module = getattr(module, name)()
    return built.eval()


def runner(model: Callable[..., Any]) -> Run:
    """The model as a function from arrays to arrays."""

    def run(sample: Sequence[Array]) -> list[Array]:
        with torch.inference_mode():
            return [np.asarray(output) for output in flat(model(*tensors(sample)))]

    return run


def tensors(sample: Sequence[Array]) -> tuple[torch.Tensor, ...]:
    """A sample as tensors."""
    return tuple(torch.from_numpy(array) for array in sample)


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors in whatever a module takes or returns, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def static(module: fx.GraphModule, examples: Sequence[torch.Tensor]) -> fx.GraphModule:
    """`module` for inputs of exactly the shapes of `examples`."""
    recorder = _Recorder(module)
    with torch.no_grad():
        outputs = flat(recorder.run(*examples))
    return recorder.finish(outputs)


class _Recorder(fx.Interpreter):
    """Runs a module node by node and records a new graph of everything that depends on the inputs."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.written = fx.Graph()
        self.root = nn.Module()
        self.nodes: dict[int, fx.Node] = {}
        self._alive: list[torch.Tensor] = []
        self._constants: dict[int, fx.Node] = {}

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().placeholder(target, args, kwargs)
        self.track(value, self.written.placeholder(str(target)))
        return value

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Record a torch.nn module as it is; run others and record the functions inside."""
        module = self.fetch_attr(target)
        is_torch_layer = type(module).__module__.startswith("torch.nn")
        if not is_torch_layer or not any(id(argument) in self.nodes for argument in args):
            with _Watch(self):
                return module(*args, **kwargs)
        name = str(target).replace(".", "_").replace("/", "_").replace(":", "_")
        self.root.add_module(name, module)
        value = module(*args, **kwargs)
        self.track(value, self.written.call_module(name, self.mapped(args), self.mapped(kwargs)))
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        with _Watch(self):
            return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        with _Watch(self):
            return super().call_method(target, args, kwargs)

    def track(self, value: Any, node: fx.Node) -> None:
        """Remember which node writes a tensor, or each tensor of a tuple."""
        if isinstance(value, torch.Tensor):
            self.nodes[id(value)] = node
            self._alive.append(value)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    self.track(item, self.written.call_function(operator.getitem, (node, index)))

    def mapped(self, value: Any) -> Any:
        """Arguments with tensors replaced by nodes; unknown tensors become constants of the new module."""
        if isinstance(value, torch.Tensor):
            return self.nodes.get(id(value)) or self._constant(value)
        if isinstance(value, dict):
            return {key: self.mapped(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(_number(item) for item in (value.start, value.stop, value.step)))
        if isinstance(value, torch.Size):
            return tuple(int(item) for item in value)
        if isinstance(value, tuple | list):
            return type(value)(self.mapped(item) for item in value)
        return value

    def _constant(self, value: torch.Tensor) -> fx.Node:
        if id(value) not in self._constants:
            name = f"constant_{len(self._constants)}"
            self.root.register_buffer(name, value.detach().clone())
            self._constants[id(value)] = self.written.get_attr(name)
            self._alive.append(value)
        return self._constants[id(value)]

    def finish(self, outputs: Sequence[torch.Tensor]) -> fx.GraphModule:
        self.written.output(tuple(self.mapped(output) for output in outputs))
        module = fx.GraphModule(self.root, self.written)
        module.graph.eliminate_dead_code()
        module.recompile()
        return module.eval()


class _Watch(TorchFunctionMode):
    """Records the torch functions that read a tracked tensor and return tensors."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        recorder = self._recorder
        if any(id(tensor) in recorder.nodes for tensor in flat((args, kwargs))) and flat(value):
            if all(id(tensor) in recorder.nodes for tensor in flat(value)):  # an alias of a known tensor
                return value
            positional, named = recorder.mapped(args), recorder.mapped(kwargs)
            method = isinstance(func, types.MethodDescriptorType) or getattr(func, "__objclass__", None) is not None
            if func is torch.Tensor.__getitem__:
                index = tuple(positional[1]) if isinstance(positional[1], list) else positional[1]
                node = recorder.written.call_function(operator.getitem, (positional[0], index))
            elif method:
                node = recorder.written.call_method(func.__name__, positional, named)
            else:
                node = recorder.written.call_function(func, positional, named)
            recorder.track(value, node)
        return value


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _stand_in_for_torchvision() -> None:
    """Stub out torchvision if it cannot be loaded with this build of PyTorch: onnx2torch needs it only for
    NonMaxSuppression and RoiAlign."""
    try:
        importlib.import_module("torchvision.ops")
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        stand_in, ops = types.ModuleType("torchvision"), types.ModuleType("torchvision.ops")
        vars(ops)["roi_align"] = None
        vars(stand_in)["ops"] = ops
        sys.modules.update({"torchvision": stand_in, "torchvision.ops": ops})
