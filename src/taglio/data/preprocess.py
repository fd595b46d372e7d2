"""How an image or a sound becomes an input: the settings, as a value and as text. Reads no image and no sound."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin

from taglio.data.spec import InputSpec
from taglio.errors import BadOption

# More than any camera's. A PNG of a few kB can claim more pixels, and would take gigabytes when decoded.
MOST_PIXELS = 2**26
_SWITCHES = ("normalize",)
_EXAMPLES = {"crop": 256, "rate": 16000}


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How an image becomes an input: value = (pixel - mean) * scale, with pixels in 0..255.

    `color` is the order of the channels ("gray": one). `mean` and `scale` hold one number, or one per channel in that
    order. "letterbox" keeps the aspect ratio, centres, and pads with pixel 114. "crop" scales the shorter side to
    `edge` (None: just large enough), keeping the aspect ratio, and cuts out the centre. `size` is the height and width
    if the model leaves them open; None keeps each image's own.

    For sounds, `rate` is the required sampling rate in Hz, and `normalize` gives each sound mean 0 and variance 1
    (data/sounds.py). Raises BadOption for values that are not allowed.
    """

    color: Literal["rgb", "bgr", "gray"] = "rgb"
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1 / 255,)
    layout: Literal["nchw", "nhwc"] = "nchw"
    fit: Literal["stretch", "letterbox", "crop"] = "stretch"
    size: tuple[int, int] | None = None
    edge: int | None = None
    resample: Literal["bilinear", "bicubic", "lanczos", "nearest"] = "bilinear"
    rate: int | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        for field, allowed in _CHOICES.items():
            if getattr(self, field) not in allowed:
                raise BadOption(f"preprocess {field} is {getattr(self, field)!r}: use {' or '.join(allowed)}")
        for name, number in (("crop", self.edge), ("rate", self.rate)):
            if number is not None and not 1 <= number <= MOST_PIXELS:
                raise BadOption(f"preprocess {name} is {number}: give a whole number from 1 to {MOST_PIXELS:,}")
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

    def of_sounds(self) -> bool:
        """Whether only settings of sounds are given, and none of images."""
        return (self.rate is not None or self.normalize) and self == Preprocess(
            rate=self.rate, normalize=self.normalize
        )


_CHOICES = {field.name: get_args(field.type) for field in fields(Preprocess) if get_origin(field.type) is Literal}


def parse_preprocess(text: str) -> Preprocess:
    """Parse text such as "bgr,mean=127,scale=1/128,nchw,letterbox",
    "rgb,mean=123.7:116.3:103.5,scale=0.0171,size=480x640", "crop=256,bicubic", or for sounds "rate=16000,normalize".

    Tokens come in any order, each kind at most once; missing ones take the default. Raises BadOption.
    """
    settings: dict[str, Any] = {}
    for token in (part.strip().lower() for part in text.split(",")):
        field, _, value = (part.strip() for part in token.partition("="))
        parsed: Any = token
        if field in ("mean", "scale"):
            fractions = [number.partition("/") for number in value.split(":")]
            try:
                parsed = tuple(
                    float(numerator) / float(denominator if slash else 1) for numerator, slash, denominator in fractions
                )
            except (ValueError, ZeroDivisionError) as error:
                raise BadOption(f"preprocess {token!r} needs numbers, like {field}=1/128 or 1:2:3") from error
        elif field == "size":
            height, _, width = value.partition("x")
            if not (height.isascii() and height.isdigit() and width.isascii() and width.isdigit()):
                raise BadOption(f"preprocess {token!r} needs height x width, like size=480x640")
            parsed = int(height), int(width)
        elif field in ("crop", "rate") and value:
            if not (value.isascii() and value.isdigit()):
                raise BadOption(f"preprocess {token!r} needs a whole number, like {field}={_EXAMPLES[field]}")
            parsed = min(int(value), MOST_PIXELS + 1)
            if field == "crop":
                settings["edge"], field, parsed = parsed, "fit", "crop"
        elif token in _SWITCHES:
            parsed = True
        else:
            field = next((name for name, allowed in _CHOICES.items() if token in allowed), "")
        if not field:
            accepted = (
                "rgb, bgr, gray, nchw, nhwc, stretch, letterbox, crop (crop=256), bilinear, bicubic, lanczos, nearest, "
                "mean=N or scale=N (N:N:N, 1/128), size=480x640; for sounds rate=16000, normalize"
            )
            raise BadOption(f"preprocess token {token!r} is unknown: use {accepted}")
        if field in settings:
            raise BadOption(f"preprocess token {token!r} sets {field} twice: give it once")
        settings[field] = parsed
    return Preprocess(**settings)


def as_text(how: Preprocess) -> str:
    """Text that `parse_preprocess` reads back as `how`."""
    if how.of_sounds():
        return ",".join([f"rate={how.rate}"] * (how.rate is not None) + ["normalize"] * how.normalize)
    mean, scale = (":".join(f"{number:.6g}" for number in numbers) for numbers in (how.mean, how.scale))
    fit = how.fit if how.edge is None else f"crop={how.edge}"
    size = f",size={how.size[0]}x{how.size[1]}" if how.size else ""
    return f"{how.color},{how.layout},mean={mean},scale={scale},{fit},{how.resample}{size}"


def in_layout(how: Preprocess, inputs: Sequence[InputSpec]) -> Preprocess:
    """`how` with the layout of the model's only input, and without a size if the input fixes one."""
    shape = inputs[0].shape or ()
    last = len(shape) == 4 and shape[3] in (1, 3) and shape[1] not in (1, 3)
    dims = shape[1:3] if last else shape[2:4]
    fixed = any(isinstance(dim, int) for dim in dims)
    return replace(how, layout="nhwc" if last else "nchw", size=None if fixed else how.size)
