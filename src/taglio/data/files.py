"""A path → samples: decide whether it holds images, sounds, arrays, texts or a saved dataset, and call its reader."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from taglio.data.arrays import by_input, from_columns, one_sample, read_columns, reading
from taglio.data.dataset import DEFAULT_LIMIT, Dataset, assemble, checked_labels, evenly, one_array
from taglio.data.images import IMAGE_SUFFIXES
from taglio.data.items import SampleRequest, SourceItems
from taglio.data.preprocess import Preprocess
from taglio.data.processor import Beside, class_numbers
from taglio.data.saved import from_media, from_saved, is_saved
from taglio.data.sounds import SOUND_SUFFIXES
from taglio.data.spec import InputSpec, batch_symbol
from taglio.data.texts import TEXT_SUFFIXES, from_texts, read_texts
from taglio.errors import BadData, plural
from taglio.notes import Kind, Note

_ARRAYS = (".npz", ".npy")
_KINDS = {"images": IMAGE_SUFFIXES, "sounds": SOUND_SUFFIXES, "arrays": _ARRAYS}
_GIVE = "give a directory of images, wav files or .npz, an .npy or .npz, texts (.txt, .csv), or a saved dataset"
_CLASSES_SHOWN = 4
# Pictures that are left out, with a note, if they lie among images.
_UNREAD = (".tif", ".tiff", ".gif", ".heic", ".avif", ".jp2")


def load(
    path: Path,
    inputs: Sequence[InputSpec],
    preprocess: Preprocess | None = None,
    limit: int = DEFAULT_LIMIT,
    room_bytes: float | None = None,
    near: Beside = Beside(),  # noqa: B008 - frozen
) -> Dataset:
    """The samples in DATA, which is one of:

    * a folder of images or wav files, or of a subfolder per class, which then labels them;
    * an .npy (for a model with one input), an .npz with the input names as keys, or a folder of such files that hold
      one sample each, which may differ in shape;
    * texts, one per line (.txt) or in a column (.csv);
    * a Hugging Face dataset written by `save_to_disk`.

    Arrays are [N, *sample]; a sample has its input's shape, with or without the batch dimension, wherever that is. If
    the model fixes a batch B, B consecutive items make a sample. At most `limit` samples are loaded, evenly spaced over
    the source; those beyond `room_bytes` (None: no limit) are kept in a file. `preprocess` is for images and sounds;
    None uses the preprocessing file in the folders `near`, or else the model's layout and channels with floats in 0..1
    (0..255 for integers). Raises BadData for DATA that does not fit the model, BadOption for arguments that do not.
    """
    request = SampleRequest(str(path), inputs, limit, room_bytes, preprocess, near)
    if not path.exists():
        raise BadData(f"{path} does not exist: {_GIVE}")
    if path.is_dir():
        if is_saved(path):
            return from_saved(path, request)
        kind, files = _files(path)
        if kind == "arrays":
            return _one_sample_each(request, files)
        notes = _left_out(path) if kind == "images" else ()
        items = SourceItems([file.name for file in files], files, None, notes) if files else _in_classes(path, near)
        if items is None:
            other_files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
            kinds = ", ".join(sorted({file.suffix or file.name for file in other_files})[:5])
            only = f"has no images and no arrays, only {plural(len(other_files), 'other file')} ({kinds})"
            raise BadData(f"{path} {only if other_files else 'is empty'}: {_GIVE}")
        sounds = any(str(name).lower().endswith(SOUND_SUFFIXES) for name in items.names)
        return from_media(request, items, sounds=sounds)
    suffix = path.suffix.lower()
    if suffix not in (*_ARRAYS, *TEXT_SUFFIXES) or not path.is_file():
        raise BadData(f"{path}: taglio cannot read this kind of data: {_GIVE}")
    if suffix in TEXT_SUFFIXES:
        return from_texts(request, read_texts(path))
    request.unprocessed("arrays")
    with reading(path):
        return from_columns(request, read_columns(path))


def _files(path: Path) -> tuple[str, list[Path]]:
    """The kind of files in a folder, and the files of that kind, sorted; "" and none if taglio reads none of them."""
    # Only regular files: opening a named pipe would wait forever.
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".") and file.is_file())
    files_of = {kind: [file for file in files if file.suffix.lower() in suffixes] for kind, suffixes in _KINDS.items()}
    nonempty = {kind: paths for kind, paths in files_of.items() if paths}
    if len(nonempty) > 1:
        content = " and ".join(plural(len(paths), kind.removesuffix("s")) for kind, paths in nonempty.items())
        raise BadData(f"{path} has {content}: give a directory of one kind")
    return next(iter(nonempty.items()), ("", []))


def _left_out(path: Path) -> tuple[Note, ...]:
    """A note on the pictures of a folder that taglio does not read."""
    suffixes = [suffix for file in path.iterdir() if (suffix := file.suffix.lower()) in _UNREAD]
    kinds = ", ".join(sorted(set(suffixes)))
    text = f"left out {plural(len(suffixes), 'picture')} ({kinds}): save them as .png"
    return (Note(Kind.DATA, text),) if suffixes else ()


def _in_classes(path: Path, near: Beside) -> SourceItems | None:
    """The images or sounds in the subfolders of a folder, labelled by subfolder; None if there are none."""
    folders = sorted(folder for folder in path.iterdir() if not folder.name.startswith(".") and folder.is_dir())
    contents = [_files(folder) for folder in folders]
    kinds = {kind for kind, files in contents if files}
    if not kinds or "arrays" in kinds:
        return None
    if len(kinds) > 1:
        raise BadData(f"the subdirectories of {path} have {' and '.join(sorted(kinds))}: give a directory of one kind")
    classes = [folder.name for folder in folders]
    numbers, source = class_numbers(classes, near)
    labels = [number for number, (_, files) in zip(numbers, contents, strict=True) for _ in files]
    values = [file for _, files in contents for file in files]
    shown = ", ".join(f"{name} {number}" for name, number in [*zip(classes, numbers, strict=True)][:_CLASSES_SHOWN])
    more = ", ..." if len(classes) > _CLASSES_SHOWN else ""
    text = f"labels are the names of {len(classes)} subdirectories, numbered by {source}: {shown}{more}"
    names = [f"{file.parent.name}/{file.name}" for file in values]
    return SourceItems(names, values, np.array(labels), (Note(Kind.FACT, text),))


def _one_sample_each(request: SampleRequest, files: Sequence[Path]) -> Dataset:
    """A sample from each file."""
    request.unprocessed("arrays")
    path, inputs = request.source, request.inputs
    symbol, keep = batch_symbol(inputs), evenly(len(files), request.limit)
    samples, labels = request.samples(), []
    notes: dict[Note, None] = {}
    for index in keep:
        where = str(files[index])
        with reading(files[index]):
            named = by_input(where, read_columns(files[index]), inputs)
            arrays = {name: column.whole() for name, column in named.arrays.items()}
            labels += [] if named.labels is None else [named.labels.whole()]
        samples.append({spec.name: one_sample(where, spec, arrays[spec.name], symbol) for spec in inputs})
        notes |= dict.fromkeys(replace(note, text=note.text.replace(where, path)) for note in named.notes)
    names = [files[index].name for index in keep]
    stacked = checked_labels(path, one_array(labels), len(samples)) if labels else None
    return assemble(path, samples, names, stacked, len(files) - len(keep), [*notes])
