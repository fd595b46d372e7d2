"""What a plan needs of a processor, for processors of both kinds, as values."""

import pytest

from taglio.deploy.processor_needs import lacks, unsafe_processors, wide_sums
from taglio.quantize.precision import BFLOAT16, FLOAT32, UNCALIBRATED, Precision, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME, parse_scheme

AVX2, VNNI, ARM = ("avx2",), ("avx2", "avx512f", "avx512_vnni"), ("asimd", "asimddp")
BF16 = (*VNNI, "avx512_bf16")
_, INT8, ANCHOR = precisions(DEFAULT_SCHEME)
WIDE = [INT8]


@pytest.mark.parametrize(
    ("forms", "wide"),
    [
        ([FLOAT32, BFLOAT16], ()),
        ([INT8, INT8, ANCHOR], ("int8", "int8-anchor")),
        (precisions(DEFAULT_SCHEME.narrow), ()),
        (precisions(parse_scheme("u8s8-asym-pc+int8-dynamic")), ("int8", "int8-anchor", "int8-dynamic")),
        (precisions(parse_scheme("u8s8-asym-pc-rr+int8-dynamic")), ()),
        ([UNCALIBRATED["int8-weights"], UNCALIBRATED["int4-weights"]], ()),
    ],
)
def test_forms_with_weights_of_8_bits_need_wide_sums(forms: list[Precision], wide: tuple[str, ...]) -> None:
    assert wide_sums(forms) == ", ".join(wide)


def test_where_a_plan_is_not_safe_depends_on_where_it_was_measured() -> None:
    assert unsafe_processors([], VNNI) == ()
    (line,) = unsafe_processors(WIDE, VNNI)
    assert str(line).startswith("not safe on x86 processors without VNNI: sums of 8-bit weights (int8) saturate there")
    assert unsafe_processors(WIDE, ARM) == (line,)
    (line,) = unsafe_processors(WIDE, AVX2)
    assert "were measured on a processor without VNNI, where sums saturate" in str(line)
    (line,) = unsafe_processors([BFLOAT16], BF16)
    assert str(line).startswith("not as fast on processors without bfloat16")


@pytest.mark.parametrize(
    ("measured_on", "here", "says"),
    [
        (VNNI, VNNI, ""),
        (VNNI, ARM, ""),
        (AVX2, AVX2, ""),
        (VNNI, AVX2, "this processor lacks VNNI"),
        (VNNI, (), "this processor lacks VNNI"),  # not known: assumed to lack it
        (AVX2, VNNI, ""),  # it can do more: `taglio check` measures the error
    ],
)
def test_a_processor_that_cannot_add_so_is_named(
    measured_on: tuple[str, ...], here: tuple[str, ...], says: str
) -> None:
    lines = lacks(WIDE, measured_on, here)
    assert len(lines) == bool(says)
    assert all(line.startswith(says) and line.endswith("optimise here, or with `portable`") for line in lines)


def test_a_processor_without_bfloat16_is_named() -> None:
    for have in (BF16, (*VNNI, "amx_bf16"), (*ARM, "bf16")):
        assert lacks([BFLOAT16], BF16, have) == ()
    (line,) = lacks([BFLOAT16], BF16, VNNI)
    assert str(line).startswith("this processor lacks bfloat16 (AVX512_BF16 or AMX_BF16)")
    assert lacks([FLOAT32], BF16, AVX2) == ()
