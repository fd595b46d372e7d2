"""Doubts about measured errors: too few, repeated or constant inputs, sizes not in the data, inputs unlike the
calibration, constant outputs, sums that saturate on this processor.

Each is a note; nothing is refused or run here.
"""

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

# Distinct inputs below which ranges and errors may not hold for other inputs; and below which one answer changes a
# metric that counts answers by more than 1 %.
_FEW, _FEW_ANSWERS = 16, 100
# Inputs scaled from pixels, to 0 to 1, −1 to 1 or by mean and deviation, are at most about 3 in magnitude.
_FRACTIONS = 4.0
# Inputs that are named in one line.
_NAMED = 4


def few_inputs(metric: Metric, calibration: Sequence[bytes], held_out: Sequence[bytes], batch: int = 1) -> list[Note]:
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
    least = _FEW if metric.smooth else _FEW_ANSWERS
    if ranges < _FEW or errors < least:
        text = (
            f"few inputs: {ranges} for the ranges and {errors} for the error (at least {_FEW} and {least} are needed "
            "for reliable figures); give more data"
        )
        notes.append(Note(Kind.FEW_INPUTS, text))
    return notes


def values_fed(
    inputs: Sequence[InputSpec], samples: Iterable[Mapping[str, np.ndarray]], scaling: Mapping[str, str]
) -> Note | None:
    """The range of every float input over `samples`; None if there is no such input.

    `scaling` has by input what the model's first operator does to pixels from 0 to 255, or "". The note ends with a
    suggestion where fractions are fed to such a model, pixels to an image input of another, or one value everywhere.
    """
    floats = [spec for spec in inputs if spec.dtype.startswith("float")]
    ends, several = {spec.name: (np.inf, -np.inf) for spec in floats}, set[str]()
    for sample in samples:
        for name, (low, high) in ends.items():
            finite = sample[name][np.isfinite(sample[name])]
            if finite.size:
                ends[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
                several |= {name} if finite.size > 1 else set()
    ends = {name: pair for name, pair in ends.items() if pair[0] <= pair[1]}
    if not ends:
        return None
    advice, kind = "", Kind.FACT
    for spec in floats:
        low, high = ends.get(spec.name, (0.0, 0.0))
        pixels = low >= 0.0 and _FRACTIONS < high <= 255.0
        image = spec.shape is not None and len(spec.shape) == 4 and {1, 3} & {spec.shape[1], spec.shape[-1]}
        if spec.name in several and low == high:
            advice, kind = f"; {spec.name} never changes: check the data and their preprocessing", Kind.CONSTANT_INPUT
        elif (does := scaling.get(spec.name, "")) and low >= -_FRACTIONS and 0.0 < high <= _FRACTIONS:
            advice = f"; the model {does} first, so it takes pixels from 0 to 255: feed them unscaled"
            kind = Kind.SCALED_INPUT
        elif pixels and image and not does:
            advice = f"; these are pixels, and the model does not scale {spec.name} first: scale them as in training"
            kind = Kind.SCALED_INPUT
    named = ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in [*ends.items()][:_NAMED])
    more = f" and {len(ends) - _NAMED} others" if len(ends) > _NAMED else ""
    return Note(kind, f"values fed: {named}{more}{advice}")


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


def exchanged_rows(metric: Metric, ranked: Sequence[str]) -> Note | None:
    """A note if the rows of outputs are `ranked` by scores and the metric compares them place by place."""
    if not metric.smooth or not ranked:
        return None
    return Note(
        Kind.RANKED_ROWS,
        f"rows of {', '.join(ranked)} are in the order of scores (TopK or NonMaxSuppression): two that change places "
        f"count as wrong in {metric.name}; limit a task, such as detection, instead",
    )


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


def saturating_sums(scheme: Scheme, saturates: bool) -> Note | None:
    """A note if int8 sums may saturate on this processor."""
    if not scheme.may_saturate or not saturates:
        return None
    products = "s8×s8" if scheme.signed else "u8×s8"
    return Note(
        Kind.SATURATION,
        f"this processor has no VNNI: sums of {products} products saturate at 16 bits; with the 7-bit weights of "
        f"{scheme.narrow} they fit",
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
