"""Read the user's DATA into feeds for calibration and held-out error. Runs no model, computes no metric."""

import hashlib
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from taglio.errors import BadData, BadOption

DEFAULT_LIMIT = 512
MAX_CALIBRATION = 128
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
LABEL_KEYS = ("label", "labels")
PAD_PIXEL = 114
CHOICES: Mapping[str, tuple[str, ...]] = {
    "color": ("rgb", "bgr", "gray"),
    "layout": ("nchw", "nhwc"),
    "fit": ("stretch", "letterbox"),
}

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A model input: `name`, full fixed `shape` (batch first), and `dtype`, a numpy name like "float32"."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How a picture becomes an input: value = (pixel - mean) * scale, with pixels in 0..255.

    `color` is the order of the channels ("gray": one). `mean` and `scale` hold one number, or one per channel
    in that order. "letterbox" keeps the aspect ratio, centres, and pads with pixel 114. Raises BadOption.
    """

    color: Literal["rgb", "bgr", "gray"] = "rgb"
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1 / 255,)
    layout: Literal["nchw", "nhwc"] = "nchw"
    fit: Literal["stretch", "letterbox"] = "stretch"

    def __post_init__(self) -> None:
        for field, allowed in CHOICES.items():
            if getattr(self, field) not in allowed:
                raise BadOption(f"preprocess {field} is {getattr(self, field)!r}: use {' or '.join(allowed)}")
        for field, values in (("mean", self.mean), ("scale", self.scale)):
            if len(values) not in (1, self.channels):
                raise BadOption(f"preprocess {field} {values}: give 1 or {self.channels} for {self.color}")
            if not all(math.isfinite(value) for value in values) or (field == "scale" and 0 in values):
                raise BadOption(f"preprocess {field} is {values}: give finite numbers, and no scale of 0")

    @property
    def channels(self) -> int:
        """Channels of a picture in this colour order."""
        return 1 if self.color == "gray" else 3


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Feeds that fit the model. Compare two by `sha256`; `==` is identity."""

    source: str  # DATA as the user gave it
    samples: tuple[dict[str, Array], ...]  # input name -> array of exactly the input's shape and dtype
    names: tuple[str, ...]  # file name or row of each sample; "a.jpg..d.jpg" where the batch groups several
    labels: Array | None  # [samples, ...]; [samples, B, ...] where the model's batch B > 1 groups rows
    sha256: str  # of all arrays: input names, dtypes, shapes, values, labels; not of file names
    dropped: int = 0  # pictures or rows of the source not loaded: past the limit, or short of a batch


@dataclass(frozen=True, slots=True)
class Split:
    """A dataset in two disjoint, non-empty parts, and the `seed` that drew them."""

    calibration: Dataset
    held_out: Dataset
    seed: int


