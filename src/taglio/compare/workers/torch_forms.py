"""Quantise a PyTorch module: eager, FX or PT2E, dynamic, static or by training, for one engine. Times nothing.

PT2E, in torchao, is the present way. Eager mode and FX are in `torch.ao.quantization`, which is deprecated upstream.
"""

import copy
import importlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.ao import quantization as ao
from torch.ao.quantization import quantization_mappings, quantize_fx
from torch.ao.quantization.qconfig_mapping import _FIXED_QPARAMS_OP_TO_OBSERVER
from torch.utils._python_dispatch import TorchDispatchMode

from taglio.compare.row import Wanted
from taglio.compare.workers.contract import Refused
from taglio.compare.workers.torch_model import flat

Tensors = tuple[torch.Tensor, ...]
_DYNAMIC = (nn.Linear, nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.RNNCell, nn.Embedding, nn.EmbeddingBag)
# Operators that convert between float and int8, or only read a quantised tensor's fields.
_CONVERSIONS = (
    "quantize_per", "dequantize", "q_scale", "q_zero_point", "int_repr", "q_per_channel", "qscheme", "clone", "detach",
    "empty", "copy_", "_prepack", "_unpack", "view", "reshape", "permute", "alias",
)  # fmt: skip
LEARNING_RATE = 1e-5
EPOCHS, MOST_SAMPLES = 3, 8


def quantize(model: nn.Module, wanted: Wanted, calibration: Sequence[Tensors], engine: str, *, wide: bool) -> nn.Module:
    """`model` quantised by `wanted.format` and `wanted.method`. `wide`: the processor sums u8 × s8 unsaturated."""
    torch.backends.quantized.engine = engine
    if wanted.format == "pt2e":
        return _pt2e(model, wanted.method, calibration, wide=wide)
    symmetric, per_channel = bool(wanted.symmetric), wanted.per_channel is not False
    if wanted.method == "dynamic":  # activations are quantised at run time
        qconfig = ao.per_channel_dynamic_qconfig if per_channel else ao.default_dynamic_qconfig
    else:
        qconfig = static_qconfig(symmetric, per_channel, qat=wanted.method == "qat", wide=wide)
    way = _eager if wanted.format == "eager" else _fx
    return way(copy.deepcopy(model), wanted.method, qconfig, calibration)


def static_qconfig(symmetric: bool, per_channel: bool, *, qat: bool, wide: bool) -> Any:
    """QConfig with u8 activations, affine or symmetric, and symmetric s8 weights, as all engines here require."""
    activation: dict[str, Any] = {
        "dtype": torch.quint8,
        "qscheme": torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine,
        "reduce_range": not wide,
    }
    weight: dict[str, Any] = {
        "dtype": torch.qint8,
        "qscheme": torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric,
    }
    observer = ao.PerChannelMinMaxObserver if per_channel else ao.MinMaxObserver
    if not qat:
        return ao.QConfig(ao.MinMaxObserver.with_args(**activation), observer.with_args(**weight))
    highest = 255 if wide else 127
    fake = ao.FakeQuantize.with_args(observer=ao.MinMaxObserver, quant_min=0, quant_max=highest, **activation)
    return ao.QConfig(fake, ao.FakeQuantize.with_args(observer=observer, quant_min=-128, quant_max=127, **weight))


def _eager(model: nn.Module, method: str, qconfig: Any, calibration: Sequence[Tensors]) -> nn.Module:
    """Eager mode: every supported layer gets its own quantise and dequantise, because it cannot see functions."""
    if method == "dynamic":
        quantized: nn.Module = ao.quantize_dynamic(model, dict.fromkeys(_DYNAMIC, qconfig))
        return quantized
    supported = set(quantization_mappings.get_default_static_quant_module_mappings())
    vars(model)["qconfig"] = None
    for module in model.modules():
        if type(module) in supported:
            module.qconfig = qconfig
    model = ao.add_quant_dequant(model)
    if method == "qat":
        float_model = copy.deepcopy(model)
        model.train()
        ao.prepare_qat(model, inplace=True)
        train(model, float_model, calibration)
    else:
        ao.prepare(model, inplace=True)
        _observe(model, calibration)
    converted: nn.Module = ao.convert(model.eval(), inplace=False)
    return converted


