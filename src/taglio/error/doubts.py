"""What makes the measured errors less sure: too few inputs, inputs that repeat each other or are constant or unlike the
calibration, dead outputs, sums that saturate on this processor.

Says so; refuses nothing and runs nothing.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from taglio.error.compared import as_array
from taglio.error.loss import Metric
from taglio.error.tally import Tally
from taglio.model.graph import Graph
from taglio.quantize.scheme import Scheme

# An error whose own relative standard error is above this is not worth three digits.
_UNSURE = 0.15
# Distinct inputs below which neither ranges nor errors are those of the inputs to come.
_FEW = 16
# Held-out inputs below which one answer is more than 1 % of a metric that counts them.
_COUNTED = 100
# Held-out values beyond the calibrated range are clipped. Measured between halves of one folder of photographs, half of
# the tensors leave their range by less than a tenth of it.
_OVERFLOW = 0.25


def digests(samples: Iterable[Mapping[str, np.ndarray]]) -> tuple[bytes, ...]:
    """One for each sample; equal ones are of equal inputs."""
    result = []
    for sample in samples:
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(sample):
            value = np.ascontiguousarray(sample[name])
            digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
            digest.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
        result.append(digest.digest())
    return tuple(result)


def few_inputs(calibration: Sequence[bytes], held_out: Sequence[bytes]) -> list[str]:
    """Lines where there are few inputs, or inputs repeat each other, by their digests."""
    lines = []
    for what, inputs in (("calibration", calibration), ("held-out", held_out)):
        if repeated := len(inputs) - len(set(inputs)):
            lines.append(f"{repeated} of {len(inputs)} {what} inputs repeat others: {len(set(inputs))} differ")
    if shared := sum(each in set(calibration) for each in held_out):
        lines.append(
            f"{shared} of {len(held_out)} held-out inputs were also calibrated on: the error of others may be larger"
        )
    ranges, errors = len(set(calibration)), len(set(held_out))
    if min(ranges, errors) < _FEW:
        lines.append(
            f"few inputs: {ranges} for the ranges and {errors} for the error, where {_FEW} of each are the least to "
            "rely on; give more data"
        )
    return lines


def constant_inputs(samples: Iterable[Mapping[str, np.ndarray]]) -> list[str]:
    """A line for each input that is one value throughout in at least half of the samples. Of integer inputs, such as
    masks, that is nothing special unless there are no others."""
    found: dict[str, list[object]] = {}
    floats, count = set[str](), 0
    for sample in samples:
        count += 1
        for name, value in sample.items():
            floats |= {name} if value.dtype.kind == "f" else set()
            constant = value.size > 1 and (value == value.flat[0]).all()
            found.setdefault(name, []).extend([value.flat[0]] if constant else [])
    lines = []
    for name, values in found.items():
        if (name in floats or not floats) and len(values) >= max(1, count / 2):
            which = f" ({values[0]})" if len({str(each) for each in values}) == 1 else ""
            lines.append(
                f"input {name} is one value throughout{which} in {len(values)} of {count} samples: "
                "check the data and how they are preprocessed"
            )
    return lines


def not_float(everything: Tally) -> str:
    """A line where outputs are not float, or ""; `everything` has all blocks in int8."""
    unchanged = everything.unchanged()
    if not unchanged:
        return ""
    shares = ", ".join(f"{name} {share:.2%}" for name, share in unchanged.items())
    if everything.counted.all():
        return (
            f"no output is float: the error is the share of values that change; with all blocks in int8 stay {shares}"
        )
    return f"outputs that are not float are left out of the error; with all blocks in int8 stay the same: {shares}"


def no_numbers(references: Sequence[Sequence[np.ndarray]], names: Sequence[str]) -> str:
    """A line where outputs of the float model have NaN, or "". Infinite values are masks."""
    found = []
    for index, name in enumerate(names):
        values = (as_array(each[index]) for each in references)
        count = sum(bool(np.isnan(each).any()) for each in values if each.dtype.kind == "f")
        if count:
            found.append(f"{name} for {count} of {len(references)} inputs")
    return f"the float model's output has NaN, which must stay NaN: {', '.join(found)}" if found else ""


def too_few_inputs(squares: np.ndarray, references: np.ndarray, names: Sequence[str]) -> str:
    """A line where the error of the worst part depends on which inputs were drawn, or "".

    `squares` and `references` [samples, parts] are ‖ŷ − y‖² and ‖y‖² with all blocks in int8. The relative standard
    error of √(Σ squares / Σ references) is that of a ratio, by linearisation, with n − 1 degrees of freedom.
    """
    count = len(squares)
    totals = references.sum(axis=0)
    if not (totals > 0.0).any():
        return ""
    errors = np.sqrt(np.divide(squares.sum(axis=0), totals, out=np.zeros_like(totals), where=totals > 0.0))
    worst = int(np.argmax(errors))
    if errors[worst] == 0.0:
        return ""
    if count < 2:
        return "measured on 1 input: nothing is known of how the error varies between inputs; give more data"
    ratio = squares[:, worst].sum() / totals[worst]
    residual = squares[:, worst] - ratio * references[:, worst]
    spread = np.sqrt(count / (count - 1) * np.sum(residual**2)) / squares[:, worst].sum() / 2.0
    if spread <= _UNSURE:
        return ""
    return (
        f"measured on {count} inputs: others may change the error of {names[worst]} ({errors[worst]:.2%} with all "
        f"blocks in int8) by {spread:.0%} (one standard error); give more data"
    )


def coarse_metric(metric: Metric, inputs: int) -> str:
    """A line where a metric that counts answers has too few of them to count, or ""."""
    if metric.smooth or inputs >= _COUNTED:
        return ""
    return (
        f"{metric.name} on {inputs} held-out inputs: where it counts answers, one of them is {1 / inputs:.1%}; "
        "give more data"
    )


def unlike_calibration(
    calibrated: Mapping[str, tuple[float, float]], held_out: Mapping[str, tuple[float, float]], graph: Graph
) -> str:
    """A line where held-out inputs leave the calibrated ranges, or "". Both map a tensor to its lowest and highest."""
    overflow = {}
    for tensor in graph.tensors:
        if tensor.name in calibrated and tensor.name in held_out:
            (low, high), (lower, higher) = calibrated[tensor.name], held_out[tensor.name]
            width = max(high, 0.0) - min(low, 0.0)
            if width > 0.0:
                overflow[tensor.name] = max(0.0, low - lower, higher - high) / width
    if not overflow:
        return ""
    middle = float(np.median([*overflow.values()]))
    beyond = {name: overflow[name] for name in graph.inputs if overflow.get(name, 0.0) > _OVERFLOW}
    if middle <= _OVERFLOW and not beyond:
        return ""
    worst = max(beyond or overflow, key=lambda name: overflow[name])
    return (
        f"held-out inputs are unlike the calibration inputs: {worst} leaves its calibrated range by "
        f"{overflow[worst]:.0%} of it, half of the tensors by {middle:.0%} or more: calibrate with inputs like these"
    )


def saturating_sums(scheme: Scheme, saturates: bool) -> str:
    """A line where int8 sums may lose their high part on this processor, or ""."""
    if not (saturates and scheme.may_saturate):
        return ""
    narrow = replace(scheme, reduced_range=True)
    return (
        f"this processor has no VNNI: sums of {scheme.activation}×{scheme.weight} products saturate at 16 bits; "
        f"{narrow} has weights of 7 bits, whose sums fit"
    )


def constant_outputs(references: Sequence[Sequence[np.ndarray]], names: Sequence[str]) -> str:
    """A line where an output is the same for every input, or "". `references` [samples][outputs]."""
    if len(references) < 2:
        return ""
    first = [as_array(each) for each in references[0]]
    dead = [
        name
        for index, name in enumerate(names)
        if all(np.array_equal(as_array(each[index]), first[index]) for each in islice(references, 1, None))
    ]
    if not dead:
        return ""
    return (
        f"output {', '.join(dead)} is the same for all {len(references)} inputs: its error says nothing of inputs; "
        "check how the data are preprocessed"
    )
