"""Doubts about measured errors: too few, repeated or constant inputs, sizes not in the data, inputs unlike the
calibration, constant outputs, sums that saturate on this processor.

Each is a note; nothing is refused or run here.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from taglio.data.spec import InputSpec, batch_symbol
from taglio.error.compared import as_array
from taglio.error.loss import Metric
from taglio.error.tally import Tally
from taglio.errors import plural
from taglio.notes import Kind, Note
from taglio.quantize.scheme import Scheme

# Distinct inputs below which ranges and errors may not hold for other inputs.
_FEW = 16
# Inputs scaled from pixels, to 0 to 1, −1 to 1 or by mean and deviation, are at most about 3 in magnitude.
_FRACTIONS = 4.0
# Inputs that are named in one line.
_NAMED = 4


def digests(samples: Iterable[Mapping[str, np.ndarray]]) -> tuple[bytes, ...]:
    """A digest per sample; equal digests mean equal inputs."""
    sample_digests = []
    for sample in samples:
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(sample):
            value = np.ascontiguousarray(sample[name])
            digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
            digest.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
        sample_digests.append(digest.digest())
    return tuple(sample_digests)


def few_inputs(calibration: Sequence[bytes], held_out: Sequence[bytes], batch: int = 1) -> list[Note]:
    """Notes on too few, repeated or shared inputs, by their digests. A digest is that of `batch` inputs."""
    notes = []
    for role, inputs in (("calibration", calibration), ("held-out", held_out)):
        if repeated := len(inputs) - len(set(inputs)):
            text = f"{repeated} of {len(inputs)} {role} inputs repeat others ({len(set(inputs))} distinct)"
            notes.append(Note(Kind.REPEATED_INPUTS, text))
    if shared := sum(digest in set(calibration) for digest in held_out):
        text = (
            f"{shared} of {len(held_out)} held-out inputs are also calibration inputs: errors on others may be larger"
        )
        notes.append(Note(Kind.SHARED_INPUTS, text))
    ranges, errors = batch * len(set(calibration)), batch * len(set(held_out))
    if min(ranges, errors) < _FEW:
        text = (
            f"few inputs: {ranges} for the ranges and {errors} for the error (at least {_FEW} of each are needed for "
            "reliable figures); give more data"
        )
        notes.append(Note(Kind.FEW_INPUTS, text))
    return notes


def constant_inputs(samples: Iterable[Mapping[str, np.ndarray]]) -> list[Note]:
    """Notes on inputs that are constant in at least half of the samples, one for all inputs with the same finding.
    Integer inputs, such as masks beside token ids, are often constant, so they count only if no input is float and all
    inputs are constant."""
    constants: dict[str, list[object]] = {}
    floats, count = set[str](), 0
    for sample in samples:
        count += 1
        for name, value in sample.items():
            floats |= {name} if value.dtype.kind == "f" else set()
            constant = value.size > 1 and (value == value.flat[0]).all()
            constants.setdefault(name, []).extend([value.flat[0]] if constant else [])
    still = {name: values for name, values in constants.items() if len(values) >= max(1, count / 2)}
    names_by_finding: dict[str, list[str]] = {}
    for name, values in still.items():
        if name in floats or (not floats and len(still) == len(constants)):
            only = f" ({values[0]})" if len({str(value) for value in values}) == 1 else ""
            names_by_finding.setdefault(f"constant{only} in {len(values)} of {count} samples", []).append(name)
    notes = []
    for finding, names in names_by_finding.items():
        more = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
        subject = f"inputs {', '.join(names[:_NAMED])}{more} are" if len(names) > 1 else f"input {names[0]} is"
        notes.append(Note(Kind.CONSTANT_INPUT, f"{subject} {finding}: check the data and their preprocessing"))
    return notes


def values_fed(
    inputs: Sequence[InputSpec], samples: Iterable[Mapping[str, np.ndarray]], scaling: Mapping[str, str]
) -> Note | None:
    """The range of every float input over `samples`; None if there is no such input.

    `scaling` has by input what the model's first operator does to pixels from 0 to 255, or "". The note ends with a
    suggestion where fractions are fed to such a model, or pixels to an image input of another.
    """
    floats = [spec for spec in inputs if spec.dtype.startswith("float")]
    ends = {spec.name: (np.inf, -np.inf) for spec in floats}
    for sample in samples:
        for name, (low, high) in ends.items():
            finite = sample[name][np.isfinite(sample[name])]
            if finite.size:
                ends[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
    ends = {name: pair for name, pair in ends.items() if pair[0] <= pair[1]}
    if not ends:
        return None
    advice = ""
    for spec in floats:
        low, high = ends.get(spec.name, (0.0, 0.0))
        pixels = low >= 0.0 and _FRACTIONS < high <= 255.0
        image = spec.shape is not None and len(spec.shape) == 4 and {1, 3} & {spec.shape[1], spec.shape[-1]}
        if (does := scaling.get(spec.name, "")) and low >= -_FRACTIONS and 0.0 < high <= _FRACTIONS:
            advice = f"; the model {does} first, so it takes pixels from 0 to 255: feed them unscaled"
        elif pixels and image and not does:
            advice = f"; these are pixels, and the model does not scale {spec.name} first: scale them as in training"
    named = ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in [*ends.items()][:_NAMED])
    more = f" and {len(ends) - _NAMED} others" if len(ends) > _NAMED else ""
    return Note(Kind.SCALED_INPUT if advice else Kind.FACT, f"values fed: {named}{more}{advice}")


def sizes_measured(inputs: Sequence[InputSpec], samples: Iterable[Mapping[str, np.ndarray]]) -> Note | None:
    """The sizes that dynamic dimensions have in the data, but for the batch; None if there is no such dimension: a
    sentence encoder planned for 2 % at 32 tokens had 3.2 % at one."""
    batch, sizes = batch_symbol(inputs), dict[str, set[int]]()
    for sample in samples:
        for spec in inputs:
            for index, (dim, size) in enumerate(zip(spec.shape or (), sample[spec.name].shape, strict=False)):
                # Some exporters write "?".
                named = isinstance(dim, str) and any(character.isalnum() for character in dim)
                if not isinstance(dim, int) and (dim != batch if named else index > 0):
                    sizes.setdefault(str(dim) if named else f"{spec.name}[{index}]", set()).add(size)
    if not sizes:
        return None
    spans = [f"{dim} {min(seen)}" + (f" to {max(seen)}" if len(seen) > 1 else "") for dim, seen in sizes.items()]
    measured = f"errors were measured at {', '.join(spans)} only"
    return Note(Kind.MEASURED_SIZES, f"{measured}; at other sizes of these dynamic dimensions they may be larger")


def not_float(tally: Tally, form: str = " with all blocks in int8") -> Note | None:
    """A note if outputs are not float; `tally` is that of a model in the `form`."""
    unchanged = tally.unchanged()
    if not unchanged:
        return None
    shares = ", ".join(f"{name} {share:.2%}" for name, share in unchanged.items())
    unchanged_shares = f"unchanged{form}: {shares}"
    if tally.counted.all():
        text = f"no output is float: the error is the share of values that change; {unchanged_shares}"
        return Note(Kind.NO_FLOAT_OUTPUT, text)
    return Note(Kind.FACT, f"outputs that are not float are left out of the error; {unchanged_shares}")


def no_numbers(references: Sequence[Sequence[np.ndarray]], names: Sequence[str]) -> Note | None:
    """A note if outputs of the float model have NaN. Infinite values count as masks."""
    missing = []
    for index, name in enumerate(names):
        values = (as_array(outputs[index]) for outputs in references)
        count = sum(bool(np.isnan(value).any()) for value in values if value.dtype.kind == "f")
        if count:
            missing.append(f"{name} for {count} of {plural(len(references), 'input')}")
    if not missing:
        return None
    return Note(Kind.NAN_OUTPUT, f"the float model's output has NaN, which must stay NaN: {', '.join(missing)}")


def nothing_changed(metric: Metric, error: float, int8_blocks: int, inputs: int) -> Note | None:
    """A note if int8 changed no output on any of `inputs` distinct held-out inputs.

    If none of n changes, at most 1 - 0.05^(1/n) do, at 95 % confidence.
    """
    if not metric.smooth or error > 0.0 or not int8_blocks:
        return None
    return Note(
        Kind.UNCHANGED_OUTPUTS,
        f"no output changes on any of {inputs} held-out inputs: up to {1.0 - 0.05 ** (1.0 / inputs):.0%} of other "
        "inputs may change (95 % confidence); give more data",
    )


def exchanged_rows(metric: Metric, ranked: Sequence[str]) -> Note | None:
    """A note if the rows of outputs are `ranked` by scores and the metric compares them place by place."""
    if not metric.smooth or not ranked:
        return None
    return Note(
        Kind.RANKED_ROWS,
        f"rows of {', '.join(ranked)} are in the order of scores (TopK or NonMaxSuppression): two that change places "
        f"count as wrong in {metric.name}; limit a task, such as detection, instead",
    )


def coarse_metric(metric: Metric, inputs: int) -> Note | None:
    """A note if a metric that counts answers, one or several per input, has too few `inputs`."""
    if metric.smooth or inputs >= 100:  # one answer changes it by 1 % at most
        return None
    text = f"{metric.name} on {inputs} held-out inputs: each counts for {1 / inputs:.1%}; give more data"
    return Note(Kind.COARSE_METRIC, text)


def unlike_calibration(
    calibrated: Mapping[str, tuple[float, float]], held_out: Iterable[Mapping[str, np.ndarray]]
) -> Note | None:
    """A note if `held_out` inputs exceed their `calibrated` ranges, lowest and highest by tensor, by more than a
    quarter. Values beyond a range are clipped."""
    excess: dict[str, float] = {}
    for sample in held_out:
        for name in sample.keys() & calibrated.keys():
            low, high = calibrated[name]
            width = max(high, 0.0) - min(low, 0.0)
            finite = sample[name][np.isfinite(sample[name])]
            if finite.size and width > 0.0:
                beyond = max(low - float(finite.min()), float(finite.max()) - high) / width
                excess[name] = max(beyond, excess.get(name, 0.0))
    worst = max(excess, key=lambda name: excess[name], default="")
    if not worst or excess[worst] <= 0.25:
        return None
    return Note(
        Kind.UNLIKE_CALIBRATION,
        f"held-out inputs are unlike the calibration inputs: {worst} exceeds its calibrated range by "
        f"{excess[worst]:.0%}: calibrate with inputs like these",
    )


def saturating_sums(scheme: Scheme, saturates: bool, elsewhere: str = "") -> Note | None:
    """A note if int8 sums may saturate on this processor, or on the one called `elsewhere`, where the model was
    profiled."""
    if not scheme.may_saturate or not (saturates or elsewhere):
        return None
    where = "this processor" if saturates else f"the model was profiled on {elsewhere}, which"
    products = "s8×s8" if scheme.signed and not scheme.reduced_range else "u8×s8"
    return Note(
        Kind.SATURATION,
        f"{where} has no VNNI: sums of {products} products saturate at 16 bits{'' if saturates else ' there'}; "
        f"with the 7-bit weights of {scheme.narrow} they fit",
    )


def constant_outputs(references: Sequence[Sequence[np.ndarray]], names: Sequence[str]) -> Note | None:
    """A note if an output is the same, or empty, for every input. `references` [samples][outputs]."""
    if len(references) < 2:
        return None
    first = [as_array(output) for output in references[0]]
    dead = [
        name
        for index, name in enumerate(names)
        if all(np.array_equal(as_array(outputs[index]), first[index]) for outputs in islice(references, 1, None))
    ]
    if not dead:
        return None
    empty = not sum(output.size for output, name in zip(first, names, strict=True) if name in dead)
    return Note(
        Kind.CONSTANT_OUTPUT,
        f"output {', '.join(dead)} is {'empty' if empty else 'the same'} for all {len(references)} inputs: its "
        "error is meaningless; check the data and their preprocessing",
    )
