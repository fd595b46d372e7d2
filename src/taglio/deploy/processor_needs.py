"""The instruction sets that a plan needs to answer as measured. Pure functions of forms and instruction sets.

Two things change answers between processors, and no runtime reports either:

1. *Sums of u8×s8 products.* x86 processors before VNNI add two products in 16 bits, which saturate if weights have 8
   bits. With VNNI, and on Arm, sums are exact. ONNX Runtime's kernels do so, and OpenVINO's
   (docs.openvino.ai, "Saturation (overflow) issue workaround").
2. *bfloat16.* Where a processor has no instructions for it, OpenVINO computes in float32 instead: the answers come
   nearer to float's, and the speed is lost.
"""

from collections.abc import Collection

from taglio.notes import Kind, Note
from taglio.quantize.precision import BFLOAT16, Precision
from taglio.runtimes.processor import computes_bfloat16, sums_saturate

_VNNI = "VNNI (AVX512_VNNI, AVX_VNNI or AMX_INT8; Arm needs none)"
_BFLOAT16 = "bfloat16 (AVX512_BF16 or AMX_BF16)"


def wide_sums(forms: Collection[Precision]) -> str:
    """The names of the forms whose answers depend on how a processor adds u8×s8 products."""
    return ", ".join(dict.fromkeys(form.name for form in forms if form.may_saturate))


def unsafe_processors(forms: Collection[Precision], measured_on: Collection[str]) -> tuple[Note, ...]:
    """The processors on which answers or speed of a plan with blocks in these `forms` differ from those measured on a
    processor with the instruction sets `measured_on`, a note each."""
    notes = []
    if wide := wide_sums(forms):
        sums = f"8-bit weights ({wide})"
        if sums_saturate(measured_on):
            text = (
                f"{sums} were measured on a processor without VNNI, where sums saturate: with VNNI and on Arm they are "
                "exact, and answers differ; forms that answer alike everywhere: --portable (in Python: portable=True)"
            )
        else:
            text = (
                f"not safe on x86 processors without VNNI: sums of {sums} saturate there, and the error was not "
                "measured; forms that answer alike everywhere: --portable (in Python: portable=True)"
            )
        notes.append(Note(Kind.UNSAFE_PROCESSOR, text))
    if BFLOAT16 in forms:
        text = (
            "not as fast on processors without bfloat16: OpenVINO computes in float32 there without a warning; forms "
            "that need none: --portable (in Python: portable=True)"
        )
        notes.append(Note(Kind.SLOW_PROCESSOR, text))
    return tuple(notes)


def lacks(forms: Collection[Precision], measured_on: Collection[str], here: Collection[str]) -> tuple[str, ...]:
    """The needs of a plan with blocks in these `forms` that a processor with the instruction sets `here` does not meet,
    one line each, with what to do. The plan was measured on a processor with `measured_on`. A processor that can do
    more lacks nothing, although answers differ where its sums are exact."""
    lines = []
    wide = wide_sums(forms)
    if wide and sums_saturate(here) and not sums_saturate(measured_on):
        lines.append(
            f"this processor lacks {_VNNI}: sums of {wide} saturate here, and did not where the error was measured: "
            "optimise here, or with `portable`"
        )
    if BFLOAT16 in forms and not computes_bfloat16(here):
        lines.append(
            f"this processor lacks {_BFLOAT16}: OpenVINO computes in float32 here without a warning, so the speed-up "
            "does not hold: optimise here, or with `portable`"
        )
    return tuple(lines)
