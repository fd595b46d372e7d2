"""A path → samples: a folder of images, a folder of arrays, an .npy or an .npz. Decides which it is."""

from collections.abc import Sequence
from pathlib import Path

from taglio.data.arrays import by_input, from_columns, one_sample, read_columns, reading
from taglio.data.dataset import Dataset, Samples, assemble, checked_labels, checked_limit, evenly, one_array
from taglio.data.images import IMAGE_SUFFIXES, Preprocess, from_images
from taglio.data.spec import InputSpec, batch_symbol
from taglio.errors import BadData, BadOption

_ARRAYS = (".npz", ".npy")


def load(
    path: Path,
    inputs: Sequence[InputSpec],
    preprocess: Preprocess | None = None,
    limit: int | None = None,
    room_bytes: float | None = None,
) -> Dataset:
    """Read DATA: a folder of images, an .npy (model of one input), an .npz with the input names as keys, or a folder
    of such files that hold one sample each.

    Arrays are [N, *sample], where a sample has its input's shape with or without the batch dimension, wherever that
    is. Where the model fixes a batch B, B consecutive rows or images make a sample. At most `limit` samples (None:
    512) are loaded, evenly spaced over the source; those beyond `room_bytes` (None: none) wait in a file. `preprocess`
    is for images; None takes the model's own layout and channels, and 0..1 floats (0..255 for integers).
    Raises BadData for DATA that does not fit the model, BadOption for arguments that do not.
    """
    at_most = checked_limit(limit, inputs, str(path))
    if not path.exists():
        raise BadData(f"{path} does not exist: give a folder of images, an .npy or an .npz")
    if path.is_dir():
        # What is no regular file is left alone: opening a named pipe would wait for ever.
        files = sorted(entry for entry in path.iterdir() if not entry.name.startswith(".") and entry.is_file())
        images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
        arrays = [file for file in files if file.suffix.lower() in _ARRAYS]
        if images and arrays:
            raise BadData(f"{path} has {len(images)} images and {len(arrays)} arrays: give a folder of one kind")
        if not images and not arrays:
            kinds = ", ".join(sorted({file.suffix or file.name for file in files})[:5])
            told = f"has no images and no arrays, but {len(files)} other files ({kinds})" if files else "is empty"
            raise BadData(f"{path} {told}: give a folder of images, or of .npz with one sample each")
        if not arrays:
            return from_images(path, images, inputs, preprocess, at_most, room_bytes)
        _refuse_preprocess(path, preprocess)
        return _one_sample_each(path, arrays, inputs, at_most, room_bytes)
    if path.suffix.lower() not in _ARRAYS or not path.is_file():
        raise BadData(f"{path} is not a folder of images, an .npy or an .npz: give one of those")
    _refuse_preprocess(path, preprocess)
    with reading(path):
        return from_columns(str(path), read_columns(path), inputs, at_most, room_bytes=room_bytes)


def _refuse_preprocess(path: Path, preprocess: Preprocess | None) -> None:
    if preprocess is not None:
        raise BadOption(f"{path}: preprocess is for folders of images, not for arrays: leave it out")


def _one_sample_each(
    path: Path, files: Sequence[Path], inputs: Sequence[InputSpec], limit: int, room_bytes: float | None
) -> Dataset:
    symbol, keep = batch_symbol(inputs), evenly(len(files), limit)
    samples, labels = Samples([spec.name for spec in inputs], room_bytes), []
    remarks: dict[str, None] = {}
    for file in (files[index] for index in keep):
        with reading(file):
            named = by_input(str(file), read_columns(file), inputs)
            arrays = {name: column.whole() for name, column in named.arrays.items()}
            labels += [] if named.labels is None else [named.labels.whole()]
        samples.append({spec.name: one_sample(str(file), spec, arrays[spec.name], symbol) for spec in inputs})
        remarks |= dict.fromkeys(remark.replace(str(file), str(path)) for remark in named.remarks)
    if labels and len(labels) != len(samples):
        raise BadData(f"{path}: {len(labels)} of {len(samples)} files have labels: save one each")
    stacked = checked_labels(str(path), one_array(labels), len(samples)) if labels else None
    names = [files[index].name for index in keep]
    return assemble(str(path), samples, names, stacked, len(files) - len(keep), [*remarks])
