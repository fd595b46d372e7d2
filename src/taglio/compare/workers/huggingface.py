"""Convert a Hugging Face model folder to ONNX by PyTorch's exporter, or compute its outputs.

Downloads nothing, and runs no code from the folder.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taglio.compare.request import Request
from taglio.compare.workers.contract import Array, Refused, reference
from taglio.compare.workers.torch_model import runner

_TEXT = ("input_ids", "attention_mask", "token_type_ids")
# Batch of the example input; like its length it stays dynamic in the export.
_BATCH = 2


def _library() -> Any:
    """Transformers, which loads no model where torchvision cannot be loaded, as one built for another build of PyTorch
    cannot; it does without where there is none."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        sys.modules["torchvision"] = None  # type: ignore[assignment]  # to Python: none
    return importlib.import_module("transformers")


transformers = _library()


class Flat(nn.Module):
    """The model with ordered inputs, and with its named output tensors as a tuple."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.outputs: tuple[str, ...] = ()

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Output tensors in the order of the model's output."""
        outputs = self.model(**dict(zip(self.names, values, strict=True)), return_dict=True)
        tensors = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
        self.outputs = tuple(tensors)
        return tuple(tensors.values())


def convert(request: Request) -> dict[str, str] | list[list[Array]]:
    """Convert the folder's model to ONNX with dynamic batch and lengths, or write its outputs on held-out inputs."""
    folder = Path(request.model)
    model = _loaded(folder)
    if request.task == "reference":
        return reference(request, runner(Flat(model, request.inputs)))
    examples, dims = _examples(model, folder)
    flat = Flat(model, tuple(examples)).eval()
    with torch.inference_mode():
        flat(*examples.values())
    path = Path(request.folder) / "model.onnx"
    torch.onnx.export(
        flat,
        tuple(examples.values()),
        str(path),
        input_names=[*examples],
        output_names=[*flat.outputs],
        dynamic_shapes=(tuple(dims.values()),),
        dynamo=True,
        external_data=False,
    )
    return {"path": str(path), "tool": f"transformers {transformers.__version__}, torch.onnx {torch.__version__}"}


def _loaded(folder: Path) -> Any:
    """The model in float32, in evaluation mode. Raises Refused."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.is_encoder_decoder:
        raise Refused(f"{config.model_type} is an encoder and a decoder in a loop: export its parts and give the .onnx")
    config.use_cache = False
    names = [name for name in config.architectures or [] if hasattr(transformers, name)]
    kind = getattr(transformers, names[0]) if names else transformers.AutoModel
    model = kind.from_pretrained(
        folder, config=config, local_files_only=True, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def _examples(model: Any, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """Example inputs of a model by name, and their dynamic dimensions. Raises Refused for other kinds of input."""
    config, main = model.config, model.main_input_name
    takes = inspect.signature(model.forward).parameters
    if main == "input_ids":
        declared = _read(folder / "tokenizer_config.json").get("model_input_names")
        default = _TEXT if getattr(config, "type_vocab_size", 0) > 1 else _TEXT[:2]
        names = [name for name in _TEXT if name in takes and name in (declared or default)]
        ids = torch.arange(_BATCH * 9).reshape(_BATCH, 9) % int(config.vocab_size)
        values = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        return {name: values[name] for name in names}, {name: {0: "batch", 1: "sequence"} for name in names}
    if main == "pixel_values":
        size = getattr(config, "image_size", None) or _size(folder)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        shape = (_BATCH, int(getattr(config, "num_channels", 3)), int(height), int(width))
        return {main: torch.rand(shape)}, {main: {0: "batch"}}
    if main == "input_values" and not hasattr(config, "num_mel_bins"):
        return {main: torch.rand(_BATCH, 16_000)}, {main: {0: "batch", 1: "length"}}
    raise Refused(f"{type(model).__name__} takes {main}, not texts, images or waveforms: give the .onnx")


def _size(folder: Path) -> tuple[int, int]:
    processor = _read(folder / "preprocessor_config.json")
    size = processor.get("crop_size") or processor.get("size") or 224
    if not isinstance(size, dict):
        return int(size), int(size)
    edge: Any = size.get("shortest_edge", 224)
    return int(size.get("height", edge)), int(size.get("width", edge))


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content
