"""Quantise chosen blocks under one scheme, without a plan. Writes nothing."""

import onnx

from taglio import weights
from taglio.compare.float16 import float16, most_in_float16
from taglio.data.dataset import covering_rows, part
from taglio.error.doubts import not_float, saturating_sums
from taglio.error.tally import Tally
from taglio.errors import BadOption
from taglio.flow.outcome import Quantized
from taglio.lab.work import Work
from taglio.model.select import match
from taglio.progress import Progress
from taglio.quantize.precision import BFLOAT16, UNCALIBRATED, Precision, uncalibrated_forms
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme, parse_scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session
from taglio.runtimes.processor import instructions, sums_saturate

METHODS = ("static", "float16", *(name for name in UNCALIBRATED if name != BFLOAT16.name))
_MEASURED = 16


def quantize(
    work: Work,
    method: str = "static",
    *,
    scheme: str = "",
    blocks: str = "all",
    progress: Progress | None = None,
) -> tuple[onnx.ModelProto, Quantized]:
    """The model with the chosen blocks quantised, and its error measured on held-out inputs.

    `method` is "static", "float16", "int8-weights", "int8-dynamic" or "int4-weights"; `scheme` is that of static int8,
    "" for the default on this processor; `blocks` is "all", or name patterns with commas between. Raises BadOption.
    """
    work = work.telling(progress)
    if method not in METHODS:
        raise BadOption(f"`method` is {method}: use {' or '.join(METHODS)}")
    saturates = sums_saturate(instructions())
    static = parse_scheme(scheme) if scheme else default_scheme(saturates)
    if method == "static":
        work = work.settled(static)
    int8 = Precision("int8", static)
    form = next((form for name, form in uncalibrated_forms(saturates).items() if name == method), int8)
    candidates = tuple(block.name for block in work.graph.blocks if form.fits(block))
    if not candidates:
        raise BadOption(f"{work.name}: no block can be {form.name}{work.graph.refusal(form.misfit)}")
    names = candidates if blocks == "all" else match(work.graph, blocks.split(","), form.misfit, form.name)
    doubts: tuple[str, ...] = ()
    measured: onnx.ModelProto | None = None
    if method == "float16":
        converted = most_in_float16(work.model, work.graph, names, work.ranges().low_high)
        proto, names = converted.proto, converted.blocks
        measured = float16(work.model, work.graph, names, rounded=True)
        doubts = ("the error was measured with every float16 tensor rounded to float16", *converted.left)
    elif method == "static":
        proto = QdqBuilder(work.model, work.graph, work.ranges()).build(dict.fromkeys(names, int8))
        saturation = saturating_sums(static, saturates)
        doubts = (saturation.text,) if saturation is not None else ()
    else:
        proto = QdqBuilder(work.model, work.graph).build(dict.fromkeys(names, form))
    total = _judged(work, measured or proto)
    parts = total.parts()
    notes = (*(note.text for note in (*work.notes, not_float(total, "")) if note is not None), *doubts)
    return proto, Quantized(
        path="",
        method=method,
        blocks=len(names),
        candidates=len(candidates),
        size_bytes=weights.size_bytes(proto),
        float_size_bytes=weights.size_bytes(work.model.proto),
        error=max(part.loss for part in parts),
        notes=notes,
        parts=parts,
        scheme=str(static) if method == "static" else "",
    )


def default_scheme(saturates: bool) -> Scheme:
    """The scheme of static int8 if none is given: weights of 7 bits where sums of u8×s8 products saturate."""
    return DEFAULT_SCHEME.narrow if saturates else DEFAULT_SCHEME


def _judged(work: Work, proto: onnx.ModelProto) -> Tally:
    """The error of a model on held-out inputs."""
    after = open_session(proto, SessionOptions(1), label="the quantised model")
    total, wanted = Tally(work.parts, watched=True), list(work.model.outputs)
    held_out = work.data.held_out
    inputs = part(held_out, covering_rows(held_out.samples)[:_MEASURED])
    for sample, reference in zip(inputs.samples, work.float_answers(data=inputs), strict=True):
        total.add(reference, run_session(after, wanted, sample, held_out.source))
    return total
