"""Images → samples of a model's image input. Opens only bitmap formats; runs no model."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image, ImageOps

from taglio.data.dataset import Dataset, Sample, span
from taglio.data.items import SampleRequest, SourceItems, from_items
from taglio.data.preprocess import MOST_PIXELS, Preprocess, as_text
from taglio.data.spec import Array, InputSpec
from taglio.errors import BadData, BadOption, one_line

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
# Pillow looks at a file's content, not its name, and starts another program for EPS: so the formats are listed here.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ROWS_AT_ONCE = 2**18


def from_images(request: SampleRequest, items: SourceItems) -> Dataset:
    """Samples from images (files or their bytes) in the model's height and width.

    If both are dynamic, an image keeps its size; if one is, it follows from the aspect ratio. Raises BadData for images
    that do not fit the model, BadOption for preprocessing that does not.
    """
    how, spec = _fitting_preprocess(request), request.inputs[0]

    def make(names: Sequence[str], values: Sequence[Path | bytes]) -> Sample:
        images = [_image(name, value, spec, how) for name, value in zip(names, values, strict=True)]
        if len({image.shape for image in images}) > 1:
            name = span(names[0], names[-1])
            raise BadData(
                f"{request.source}: {name} differ in size, and the model's batch is {len(names)}: "
                "use `preprocess` size=HxW"
            )
        return {spec.name: np.stack(images)}

    return from_items(request, items, "image", make)


def _fitting_preprocess(request: SampleRequest) -> Preprocess:
    """The preprocessing, checked against the model's image input; without any, the default for that input."""
    source, inputs, how = request.source, request.inputs, request.preprocess
    shape = inputs[0].shape or ()
    axes: dict[Literal["nchw", "nhwc"], int] = {"nchw": 1, "nhwc": 3} if len(shape) == 4 else {}
    fixed_channels = {layout: shape[axis] for layout, axis in axes.items() if shape[axis] in (1, 3)}
    # If the model leaves the channels open, `how` decides.
    channels = fixed_channels or {layout: None for layout, axis in axes.items() if not isinstance(shape[axis], int)}
    if len(inputs) != 1 or not channels:
        listed = ", ".join(map(str, inputs))
        need = f"images need one 4-D input of 1 or 3 channels, but the model's inputs are {listed}"
        raise BadData(f"{source}: {need}: give an .npz whose keys are the input names")
    if how is not None and how.of_sounds():
        raise BadOption(f"preprocess {as_text(how)} is for sounds, but {source} has images: leave it out")
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


def _image(name: str, content: Path | bytes, spec: InputSpec, how: Preprocess) -> Array:
    """One image as an array without the batch dimension, in the input's dtype."""
    image = _opened(name, content, "L" if how.color == "gray" else "RGB")
    (height, width), method = _size(image, spec, how), Image.Resampling[how.resample.upper()]
    if how.fit == "letterbox":
        image = _letterbox(image, width, height, method)
    elif how.fit == "crop":
        image = _crop(image, width, height, how.edge, method)
    image = image.resize((width, height), method)
    pixels = np.asarray(image).reshape(height, width, how.channels)[:, :, :: -1 if how.color == "bgr" else 1]
    tensor = np.empty(pixels.shape, spec.numpy_dtype())
    step = max(1, _ROWS_AT_ONCE // width)
    for start in range(0, height, step):
        # In float64 and rounded once, so that the result does not depend on the order of float32 operations.
        values = (pixels[start : start + step].astype(np.float64) - np.array(how.mean)) * np.array(how.scale)
        with np.errstate(all="ignore"):
            converted = values.astype(tensor.dtype)
        if not np.isfinite(converted).all() or (converted.dtype.kind != "f" and (converted != values).any()):
            got = f"{values.min():g}..{values.max():g} for {name}"
            raise BadOption(f"preprocess gives {got}, which {spec.dtype} cannot hold: change mean and scale")
        tensor[start : start + step] = converted
    return np.ascontiguousarray(tensor.transpose(2, 0, 1) if how.layout == "nchw" else tensor)


def _opened(name: str, content: Path | bytes, mode: str) -> Image.Image:
    file = str(content) if isinstance(content, Path) else name
    broken = (OSError, SyntaxError, ValueError, TypeError, IndexError, Image.DecompressionBombError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(content if isinstance(content, Path) else io.BytesIO(content), formats=_FORMATS) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    size = f"{opened.width} x {opened.height}"
                    raise BadData(
                        f"{file} claims {size} pixels, more than {MOST_PIXELS:,}: make it smaller or remove it"
                    )
                if opened.mode[0] in "IF":
                    raise BadData(f"{file} has pixels of mode {opened.mode}, not 8-bit: convert it, or give an .npz")
                return _upright(opened).convert(mode)
    except Image.DecompressionBombWarning as error:
        raise BadData(f"{file} is too large ({one_line(error)}): make it smaller or remove it") from error
    except broken as error:
        kinds = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
        why = one_line(error) or type(error).__name__
        raise BadData(f"{file} is not a readable {kinds} image ({why}): replace or remove it") from error


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF says, or as it is if that cannot be read. ImageOps.exif_transpose also writes EXIF
    again, which fails for tags of odd types."""
    try:
        turned = _TURNED.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # of many kinds; the pixels do not need it
        return image
    return image if turned is None else image.transpose(turned)


def _size(image: Image.Image, spec: InputSpec, how: Preprocess) -> tuple[int, int]:
    """Height and width to feed."""
    dims = (spec.shape or ())[2:4] if how.layout == "nchw" else (spec.shape or ())[1:3]
    height, width = (dim if isinstance(dim, int) else None for dim in dims)
    if how.size is not None:
        return how.size
    if width is None:
        if height is None:
            return image.height, image.width
        width = max(1, round(image.width * height / image.height))
    elif height is None:
        height = max(1, round(image.height * width / image.width))
    if height * width > MOST_PIXELS:
        raise BadData(
            f"an image of {image.width} x {image.height} becomes {width} x {height}, more than {MOST_PIXELS:,} pixels: "
            "remove it"
        )
    return height, width


def _crop(image: Image.Image, width: int, height: int, edge: int | None, method: Image.Resampling) -> Image.Image:
    """The centre of the image, after scaling its shorter side to `edge`; sizes are rounded as in Hugging Face's image
    processors."""
    if edge is None:
        return ImageOps.fit(image, (width, height), method)
    short = min(image.width, image.height)
    if edge < max(width, height):
        raise BadOption(f"preprocess crop={edge} is smaller than the crop of {width} x {height}: give a larger one")
    if edge * max(image.width, image.height) // short * edge > MOST_PIXELS:
        raise BadData(f"an image of {image.width} x {image.height} is too long for crop={edge}: remove it")
    image = image.resize((edge * image.width // short, edge * image.height // short), method)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _letterbox(image: Image.Image, width: int, height: int, method: Image.Resampling) -> Image.Image:
    ratio = min(width / image.width, height / image.height)
    size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    padded = Image.new(image.mode, (width, height), (114,) * len(image.getbands()))
    corner = ((width - size[0]) // 2, (height - size[1]) // 2)
    padded.paste(image.resize(size, method), corner)
    return padded