def parse_preprocess(text: str) -> Preprocess:
    """Parse "bgr,mean=127,scale=1/128,nchw,letterbox", or "rgb,mean=123.7:116.3:103.5,scale=0.0171".

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
        else:
            field = next((name for name, allowed in CHOICES.items() if token in allowed), "")
        if not field:
            accepted = "rgb, bgr, gray, nchw, nhwc, stretch, letterbox, mean=N or scale=N (N:N:N, 1/128)"
            raise BadOption(f"preprocess token {token!r} is unknown: use {accepted}")
        if field in found:
            raise BadOption(f"preprocess token {token!r} sets {field} a second time: give it once")
        found[field] = parsed
    return Preprocess(**found)


def load(
    path: Path, inputs: Sequence[InputSpec], preprocess: Preprocess | None = None, limit: int | None = None
) -> Dataset:
    """Read DATA: a folder of pictures, an .npy (model of one input), or an .npz with the input names as keys.

    Arrays are [N, *shape[1:]], or [N, *shape]. Where the model's batch is B, B consecutive rows or pictures
    make a sample. At most `limit` samples (None: 512) are loaded, evenly spaced over the source. `preprocess`
    is for pictures; None takes the model's own layout and channels, and 0..1 floats (0..255 for integers).
    Raises BadData for DATA that does not fit the model, BadOption for arguments that do not.
    """
    at_most = DEFAULT_LIMIT if limit is None else limit
    if at_most < 1:
        raise BadOption(f"limit is {limit}: give at least 1 sample")
    if not inputs:
        raise BadData(f"{path}: the model has no inputs, so no data can be fed to it")
    for spec in inputs:
        _dtype(spec)
    if not path.exists():
        raise BadData(f"{path} does not exist: give a folder of pictures, an .npy or an .npz")
    if path.is_dir():
        return _load_pictures(path, inputs, preprocess, at_most)
    if path.suffix.lower() not in (".npy", ".npz"):
        raise BadData(f"{path} is not a folder of pictures, an .npy or an .npz: give one of those")
    if preprocess is not None:
        raise BadOption(f"{path}: preprocess is for folders of pictures, not for arrays: leave it out")
    return _load_arrays(path, inputs, at_most)


def split(
    dataset: Dataset,
    calibration_fraction: float = 0.5,
    seed: int = 0,
    max_calibration: int = MAX_CALIBRATION,
    max_held_out: int | None = None,
) -> Split:
    """Draw disjoint, non-empty calibration and held-out parts, the same for the same seed.

    Calibration takes the rounded fraction, 1 to `max_calibration` samples; held-out takes all the others, at
    most `max_held_out`. Both are in drawn order, so that a prefix is a random subset.
    Raises BadData under 2 samples, BadOption for a fraction outside 0..1 or a maximum under 1.
    """
    count = len(dataset.samples)
    if not 0 < calibration_fraction < 1:
        raise BadOption(f"calibration fraction is {calibration_fraction}: give one between 0 and 1, e.g. 0.5")
    if max_calibration < 1 or (max_held_out is not None and max_held_out < 1):
        raise BadOption(f"maxima of a split are {max_calibration} and {max_held_out}: give 1 or more")
    if count < 2:
        raise BadData(f"{dataset.source} has {count} samples, and a split needs at least 2: add samples")
    order = np.random.default_rng(seed).permutation(count)
    taken = min(max(round(count * calibration_fraction), 1), count - 1, max_calibration)

    def part(rows: NDArray[np.intp]) -> Dataset:
        labels = None if dataset.labels is None else dataset.labels[rows]
        samples, names = [dataset.samples[i] for i in rows], [dataset.names[i] for i in rows]
        return _dataset(dataset.source, samples, names, labels, dataset.dropped)

    return Split(part(order[:taken]), part(order[taken:][:max_held_out]), seed)


def random_dataset(inputs: Sequence[InputSpec], count: int, seed: int) -> Dataset:
    """Standard normal floats, and integers 0 or 1. For timing only: errors measured on it say nothing.

    Raises BadOption for a count under 1, BadData for an input dtype that is not of numbers.
    """
    if count < 1:
        raise BadOption(f"random data of {count} samples: give at least 1")
    rng = np.random.default_rng(seed)

    def draw(spec: InputSpec) -> Array:
        normal = _dtype(spec).kind == "f"
        drawn = rng.standard_normal(spec.shape) if normal else rng.integers(0, 2, spec.shape)
        return np.asarray(drawn).astype(_dtype(spec))

    samples = [{spec.name: draw(spec) for spec in inputs} for _ in range(count)]
    return _dataset("random", samples, [str(i) for i in range(count)], None, 0)


def _load_pictures(path: Path, inputs: Sequence[InputSpec], how: Preprocess | None, limit: int) -> Dataset:
    how, spec = _fitting_preprocess(path, inputs, how), inputs[0]
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES and not entry.is_dir()]
    batch = spec.shape[0]
    if len(files) < batch:
        kinds = "/".join(suffix[1:] for suffix in IMAGE_SUFFIXES)
        raise BadData(f"{path} has {len(files)} pictures, the model's batch is {batch}: add {kinds} files")
    samples, names = [], []
    for group in _evenly(len(files) // batch, limit):
        members = files[group * batch : (group + 1) * batch]
        names.append(_span(members[0].name, members[-1].name))
        samples.append({spec.name: np.stack([_picture(file, spec, how) for file in members])})
    return _dataset(str(path), samples, names, None, len(files) - batch * len(samples))


def _fitting_preprocess(path: Path, inputs: Sequence[InputSpec], how: Preprocess | None) -> Preprocess:
    """`how`, checked against the model's one picture input; or the default for that input."""
    shape = inputs[0].shape
    places: dict[Literal["nchw", "nhwc"], int] = {"nchw": 1, "nhwc": 3} if len(shape) == 4 else {}
    channels = {layout: shape[axis] for layout, axis in places.items() if shape[axis] in (1, 3)}
    if len(inputs) != 1 or not channels:
        found = ", ".join(map(str, inputs))
        need = f"pictures need one 4-D input of 1 or 3 channels, but the model's inputs are {found}"
        raise BadData(f"{path}: {need}: give an .npz whose keys are the input names")
    layout = next(iter(channels)) if how is None else how.layout
    if layout not in channels:
        raise BadOption(f"preprocess {layout} does not fit input {inputs[0]}: use {next(iter(channels))}")
    if how is None:
        scale = 1 / 255 if _dtype(inputs[0]).kind == "f" else 1.0
        return Preprocess("gray" if channels[layout] == 1 else "rgb", scale=(scale,), layout=layout)
    if how.channels != channels[layout]:
        fix = "gray" if channels[layout] == 1 else "rgb or bgr"
        raise BadOption(f"preprocess {how.color}, {layout} does not fit input {inputs[0]}: use {fix}")
    return how


