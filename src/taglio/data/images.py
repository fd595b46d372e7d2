"""A folder of images → samples of a model's image input. Only bitmap formats are opened; runs no model."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps

from taglio.data.dataset import Dataset, Samples, assemble, evenly, span
from taglio.data.spec import Array, InputSpec
from taglio.errors import BadData, BadOption, one_line

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
# Pillow goes by content and opens EPS by starting another program: only these are opened, whatever a file is called.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
# More than any camera makes of one shot; a PNG of a few kB can claim more, and takes gigabytes when it is decoded.
MOST_PIXELS = 2**26
PAD_PIXEL = 114
_ROWS_AT_ONCE = 2**18
CHOICES: Mapping[str, tuple[str, ...]] = {
    "color": ("rgb", "bgr", "gray"),
    "layout": ("nchw", "nhwc"),
    "fit": ("stretch", "letterbox"),
}


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How an image becomes an input: value = (pixel - mean) * scale, with pixels in 0..255.

    `color` is the order of the channels ("gray": one). `mean` and `scale` hold one number, or one per channel
    in that order. "letterbox" keeps the aspect ratio, centres, and pads with pixel 114. `size` is the height and width
    where the model leaves them open; None keeps those of each image. Raises BadOption.
    """

    color: Literal["rgb", "bgr", "gray"] = "rgb"
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1 / 255,)
    layout: Literal["nchw", "nhwc"] = "nchw"
    fit: Literal["stretch", "letterbox"] = "stretch"
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for field, allowed in CHOICES.items():
            if getattr(self, field) not in allowed:
                raise BadOption(f"preprocess {field} is {getattr(self, field)!r}: use {' or '.join(allowed)}")
        for field, values in (("mean", self.mean), ("scale", self.scale)):
            if len(values) not in (1, self.channels):
                raise BadOption(f"preprocess {field} {values}: give 1 or {self.channels} for {self.color}")
            if not all(math.isfinite(value) for value in values) or (field == "scale" and 0 in values):
                raise BadOption(f"preprocess {field} is {values}: give finite numbers, and no scale of 0")
        if self.size is not None and (min(self.size) < 1 or self.size[0] * self.size[1] > MOST_PIXELS):
            raise BadOption(f"preprocess size is {self.size[0]}x{self.size[1]}: give height x width, such as 480x640")

    @property
    def channels(self) -> int:
        """Channels of an image in this colour order."""
        return 1 if self.color == "gray" else 3


def parse_preprocess(text: str) -> Preprocess:
    """Parse "bgr,mean=127,scale=1/128,nchw,letterbox", or "rgb,mean=123.7:116.3:103.5,scale=0.0171,size=480x640".

    Tokens come in any order, each kind at most once; what is missing keeps its default. Raises BadOption.
    """
    found: dict[str, Any] = {}
    for token in (part.strip().lower() for part in text.split(",")):
        field, _, value = (part.strip() for part in token.partition("="))
        parsed: Any = token
        if field in ("mean", "scale"):
            fractions = [number.partition("/") for number in value.split(":")]
            try:
                parsed = tuple(float(over) / float(under if slash else 1) for over, slash, under in fractions)
            except (ValueError, ZeroDivisionError) as error:
                raise BadOption(f"preprocess {token!r} needs numbers, like {field}=1/128 or 1:2:3") from error
        elif field == "size":
            height, _, width = value.partition("x")
            if not (height.isascii() and height.isdigit() and width.isascii() and width.isdigit()):
                raise BadOption(f"preprocess {token!r} needs height x width, like size=480x640")
            parsed = int(height), int(width)
        else:
            field = next((name for name, allowed in CHOICES.items() if token in allowed), "")
        if not field:
            accepted = "rgb, bgr, gray, nchw, nhwc, stretch, letterbox, mean=N or scale=N (N:N:N, 1/128), size=480x640"
            raise BadOption(f"preprocess token {token!r} is unknown: use {accepted}")
        if field in found:
            raise BadOption(f"preprocess token {token!r} sets {field} a second time: give it once")
        found[field] = parsed
    return Preprocess(**found)


