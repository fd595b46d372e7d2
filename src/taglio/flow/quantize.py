"""Quantise chosen blocks under one scheme, without a plan. Writes nothing."""

from collections.abc import Sequence
from dataclasses import replace

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
from taglio.quantize.float16 import most_in_float16
from taglio.quantize.float16_range import in_true_float16
from taglio.quantize.precision import BFLOAT16, UNCALIBRATED, Precision, uncalibrated_forms
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme, parse_scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session
from taglio.runtimes.processor import instructions, sums_saturate

METHODS = ("static", "float16", *dict.fromkeys(form.name for form in UNCALIBRATED.values() if form != BFLOAT16))
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

    `method` is "static", "float16", "int8-weights", "int8-dynamic" or "int4-weights"; `scheme` is that of static int8,
    "" for the default on this processor; `blocks` is "all", "top-flops:K", "top-bytes:K" or name patterns. `also` gives
    other blocks another scheme, as SCHEME=PATTERN; later ones win. Raises BadOption.
    """
    work = work.telling(progress)
    if method not in METHODS:
        raise BadOption(f"`method` is {method}: use {' or '.join(METHODS)}")
    if also and method != "static":
        raise BadOption("`also` mixes schemes of static int8: use the method static")
    saturates = sums_saturate(instructions())
    static = parse_scheme(scheme) if scheme else default_scheme(saturates)
    if method == "static":
        work = work.settled(static)
    int8 = Precision("int8", static, "whole")
    form = next((form for form in uncalibrated_forms(saturates).values() if form.name == method), int8)
    candidates = select(work.graph, "all", form.misfit)
    if not candidates:
        raise BadOption(f"{work.name}: no block can be {form.name}{work.graph.refusal(form.misfit)}")
    names: Sequence[str] = select(work.graph, blocks, form.misfit, form.name)
    if not names:
        raise BadOption(f'{work.name}: `blocks` "{blocks}" matches no block: `taglio inspect` lists them')
    doubts: tuple[str, ...] = ()
    schemes: list[Scheme] = []
    if method == "float16":
        low_high = work.ranges(DEFAULT_SCHEME).low_high
        proto, names, doubts = most_in_float16(work.model, work.graph, names, low_high)
    elif method == "static":
        assignment = _assignment(work, names, static, also)
        schemes = [*dict.fromkeys(precision.scheme for precision in assignment.values() if precision.scheme)]
        names = tuple(assignment)
        ranges: dict[str, Ranges] = {scheme.calibration: work.ranges(scheme) for scheme in schemes}
        proto = QdqBuilder(work.model, work.graph, ranges).build(assignment)
        doubts = tuple(filter(None, (saturating_sums(scheme, saturates) for scheme in schemes)))
    else:
        proto = QdqBuilder(work.model, work.graph, {}).build(dict.fromkeys(names, form))
    result = _judged(work, method, names, len(candidates), proto)
    return proto, replace(result, schemes=tuple(map(str, schemes)), notes=(*result.notes, *doubts))


def default_scheme(saturates: bool) -> Scheme:
    """The scheme of static int8 if none is given: weights of 7 bits where sums of u8×s8 products saturate."""
    return DEFAULT_SCHEME.narrow if saturates else DEFAULT_SCHEME


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


def _judged(work: Work, method: str, names: Sequence[str], candidates: int, proto: onnx.ModelProto) -> Quantized:
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
        candidates=candidates,
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
