"""Hugging Face's files next to a model: its preprocessing, and the number of each class. Reads no data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taglio.data.preprocess import Preprocess, as_text
from taglio.errors import BadData, BadOption, one_line

FILE = "preprocessor_config.json"
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


@dataclass(frozen=True, slots=True)
class Beside:
    """The folders to search for a model's accompanying files; none for a model from memory."""

    folders: tuple[Path, ...] = ()

    def find(self, name: str) -> Path | None:
        """The path of the file called `name`; None if there is none."""
        return next((folder / name for folder in self.folders if (folder / name).is_file()), None)

    def read(self, name: str) -> dict[str, Any]:
        """The JSON object in the file called `name`; empty if there is none. Raises BadData if it cannot be read."""
        path = self.find(name)
        if path is None:
            return {}
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BadData(f"{path} cannot be read as JSON ({one_line(error)}): repair or remove it") from None
        if not isinstance(value, dict):
            raise BadData(f"{path} does not hold a JSON object: repair or remove it")
        return value


def files_beside(model: Path) -> Beside:
    """The folders to search for a model's file or folder. Optimum writes `onnx/model.onnx` below the other files."""
    folder = model if model.is_dir() else model.parent
    return Beside((folder, folder.parent) if folder.name == "onnx" else (folder,))


def class_numbers(names: Sequence[str], near: Beside) -> tuple[list[int], str]:
    """The number of each class, and its source: the model's config.json, or the names if all are numbers, or else the
    sorted order of the names."""
    number_of = near.read("config.json").get("label2id")
    if isinstance(number_of, dict) and all(isinstance(number_of.get(name), int) for name in names):
        return [number_of[name] for name in names], "config.json"
    if names and all(name.isascii() and name.isdigit() for name in names):
        return [int(name) for name in names], "their names"
    order = sorted(names)
    return [order.index(name) for name in names], "the order of their names"


def preprocess_of(near: Beside, *, sounds: bool = False) -> tuple[Preprocess | None, str]:
    """The preprocessing in preprocessor_config.json, and one line about it for the user; None and "" without the file.

    Raises BadData for preprocessing that taglio does not support, such as spectrograms.
    """
    settings = near.read(FILE)
    if not settings or sounds != ("sampling_rate" in settings):
        return None, ""
    path = near.find(FILE)
    try:
        how = _sounds(settings) if sounds else _images(settings)
    except (KeyError, TypeError, ValueError, ArithmeticError, BadOption) as error:
        raise BadData(f"{path} asks for unsupported preprocessing ({one_line(error)}): give `preprocess`") from None
    return how, f"{'sounds' if sounds else 'images'} are preprocessed by {FILE} next to the model: {as_text(how)}"


def _sounds(settings: dict[str, Any]) -> Preprocess:
    if settings.get("feature_size", 1) != 1:
        raise ValueError(f"{settings['feature_size']} features per frame: give an .npz of them")
    return Preprocess(rate=int(settings["sampling_rate"]), normalize=bool(settings.get("do_normalize", False)))


def _images(settings: dict[str, Any]) -> Preprocess:
    """Value = (pixel · factor − mean) / std, as image processors compute it."""
    factor = float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0
    normal = settings.get("do_normalize", "image_mean" in settings)
    means = _numbers(settings["image_mean"] if normal else 0.0)
    stds = _numbers(settings["image_std"] if normal else 1.0)
    how: dict[str, Any] = {"mean": tuple(mean / factor for mean in means), "scale": tuple(factor / std for std in stds)}
    if settings.get("do_resize", True) and "size" in settings:
        size = settings["size"]
        if not isinstance(size, dict):
            size = {"height": size, "width": size}
        how["resample"] = _RESAMPLE[int(settings.get("resample", 2))]
        how |= _fit(settings, size)
    return Preprocess(**how)


def _fit(settings: dict[str, Any], size: dict[str, Any]) -> dict[str, Any]:
    if "shortest_edge" not in size:
        whole = (int(size["height"]), int(size["width"]))
        if not settings.get("do_center_crop", False):
            return {"size": whole}
        if whole[0] != whole[1]:
            raise ValueError(f"a crop from {whole[0]} x {whole[1]}, which is not square")
        size = {"shortest_edge": whole[0]}
    edge = int(size["shortest_edge"])
    if settings.get("do_center_crop", False):
        crop = settings.get("crop_size", edge)
        cut = (int(crop["height"]), int(crop["width"])) if isinstance(crop, dict) else (int(crop), int(crop))
    elif "crop_pct" in settings:  # ConvNeXt
        cut, edge = (edge, edge), int(edge / float(settings["crop_pct"])) if edge < 384 else edge
    else:
        raise ValueError("images that keep their own aspect ratio")
    return {"fit": "crop", "edge": edge, "size": cut}


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, list) else (float(value),)