def from_images(
    path: Path,
    files: Sequence[Path],
    inputs: Sequence[InputSpec],
    how: Preprocess | None,
    limit: int,
    room_bytes: float | None = None,
) -> Dataset:
    """Samples from the image `files` of a folder: of the model's height and width, or of their own where those are
    dynamic; where one of the two is, it follows the aspect ratio."""
    how, spec = _fitting_preprocess(path, inputs, how), inputs[0]
    batch = spec.sizes()[0]
    if len(files) < batch:
        kinds = "/".join(suffix[1:] for suffix in IMAGE_SUFFIXES)
        raise BadData(f"{path} has {len(files)} images, the model's batch is {batch}: add {kinds} files")
    samples, names = Samples([spec.name], room_bytes), []
    for group in evenly(len(files) // batch, limit):
        members = files[group * batch : (group + 1) * batch]
        images = [_image(file, spec, how) for file in members]
        name = span(members[0].name, members[-1].name)
        if len({image.shape for image in images}) > 1:
            raise BadData(f"{path}: {name} differ in size, and the model's batch is {batch}: use `preprocess` size=HxW")
        names.append(name)
        samples.append({spec.name: np.stack(images)})
    return assemble(str(path), samples, names, None, len(files) - batch * len(samples))


def _fitting_preprocess(path: Path, inputs: Sequence[InputSpec], how: Preprocess | None) -> Preprocess:
    """`how`, checked against the model's one image input; or the default for that input."""
    shape = inputs[0].shape or ()
    axes: dict[Literal["nchw", "nhwc"], int] = {"nchw": 1, "nhwc": 3} if len(shape) == 4 else {}
    known = {layout: shape[axis] for layout, axis in axes.items() if shape[axis] in (1, 3)}
    # Channels that the model leaves open are what `how` says.
    channels = known or {layout: None for layout, axis in axes.items() if not isinstance(shape[axis], int)}
    if len(inputs) != 1 or not channels:
        found = ", ".join(map(str, inputs))
        need = f"images need one 4-D input of 1 or 3 channels, but the model's inputs are {found}"
        raise BadData(f"{path}: {need}: give an .npz whose keys are the input names")
    layout = next(iter(channels)) if how is None else how.layout
    if layout not in channels:
        raise BadOption(f"preprocess {layout} does not fit input {inputs[0]}: use {next(iter(channels))}")
    if how is None:
        scale = 1 / 255 if inputs[0].numpy_dtype().kind == "f" else 1.0
        return Preprocess("gray" if channels[layout] == 1 else "rgb", scale=(scale,), layout=layout)
    if channels[layout] is not None and how.channels != channels[layout]:
        fix = "gray" if channels[layout] == 1 else "rgb or bgr"
        raise BadOption(f"preprocess {how.color}, {layout} does not fit input {inputs[0]}: use {fix}")
    fixed = shape[2:4] if layout == "nchw" else shape[1:3]
    for size, dim in zip(how.size or (), fixed, strict=False):
        if isinstance(dim, int) and dim != size:
            raise BadOption(f"preprocess size={how.size[0]}x{how.size[1]}: the model fixes {dim}: leave it out")  # type: ignore[index]
    return how


def _image(file: Path, spec: InputSpec, how: Preprocess) -> Array:
    """One image as an array without the batch dimension, in the input's dtype."""
    image = _opened(file, "L" if how.color == "gray" else "RGB")
    height, width = _size(image, spec, how)
    if how.fit == "letterbox":
        image = _letterbox(image, width, height)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image).reshape(height, width, how.channels)[:, :, :: -1 if how.color == "bgr" else 1]
    result = np.empty(pixels.shape, spec.numpy_dtype())
    step = max(1, _ROWS_AT_ONCE // width)
    for start in range(0, height, step):
        # In float64, rounded once at the end: the result does not depend on the order of float32 operations.
        values = (pixels[start : start + step].astype(np.float64) - np.array(how.mean)) * np.array(how.scale)
        with np.errstate(all="ignore"):
            made = values.astype(result.dtype)
        if not np.isfinite(made).all() or (made.dtype.kind != "f" and (made != values).any()):
            got = f"{values.min():g}..{values.max():g} for {file.name}"
            raise BadOption(f"preprocess gives {got}, which {spec.dtype} cannot hold: change mean and scale")
        result[start : start + step] = made
    return np.ascontiguousarray(result.transpose(2, 0, 1) if how.layout == "nchw" else result)


def _opened(file: Path, mode: str) -> Image.Image:
    broken = (OSError, SyntaxError, ValueError, TypeError, IndexError, Image.DecompressionBombError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(file, formats=_FORMATS)
        with opened:
            if opened.width * opened.height > MOST_PIXELS:
                size = f"{opened.width} x {opened.height}"
                raise BadData(f"{file} claims {size} pixels, more than {MOST_PIXELS:,}: make it smaller or remove it")
            if opened.mode[0] in "IF":
                raise BadData(f"{file} has {opened.mode} pixels, not 8-bit: convert it, or give an .npz")
            return ImageOps.exif_transpose(opened).convert(mode)
    except Image.DecompressionBombWarning as error:
        raise BadData(f"{file} is too large ({one_line(error)}): make it smaller or remove it") from error
    except broken as error:
        kinds = ", ".join(_FORMATS)
        why = one_line(error) or type(error).__name__
        raise BadData(f"{file} is not a readable image, {kinds} ({why}): replace or remove it") from error


def _size(image: Image.Image, spec: InputSpec, how: Preprocess) -> tuple[int, int]:
    """Height and width to feed."""
    dims = (spec.shape or ())[2:4] if how.layout == "nchw" else (spec.shape or ())[1:3]
    height, width = (dim if isinstance(dim, int) else None for dim in dims)
    if how.size is not None:
        return how.size
    if height is None and width is None:
        return image.height, image.width
    if width is None and height is not None:
        width = max(1, round(image.width * height / image.height))
    elif height is None and width is not None:
        height = max(1, round(image.height * width / image.width))
    assert height is not None
    assert width is not None
    if height * width > MOST_PIXELS:
        raise BadData(f"an image of {image.width} x {image.height} becomes {width} x {height}: remove it")
    return height, width


def _letterbox(image: Image.Image, width: int, height: int) -> Image.Image:
    ratio = min(width / image.width, height / image.height)
    size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    padded = Image.new(image.mode, (width, height), (PAD_PIXEL,) * len(image.getbands()))
    corner = ((width - size[0]) // 2, (height - size[1]) // 2)
    padded.paste(image.resize(size, Image.Resampling.BILINEAR), corner)
    return padded