def _fx(model: nn.Module, method: str, qconfig: Any, calibration: Sequence[Tensors]) -> nn.Module:
    mapping, examples = ao.QConfigMapping().set_global(qconfig), calibration[0]
    if method != "dynamic":  # Sigmoid, Tanh and Softmax run in int8 only with the fixed scale of their kernels
        for kind, observer in _FIXED_QPARAMS_OP_TO_OBSERVER.items():
            activation = ao.FixedQParamsFakeQuantize.with_args(observer=observer) if method == "qat" else observer
            mapping.set_object_type(kind, ao.QConfig(activation, qconfig.weight))
    if qconfig.weight().qscheme == torch.per_channel_symmetric:  # PyTorch refuses it for these
        for transposed in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
            mapping.set_object_type(transposed, None)
    if method == "qat":
        float_model = copy.deepcopy(model)
        prepared = quantize_fx.prepare_qat_fx(model.train(), mapping, examples)
        train(prepared, float_model, calibration)
    else:
        prepared = quantize_fx.prepare_fx(model, mapping, examples)
        _observe(prepared, calibration if method == "static" else calibration[:1])
    converted: nn.Module = quantize_fx.convert_fx(prepared.eval())
    return converted


def _pt2e(model: nn.Module, method: str, calibration: Sequence[Tensors], *, wide: bool) -> nn.Module:
    """Export, annotate for x86 inductor, convert. Its weights are per channel and symmetric, activations affine."""
    pt2e = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
    x86 = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    config = x86.get_default_x86_inductor_quantization_config(
        is_qat=method == "qat", is_dynamic=method == "dynamic", reduce_range=not wide
    )
    quantizer = x86.X86InductorQuantizer().set_global(config)
    float_model = copy.deepcopy(model)
    exported = torch.export.export(model, calibration[0]).module()
    if method == "qat":
        prepared = pt2e.prepare_qat_pt2e(exported, quantizer)
        train(prepared, float_model, calibration, switch=False)
    else:
        prepared = pt2e.prepare_pt2e(exported, quantizer)
        _observe(prepared, calibration if method == "static" else calibration[:1])
    converted: nn.Module = pt2e.convert_pt2e(prepared)
    return converted


def _observe(model: nn.Module, calibration: Sequence[Tensors]) -> None:
    with torch.no_grad():
        for sample in calibration:
            model(*sample)


def train(model: nn.Module, float_model: nn.Module, calibration: Sequence[Tensors], *, switch: bool = True) -> None:
    """Train to match the float model's outputs, which needs no labels, after observing the ranges of all samples; keeps
    the weights with the smallest loss, including those before training."""
    if switch:
        model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise Refused("quantisation-aware training has no weights to train")
    _observe(model, calibration)
    model.apply(ao.disable_observer)
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    samples = calibration[:MOST_SAMPLES]
    with torch.no_grad():
        targets = [flat(float_model(*sample)) for sample in samples]
    least_loss, best_weights = float("inf"), copy.deepcopy(model.state_dict())

    def loss(sample: Tensors, wanted: Sequence[torch.Tensor]) -> torch.Tensor:
        pairs = [(y, t) for y, t in zip(flat(model(*sample)), wanted, strict=True) if t.is_floating_point()]
        return torch.stack([((y - t) ** 2).mean() / ((t**2).mean() + 1e-12) for y, t in pairs]).sum()

    for _ in range(EPOCHS + 1):
        with torch.no_grad():
            total = sum(float(loss(*example)) for example in zip(samples, targets, strict=True))
        if total < least_loss:
            least_loss, best_weights = total, copy.deepcopy(model.state_dict())
        for example in zip(samples, targets, strict=True):
            optimizer.zero_grad()
            loss(*example).backward()
            optimizer.step()
    model.load_state_dict(best_weights)


class Int8Watch(TorchDispatchMode):
    """Counts the operators of one inference, and those that computed on quantised tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.int8: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.name()).partition(".")[0]
        if not any(part in name for part in _CONVERSIONS):
            short = name.partition("::")[2]
            self.operators[short] += 1
            quantized = any(tensor.is_quantized for tensor in flat(args))
            if quantized or "quantized" in name:
                self.int8[short] += 1
        return func(*args, **(kwargs or {}))
