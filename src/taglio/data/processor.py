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
        return next((each / name for each in self.folders if (each / name).is_file()), None)

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
    known = near.read("config.json").get("label2id")
    if isinstance(known, dict) and all(isinstance(known.get(name), int) for name in names):
        return [known[name] for name in names], "config.json"
    if names and all(name.isascii() and name.isdigit() for name in names):
        return [int(name) for name in names], "their names"
    order = sorted(names)
    return [order.index(name) for name in names], "the order of their names"


def preprocess_of(near: Beside, *, sounds: bool = False) -> tuple[Preprocess | None, str]:
    """The preprocessing in preprocessor_config.json, and one line about it for the user; None and "" without the file.

    Raises BadData for preprocessing that taglio does not support, such as spectrograms.
    """
    found = near.read(FILE)
    if not found or sounds != ("sampling_rate" in found):
        return None, ""
    path = near.find(FILE)
    try:
        how = _sounds(found) if sounds else _images(found)
    except (KeyError, TypeError, ValueError, ArithmeticError, BadOption) as error:
        raise BadData(f"{path} asks for unsupported preprocessing ({one_line(error)}): give `preprocess`") from None
    return how, f"{'sounds' if sounds else 'images'} are preprocessed by {FILE} next to the model: {as_text(how)}"


def _sounds(found: dict[str, Any]) -> Preprocess:
    if found.get("feature_size", 1) != 1:
        raise ValueError(f"{found['feature_size']} features per frame: give an .npz of them")
    return Preprocess(rate=int(found["sampling_rate"]), normalize=bool(found.get("do_normalize", False)))


def _images(found: dict[str, Any]) -> Preprocess:
    """Value = (pixel · factor − mean) / std, as image processors compute it."""
    factor = float(found.get("rescale_factor", 1 / 255)) if found.get("do_rescale", True) else 1.0
    normal = found.get("do_normalize", "image_mean" in found)
    means = _numbers(found["image_mean"] if normal else 0.0)
    stds = _numbers(found["image_std"] if normal else 1.0)
    how: dict[str, Any] = {"mean": tuple(mean / factor for mean in means), "scale": tuple(factor / std for std in stds)}
    if found.get("do_resize", True) and "size" in found:
        size = found["size"] if isinstance(found["size"], dict) else {"height": found["size"], "width": found["size"]}
        how["resample"] = _RESAMPLE[int(found.get("resample", 2))]
        how |= _fit(found, size)
    return Preprocess(**how)


def _fit(found: dict[str, Any], size: dict[str, Any]) -> dict[str, Any]:
    if "shortest_edge" not in size:
        whole = (int(size["height"]), int(size["width"]))
        if not found.get("do_center_crop", False):
            return {"size": whole}
        if whole[0] != whole[1]:
            raise ValueError(f"a crop from {whole[0]} x {whole[1]}, which is not square")
        size = {"shortest_edge": whole[0]}
    edge = int(size["shortest_edge"])
    if found.get("do_center_crop", False):
        crop = found.get("crop_size", edge)
        cut = (int(crop["height"]), int(crop["width"])) if isinstance(crop, dict) else (int(crop), int(crop))
    elif "crop_pct" in found:  # ConvNeXt
        cut, edge = (edge, edge), int(edge / float(found["crop_pct"])) if edge < 384 else edge
    else:
        raise ValueError("images that keep their own aspect ratio")
    return {"fit": "crop", "edge": edge, "size": cut}


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, list) else (float(value),)
