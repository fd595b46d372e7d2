"""Texts → token ids and masks, by the model's own tokenizer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taglio.data.dataset import LABEL_KEYS, Dataset, Sample, span
from taglio.data.items import SampleRequest, SourceItems, from_items
from taglio.data.spec import Array, InputSpec
from taglio.data.table import TABLE_SUFFIXES, as_labels, read_lines, read_table
from taglio.errors import BadData, one_line
from taglio.notes import Kind, Note
from taglio.optional import optional

TEXT_SUFFIXES = (".txt", *TABLE_SUFFIXES)
TOKENIZER = "tokenizer.json"
TEXT_KEYS = ("text", "texts", "sentence")
# Input names of models -> attributes of a tokenizer's encoding.
_TAKEN = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
_POSITIONS = "position_ids"
# Hugging Face writes 10^30 for tokenizers without a maximum length.
_NO_LIMIT = 10**6


def read_texts(path: Path) -> SourceItems:
    """A text per line (.txt), or the column `text` of a table (.csv, .tsv) with its labels in `label`."""
    if path.suffix.lower() in TABLE_SUFFIXES:
        return _from_table(path)
    lines = read_lines(path)
    return SourceItems([str(index) for index in range(len(lines))], lines)


def _from_table(path: Path) -> SourceItems:
    columns = read_table(path, (*TEXT_KEYS, *LABEL_KEYS))
    labels = next((key for key in LABEL_KEYS if key in columns), None)
    other_columns = [key for key in columns if key != labels]
    text = next((key for key in TEXT_KEYS if key in columns), other_columns[0] if len(other_columns) == 1 else None)
    if text is None:
        unnamed = "0" in columns  # no known name in the first row
        has = f"{len(columns)} columns without known names" if unnamed else f"the columns {', '.join(columns)}"
        raise BadData(f"{path} has {has}: name the column of texts {TEXT_KEYS[0]!r}, or save numbers in an .npz")
    left_out = [key for key in other_columns if key != text]
    left_text = f"{path}: left out {', '.join(map(repr, left_out))}, neither text nor label"
    notes = (Note(Kind.DATA, left_text),) if left_out else ()
    names = [str(index) for index in range(len(columns[text]))]
    label_array = None if labels is None else np.array(as_labels(columns[labels]))
    return SourceItems(names, columns[text], label_array, notes)


def from_texts(request: SampleRequest, items: SourceItems) -> Dataset:
    """Samples from texts by the tokenizer.json next to the model: [B, T], padded and cut to T if the model fixes T,
    otherwise as long as the batch's longest text.

    Raises BadData for a model whose inputs a tokenizer does not give, or that has no tokenizer.json; BadOption if the
    package tokenizers is not installed.
    """
    request.unprocessed("texts")
    inputs = request.inputs
    only = len(inputs) == 1
    wrong = [
        str(spec)
        for spec in inputs
        if len(spec.shape or ()) != 2
        or spec.numpy_dtype().kind not in "iuf"
        or not (only or spec.name in (*_TAKEN, _POSITIONS))
    ]
    if wrong:
        gives = ", ".join((*_TAKEN, _POSITIONS))
        raise BadData(
            f"{request.source}: a tokenizer gives {gives}, each [B, T], but the model takes {', '.join(wrong)}: "
            "give an .npz whose keys are the input names"
        )
    shape = inputs[0].shape or ()
    tokenizer = _tokenizer(request, shape[1] if isinstance(shape[1], int) else None)
    cut = 0

    def make(names: Sequence[str], values: Sequence[str]) -> Sample:
        nonlocal cut
        for name, text in zip(names, values, strict=True):
            if not text.strip():
                raise BadData(f"{request.source}: text {name} is empty: remove it, with its label")
        with _using(f"{request.source}: text {span(names[0], names[-1])} is refused by {TOKENIZER}"):
            encodings = tokenizer.encode_batch([*values])
        cut += sum(bool(encoding.overflowing) for encoding in encodings)
        return {spec.name: _array(spec, encodings) for spec in inputs}

    dataset = from_items(request, items, "text", make)
    how = f"texts were tokenized by {TOKENIZER} next to the model"
    if cut:
        count = len(dataset.samples) * dataset.batch
        how += f"; {cut} of {count} were cut to {tokenizer.truncation['max_length']} tokens"
    return replace(dataset, notes=(*dataset.notes, Note(Kind.DATA, how)))


@contextmanager
def _using(what: str) -> Iterator[None]:
    """Turn whatever the library raises into a BadData that begins with `what`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Exception itself, or a panic, which is not even that
        raise BadData(f"{what} ({one_line(error)}): save it with the model again") from None


def _array(spec: InputSpec, encodings: Sequence[Any]) -> Array:
    if spec.name == _POSITIONS:
        rows = [np.arange(len(encoding.ids)) for encoding in encodings]
    else:
        rows = [getattr(encoding, _TAKEN.get(spec.name, "ids")) for encoding in encodings]
    return np.array(rows, spec.numpy_dtype())


def _tokenizer(request: SampleRequest, length: int | None) -> Any:
    """The model's tokenizer, set to pad and cut texts as the model needs."""
    source, near = request.source, request.near
    path = near.find(TOKENIZER)
    if path is None:
        where = f"{near.folders[0]} has none" if near.folders else "this model is in memory"
        raise BadData(
            f"{source} has texts, which need {TOKENIZER} next to the model, but {where}: copy it there, or give token "
            "ids in an .npz"
        )
    missing = f"{source} has texts, but tokenizers is not installed: pip install 'taglio[text]'"
    library = optional("tokenizers", missing)
    with _using(f"{path} is not a tokenizer"):
        tokenizer = library.Tokenizer.from_file(str(path))
    config = near.read("tokenizer_config.json")
    most = length or config.get("model_max_length")
    if isinstance(most, int) and 0 < most < _NO_LIMIT and (length or tokenizer.truncation is None):
        tokenizer.enable_truncation(most)
    padding = tokenizer.padding or {}
    pad = config.get("pad_token")
    token = padding.get("pad_token") or (pad.get("content") if isinstance(pad, dict) else pad)
    tokens = [spelling for spelling in (token, "[PAD]", "<pad>") if isinstance(spelling, str)]
    pad_tokens = [spelling for spelling in tokens if tokenizer.token_to_id(spelling) is not None]
    how = {"pad_id": tokenizer.token_to_id(pad_tokens[0]), "pad_token": pad_tokens[0]} if pad_tokens else {"pad_id": 0}
    side = {key: padding[key] for key in ("direction", "pad_type_id") if key in padding}
    tokenizer.enable_padding(length=length, **how, **side)
    return tokenizer