def _picture(file: Path, spec: InputSpec, how: Preprocess) -> Array:
    """One picture as an array of shape[1:], in the input's dtype."""
    height, width = spec.shape[2:4] if how.layout == "nchw" else spec.shape[1:3]
    try:
        with Image.open(file) as opened:
            if opened.mode[0] in "IF":
                raise BadData(f"{file} has {opened.mode} pixels, not 8-bit: convert it, or give an .npz")
            image = ImageOps.exif_transpose(opened).convert("L" if how.color == "gray" else "RGB")
    except (OSError, SyntaxError, ValueError, TypeError, IndexError, Image.DecompressionBombError) as error:
        raise BadData(f"{file} is not a readable picture ({_reason(error)}): replace or remove it") from error
    if how.fit == "letterbox":
        image = _letterbox(image, width, height)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float64).reshape(height, width, how.channels)
    # In float64, rounded once at the end: the result does not depend on the order of float32 operations.
    values = (pixels[:, :, :: -1 if how.color == "bgr" else 1] - np.array(how.mean)) * np.array(how.scale)
    with np.errstate(all="ignore"):
        cast = values.astype(_dtype(spec))
    if not np.isfinite(cast).all() or (cast.dtype.kind != "f" and (cast != values).any()):
        got = f"{values.min():g}..{values.max():g} for {file.name}"
        raise BadOption(f"preprocess gives {got}, which {spec.dtype} cannot hold: change mean and scale")
    return np.ascontiguousarray(cast.transpose(2, 0, 1) if how.layout == "nchw" else cast)


