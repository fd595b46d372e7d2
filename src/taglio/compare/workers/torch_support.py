"""Find which PyTorch method quantises which operator by trying each pair on a small module. Times nothing."""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

from taglio.compare.row import Support, Wanted
from taglio.compare.workers.contract import Refused
from taglio.compare.workers.torch_forms import Int8Watch, quantize
from taglio.compare.workers.torch_model import flat
from taglio.errors import with_kind

_METHODS = ("dynamic", "static", "qat")


class _Function(nn.Module):
    """A function after a convolution, so that its input can be int8 and there are weights to train."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 1)
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(self.first(x))


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layer = kind(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x)[0]
        return output


_IMAGE, _VECTOR, _SEQUENCE = (1, 4, 8, 8), (2, 8), (1, 5, 8)
# Operators: how to make each, its input shape, and the name under which it runs on quantised tensors.
_OPERATORS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "Conv1d": (lambda: nn.Conv1d(5, 4, 3), _SEQUENCE, "conv"),
    "Conv2d": (lambda: nn.Conv2d(4, 8, 3), _IMAGE, "conv"),
    "Conv2d + ReLU": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()), _IMAGE, "conv"),
    "Conv2d depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), _IMAGE, "conv"),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 4, 2, stride=2), _IMAGE, "conv_transpose"),
    "Linear": (lambda: nn.Linear(8, 8), _VECTOR, "linear"),
    "LSTM": (lambda: _Recurrent(nn.LSTM), _SEQUENCE, "lstm"),
    "GRU": (lambda: _Recurrent(nn.GRU), _SEQUENCE, "gru"),
    "ReLU": (lambda: _Function(functional.relu), _IMAGE, "relu"),
    "Sigmoid": (lambda: _Function(torch.sigmoid), _IMAGE, "sigmoid"),
    "SiLU": (lambda: _Function(functional.silu), _IMAGE, "silu"),
    "Hardswish": (lambda: _Function(functional.hardswish), _IMAGE, "hardswish"),
    "GELU": (lambda: _Function(functional.gelu), _IMAGE, "gelu"),
    "Softmax": (lambda: _Function(lambda x: functional.softmax(x, 1)), _IMAGE, "softmax"),
    "add": (lambda: _Function(lambda x: x + x), _IMAGE, "add"),
    "mul": (lambda: _Function(lambda x: x * x), _IMAGE, "mul"),
    "cat": (lambda: _Function(lambda x: torch.cat([x, x], 1)), _IMAGE, "cat"),
    "matmul": (lambda: _Function(lambda x: torch.matmul(x, x)), _IMAGE, "matmul"),
    "max_pool2d": (lambda: _Function(lambda x: functional.max_pool2d(x, 2)), _IMAGE, "max_pool"),
    "avg_pool2d": (lambda: _Function(lambda x: functional.avg_pool2d(x, 2)), _IMAGE, "avg_pool"),
    "interpolate": (lambda: _Function(lambda x: functional.interpolate(x, scale_factor=2)), _IMAGE, "upsample"),
    "LayerNorm": (lambda: _Function(lambda x: functional.layer_norm(x, (8,))), _IMAGE, "layer_norm"),
    "BatchNorm2d": (lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)), _IMAGE, "batch_norm"),
}


def tried(wide: bool) -> Iterator[Support]:
    """Every method on every operator; static FX on every engine."""
    ways = [(form, method, "x86") for form in ("eager", "fx", "pt2e") for method in _METHODS]
    ways += [("fx", "static", engine) for engine in torch.backends.quantized.supported_engines if engine != "x86"]
    for form, method, engine in ways:
        for name, (make, shape, runs_as) in _OPERATORS.items():
            reason = _reason(make(), form, method, engine, shape, runs_as, wide)
            yield Support("pytorch", f"{form} {method} {engine}", name, not reason, reason)


def _reason(
    module: nn.Module, form: str, method: str, engine: str, shape: tuple[int, ...], runs_as: str, wide: bool
) -> str:
    """Why an operator does not run in int8 with this method; "" if it does."""
    torch.manual_seed(0)
    sample = (torch.randn(shape),)
    wanted = Wanted("", "pytorch", method, form, "u8s8", False, True, engine)
    try:
        made = quantize(nn.Sequential(module).eval(), wanted, [sample, sample], engine, wide=wide)
        watch = Int8Watch()
        with torch.no_grad(), watch:
            flat(made(*sample))
    except Refused as refusal:
        return str(refusal)
    except Exception as error:  # what PyTorch raises is the answer
        return with_kind(error, 140)
    if form == "pt2e":
        graph = made.graph
        fed = [
            node for node in graph.nodes
            if runs_as in str(node.target) and any("dequantize" in str(each) for each in node.all_input_nodes)
        ]  # fmt: skip
        return "" if fed else "X86InductorQuantizer leaves it in float"
    if any(runs_as in name for name in watch.int8):
        return ""
    return "left in float"
