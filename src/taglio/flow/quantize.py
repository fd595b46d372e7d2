"""Quantise chosen blocks under one scheme, without a plan. Writes nothing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import onnx

from taglio import weights
from taglio.data.dataset import covering_rows, part
from taglio.error.doubts import saturating_sums
from taglio.error.tally import Tally
from taglio.errors import BadOption
from taglio.flow.outcome import Quantized
from taglio.flow.work import Work
from taglio.model.graph import match, select
from taglio.progress import Progress
from taglio.quantize.float16_range import beyond_float16, in_true_float16, left_in_float32
from taglio.quantize.library import dynamic, dynamic_blocks, float16, most, qoperator
from taglio.quantize.precision import UNCALIBRATED, Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme, parse_scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session
from taglio.runtimes.processor import instructions, sums_saturate

_UNCALIBRATED = {form.name: form for form in UNCALIBRATED.values() if form.form not in ("dynamic", "bfloat16")}
METHODS = ("static", "dynamic", "float16", *_UNCALIBRATED)
_MEASURED = 16


def quantize(
    work: Work,
    method: str = "static",
    *,
    scheme: str = "",
    blocks: str = "all",
    also: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[onnx.ModelProto, Quantized]:
    """The model with the chosen blocks quantised, and its error measured on held-out inputs.

    `method` is "static", "dynamic", "float16", "int8-weights" or "int4-weights"; `scheme` "" takes the method's default
    for this processor; `blocks` is "all", "top-flops:K", "top-bytes:K" or name patterns. `also` gives other blocks
    another scheme, as SCHEME=PATTERN; later ones win. Raises BadOption.
    """
    work = work.telling(progress)
    if method not in METHODS:
        raise BadOption(f"`method` is {method}: use {' or '.join(METHODS)}")
    saturates = sums_saturate(instructions())
    form = parse_scheme(scheme) if scheme else default_scheme(method, saturates)
    if method == "static" and form.format == "qdq":
        work = work.settled(form)
    names: Sequence[str] = select(work.graph, blocks)
    if not names:
        if not work.graph.candidates():
            raise BadOption(f"{work.name}: no block can be int8{work.graph.refusal()}")
        raise BadOption(f'{work.name}: `blocks` "{blocks}" matches no block: `taglio inspect` lists them')
    rule = ":" in blocks or blocks == "all"  # not names: take those of its blocks that have such a form
    if rule:
        fitting = _fitting(work, method, names)
        if not fitting:
            raise BadOption(f"{work.name}: no block can be {method}: use another `method`")
        names = fitting
    used = [form] if method in ("static", "dynamic") else []
    note = ""
    if method == "float16":
        names, note = _within_float16(work, names)
    if method in _UNCALIBRATED:
        proto = QdqBuilder(work.model, work.graph, {}).build(dict.fromkeys(names, _UNCALIBRATED[method]))
    elif method == "static" and form.format == "qdq":
        assignment = _assignment(work, names, form, also)
        schemes = [precision.scheme for precision in assignment.values() if precision.scheme]
        names, used = tuple(assignment), [*dict.fromkeys(schemes)]
        ranges: dict[str, Ranges] = {scheme.calibration: work.ranges(scheme) for scheme in used}
        proto = QdqBuilder(work.model, work.graph, ranges).build(assignment)
    elif also:
        raise BadOption("`also` mixes schemes in the qdq format only: use the static method and a qdq scheme")
    else:
        make = _by_tool(work, method, form)
        if rule:
            proto, names, left_out = most(work.graph, make, names)
            note = "; ".join(filter(None, (note, left_out)))
        else:
            proto = make(names)
    result = _judged(work, method, names, proto)
    doubts = (note, *(saturating_sums(scheme, saturates) for scheme in used))
    return proto, replace(result, schemes=tuple(map(str, used)), notes=(*result.notes, *filter(None, doubts)))


def default_scheme(method: str, saturates: bool) -> Scheme:
    """The scheme of a method for which none is given: weights of 7 bits where sums of u8×s8 products saturate."""
    scheme = Scheme(per_channel=method != "dynamic")
    return scheme.narrow if saturates else scheme


def _fitting(work: Work, method: str, names: Sequence[str]) -> Sequence[str]:
    """Those of the blocks `names` that have the form that a method gives."""
    if method == "dynamic":
        able = set(dynamic_blocks(work.model, work.graph))
        return [name for name in names if name in able]
    fits = _UNCALIBRATED[method].fits if method in _UNCALIBRATED else None
    return [name for name in names if fits is None or fits(work.graph.block(name))]


def _within_float16(work: Work, names: Sequence[str]) -> tuple[Sequence[str], str]:
    """Those of the blocks `names` whose values float16 can hold, and a line about the others, "" if there are none."""
    low_high = work.ranges(DEFAULT_SCHEME).low_high
    beyond = beyond_float16(work.model, work.graph, names, low_high)
    if len(beyond) == len(names):
        raise BadOption(f"{work.name}: no block can be float16: {beyond[names[0]]}: use another `method`")
    return [name for name in names if name not in beyond], left_in_float32(beyond, len(names))


def _by_tool(work: Work, method: str, form: Scheme) -> Callable[[Sequence[str]], onnx.ModelProto]:
    """What quantises chosen blocks by ONNX Runtime's own tools."""
    if method == "float16":
        return partial(float16, work.model, work.graph)
    if method == "dynamic":
        return partial(dynamic, work.model, work.graph, scheme=form)
    return partial(qoperator, work.model, work.graph, scheme=form, ranges=work.ranges(form))


def _assignment(work: Work, names: Sequence[str], form: Scheme, also: Sequence[str]) -> dict[str, Precision]:
    """The blocks `names` in int8 under `form`, and those of `also` under their own schemes."""
    assignment = {name: Precision("int8", form, "whole") for name in names}
    for text in also:
        other, _, pattern = text.partition("=")
        if not pattern:
            raise BadOption(f'`also` "{text}": write SCHEME=PATTERN, such as qdq-s8s8-sym-pc=*head*')
        for name in match(work.graph, [pattern]):
            assignment[name] = Precision("int8", parse_scheme(other), "whole")
    return assignment


def _judged(work: Work, method: str, names: Sequence[str], proto: onnx.ModelProto) -> Quantized:
    """What was written, with its error on held-out inputs."""
    deployed, arithmetic = _as_computed(proto) if method == "float16" else (proto, "")
    after = open_session(deployed, SessionOptions(1), label="the quantised model")
    total, wanted = Tally(work.parts, watched=True), list(work.model.outputs)
    held_out = work.data.held_out
    measured = part(held_out, covering_rows(held_out.samples)[:_MEASURED])
    for sample, reference in zip(measured.samples, work.float_answers(data=measured), strict=True):
        total.add(reference, run_session(after, wanted, sample, held_out.source))
    parts = total.parts()
    return Quantized(
        path="",
        method=method,
        blocks=len(names),
        candidates=len(work.graph.candidates()),
        size_bytes=weights.size_bytes(proto),
        float_size_bytes=weights.size_bytes(work.model.proto),
        error=max(part.loss for part in parts),
        notes=tuple(filter(None, (*work.remarks, arithmetic))),
        parts=parts,
    )


def _as_computed(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """A float16 model with the rounding of true float16, and a line on how its error was measured."""
    rounded = in_true_float16(proto)
    if rounded is None:
        return proto, (
            "the error was measured in ONNX Runtime, which computes most of float16 in float32 here: on a processor "
            "with float16 arithmetic it may be larger"
        )
    return rounded, "the error is that of true float16: tensors are rounded to it wherever the model writes one"