def _letterbox(image: Image.Image, width: int, height: int) -> Image.Image:
    ratio = min(width / image.width, height / image.height)
    size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    padded = Image.new(image.mode, (width, height), (PAD_PIXEL,) * len(image.getbands()))
    corner = ((width - size[0]) // 2, (height - size[1]) // 2)
    padded.paste(image.resize(size, Image.Resampling.BILINEAR), corner)
    return padded


def _load_arrays(path: Path, inputs: Sequence[InputSpec], limit: int) -> Dataset:
    arrays, labels = _read(path, inputs)
    batches = {spec.name: _rows_per_sample(path, spec, arrays[spec.name]) for spec in inputs}
    if len({Fraction(len(arrays[name]), batch) for name, batch in batches.items()}) > 1:
        lengths = ", ".join(f"{name!r} {len(arrays[name])}" for name in batches)
        raise BadData(f"{path} has different numbers of samples ({lengths}): save the same number for each")
    # The input that takes most rows per sample counts rows for all: labels, names and what was dropped.
    first, batch = max(batches.items(), key=lambda item: item[1])
    rows, count = len(arrays[first]), len(arrays[first]) // batch
    if count == 0:
        raise BadData(f"{path} has {rows} samples, and the batch of input {first!r} is {batch}: add samples")
    if labels is not None and (labels.ndim == 0 or len(labels) != rows):
        raise BadData(f"{path} has labels {list(labels.shape)} for {rows} samples: save one label per sample")
    keep = _evenly(count, limit)
    names = [_span(str(i * batch), str((i + 1) * batch - 1)) for i in keep]
    columns: dict[str, Array] = {}
    for spec in inputs:
        grouped = arrays[spec.name][: count * batches[spec.name]].reshape(count, *spec.shape)
        columns[spec.name] = _cast(path, spec, np.ascontiguousarray(grouped[keep]), names)
    if labels is not None:
        lead = (count, batch) if batch > 1 else (count,)
        labels = labels[: count * batch].reshape(*lead, *labels.shape[1:])[keep]
    samples = [{name: column[i, ...] for name, column in columns.items()} for i in range(len(keep))]
    return _dataset(str(path), samples, names, labels, rows - batch * len(keep))


def _read(path: Path, inputs: Sequence[InputSpec]) -> tuple[dict[str, Array], Array | None]:
    """Arrays by input name, and labels."""
    wanted = [spec.name for spec in inputs]
    try:
        if path.suffix.lower() == ".npz" and not zipfile.is_zipfile(path):
            raise ValueError("not a zip file")
        opened = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(opened, np.ndarray):
            found: dict[str, Array] = {wanted[0]: opened}
        else:
            with opened:
                found = {key: np.asarray(opened[key]) for key in opened.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise BadData(f"{path} cannot be read ({_reason(error)}): use numpy.save or numpy.savez") from error
    if isinstance(opened, np.ndarray) and len(inputs) > 1:
        raise BadData(f"{path} is one array for {len(inputs)} inputs: give an .npz with the keys {wanted}")
    label_keys = [key for key in found if key in LABEL_KEYS and key not in wanted]
    keys = [key for key in found if key not in label_keys]
    if len(wanted) == len(keys) == 1:
        found[wanted[0]], keys = found[keys[0]], wanted
    missing = [name for name in wanted if name not in keys]
    if missing:
        raise BadData(f"{path} has keys {list(found)}, but not the inputs {missing}: rename or add arrays")
    unknown = [key for key in keys if key not in wanted] + label_keys[1:]
    if unknown:
        raise BadData(f"{path} has extra keys {unknown}: keep {wanted}, and at most one of {LABEL_KEYS}")
    return {name: found[name] for name in wanted}, found[label_keys[0]] if label_keys else None


def _rows_per_sample(path: Path, spec: InputSpec, array: Array) -> int:
    """Entries of the first axis that make a sample: the model's batch, or 1 where each is a full [*shape]."""
    shape, got = spec.shape, array.shape
    if array.ndim and got[1:] == shape:
        return 1
    if array.ndim and shape and got[1:] == shape[1:]:
        return shape[0]
    fix = f"save [{', '.join(map(str, ('N', *shape[1:])))}], with N samples first"
    if len(shape) >= 3 and len(got) >= len(shape):
        channels = 1 - len(shape)
        if got[channels:] == (*shape[2:], shape[1]):
            fix = f"the channels are last, so save numpy.moveaxis(array, -1, {channels})"
        elif got[channels:] == (shape[-1], *shape[1:-1]):
            fix = f"the channels are first, so save numpy.moveaxis(array, {channels}, -1)"
    elif shape and got == shape[1:]:
        fix = "there is no axis of samples, so save array[None], or stack several"
    raise BadData(f"{path} has {list(got)} for input {spec.name!r}, which takes {list(shape)}: {fix}")


def _cast(path: Path, spec: InputSpec, column: Array, names: Sequence[str]) -> Array:
    """[samples, *shape] in the input's dtype; refused where that would change what the numbers mean."""
    target, source = _dtype(spec), column.dtype
    what = f"{path} has {source} for input {spec.name!r}, which takes {target}"
    if source.kind not in "fiub":
        raise BadData(f"{what}: save numbers")
    if source.kind == "f" and target.kind != "f":
        raise BadData(f"{what}: fractions would be lost, so save whole numbers of {target}")
    if source == np.uint8 and target.kind == "f" and len(spec.shape) >= 3:
        fix = f"convert them as in training, e.g. (array / 255).astype({target.name!r})"
        raise BadData(f"{what}: raw pixels need preprocessing, so {fix}, or give a folder of pictures")
    with np.errstate(all="ignore"):
        cast = column.astype(target, copy=False)
        # Compared both ways: int8 -1 survives a round trip through uint8, and int64 is wider than float64.
        if source.kind != "f" and ((cast != column).any() or (cast.astype(source) != column).any()):
            raise BadData(f"{what}: it cannot hold all of {column.min()}..{column.max()}: rescale them")
    bad = [i for i in range(len(cast)) if not np.isfinite(cast[i]).all()]
    if bad:
        wrong = f"{np.count_nonzero(~np.isfinite(cast[bad[0]]))} NaN or infinite values as {target}"
        where = f"sample {names[bad[0]]}, input {spec.name!r} has {wrong}"
        raise BadData(f"{path}: {where} ({len(bad)} of {len(cast)} samples have): repair or remove them")
    return cast


def _dtype(spec: InputSpec) -> np.dtype[Any]:
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "fiub":
        raise BadData(f"input {spec} cannot be fed: use a model with float, integer or bool inputs")
    return dtype


def _dataset(
    source: str, samples: Sequence[dict[str, Array]], names: Sequence[str], labels: Array | None, dropped: int
) -> Dataset:
    digest = hashlib.sha256()
    arrays = [(name, feed[name]) for feed in samples for name in sorted(feed)]
    for name, array in arrays if labels is None else [*arrays, ("labels", labels)]:
        stored = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name!r} {stored.dtype.str} {array.shape}\n".encode())
        digest.update(stored.tobytes())
    return Dataset(source, tuple(samples), tuple(names), labels, digest.hexdigest(), dropped)


def _evenly(count: int, limit: int) -> list[int]:
    """At most `limit` distinct indices, evenly spaced over range(count), the first and last among them."""
    chosen = min(count, limit)
    return [i * (count - 1) // max(chosen - 1, 1) for i in range(chosen)]


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first}..{last}"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
