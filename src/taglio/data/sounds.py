"""Wav files → samples of a model's waveform input. Does not resample: a sound at another rate is refused."""

import io
import wave
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from taglio.data.dataset import Dataset, Sample
from taglio.data.items import SampleRequest, SourceItems, from_items
from taglio.data.preprocess import as_text
from taglio.data.spec import Array
from taglio.errors import BadData, BadOption, one_line, plural
from taglio.notes import Kind, Note

SOUND_SUFFIXES = (".wav",)
# About 1.5 hours at 48 kHz; a header of 44 bytes can claim four billion frames.
MOST_FRAMES = 2**28


def from_sounds(request: SampleRequest, items: SourceItems) -> Dataset:
    """Samples from PCM wav files, or their bytes, with values in -1..1: [B, T] or [B, C, T], mixed down to one channel
    unless the model fixes C. If the model fixes T, shorter sounds are padded with zeros and longer ones are cut.

    Raises BadData for a sampling rate other than that asked for or of the first sound, and for files that are not PCM.
    """
    source, inputs, how = request.source, request.inputs, request.preprocess
    spec = inputs[0]
    dims = spec.shape or ()
    if len(inputs) != 1 or len(dims) not in (2, 3) or spec.numpy_dtype().kind != "f":
        listed = ", ".join(map(str, inputs))
        raise BadData(
            f"{source}: sounds need one float input [B, T] or [B, 1, T], but the model's inputs are {listed}: "
            "give an .npz whose keys are the input names"
        )
    if how is not None and not how.of_sounds():
        raise BadOption(f"preprocess {as_text(how)} is for images, but {source} has sounds: use rate=16000")
    length = dims[-1] if isinstance(dims[-1], int) else None
    rate, changed = how.rate if how else None, [0, 0]

    def make(names: Sequence[str], values: Sequence[Path | bytes]) -> Sample:
        nonlocal rate
        sounds = []
        for name, value in zip(names, values, strict=True):
            sound, sample_rate = read_wav(name, value)
            if rate is not None and sample_rate != rate:
                whose = "`preprocess` says" if how is not None and how.rate else "the first sound has"
                raise BadData(f"{source}: {name} has {sample_rate} samples per second, {whose} {rate}: resample it")
            rate = sample_rate
            sound = _channels(f"{source}: {name}", sound, dims[1] if len(dims) == 3 else None)
            if how is not None and how.normalize:  # as Hugging Face's feature extractors
                sound = (sound - sound.mean()) / np.sqrt(sound.var() + 1e-7)
            sounds.append(sound)
        most = length or max(sound.shape[1] for sound in sounds)
        for index, sound in enumerate(sounds):
            changed[0] += sound.shape[1] < most
            changed[1] += sound.shape[1] > most
            sounds[index] = np.pad(sound[:, :most], ((0, 0), (0, max(0, most - sound.shape[1]))))
        whole = np.stack(sounds) if len(dims) == 3 else np.concatenate(sounds)
        return {spec.name: np.ascontiguousarray(whole, spec.numpy_dtype())}

    dataset = from_items(request, items, "sound", make)
    checked = how is not None and how.rate
    texts = [] if checked else [f"sounds have {rate} samples per second; no rate to check against"]
    if any(changed):
        texts.append(f"{plural(changed[0], 'sound')} padded with zeros and {changed[1]} cut to the length of the input")
    return replace(dataset, notes=(*dataset.notes, *(Note(Kind.DATA, text) for text in texts)))


def read_wav(name: str, content: Path | bytes) -> tuple[Array, int]:
    """The channels of a PCM wav file, [C, T] in -1..1, and its samples per second. Raises BadData."""
    try:
        with wave.open(str(content) if isinstance(content, Path) else io.BytesIO(content), "rb") as stream:
            width, channels, rate = stream.getsampwidth(), stream.getnchannels(), stream.getframerate()
            data = stream.readframes(min(stream.getnframes(), MOST_FRAMES))
    except (OSError, EOFError, wave.Error, ValueError, RuntimeError) as error:  # RuntimeError: of chunks
        raise BadData(f"{name} is not a PCM wav file ({one_line(error) or 'it is cut short'}): convert it") from error
    if not data or width not in (1, 2, 3, 4) or channels < 1 or rate < 1:
        raise BadData(
            f"{name} has {plural(len(data), 'byte')} of {8 * width}-bit samples: give a wav file with sound in it"
        )
    data = data[: len(data) // (width * channels) * width * channels]
    if width == 1:  # 8-bit samples are unsigned
        values = np.frombuffer(data, np.uint8).astype(np.float64) - 128
    else:
        whole = np.zeros((len(data) // width, 4), np.uint8)
        whole[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
        values = whole.view("<i4")[:, 0].astype(np.float64) / 2 ** (8 * (4 - width))
    return (values / 2 ** (8 * width - 1)).reshape(-1, channels).T, rate


def _channels(where: str, sound: Array, wanted: object) -> Array:
    """`sound` [C, T] with `wanted` channels: the mean of all for one. Raises BadData for any other mismatch."""
    if not isinstance(wanted, int) or wanted == 1:
        return np.asarray(sound.mean(axis=0, keepdims=True))
    if len(sound) != wanted:
        raise BadData(
            f"{where} has {plural(len(sound), 'channel')}; the model takes {wanted}: give sounds with {wanted}"
        )
    return sound
