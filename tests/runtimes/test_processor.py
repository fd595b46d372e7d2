"""What follows for int8 from the instruction sets of a processor, and that ONNX Runtime's kernels do so here."""

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from taglio.runtimes import processor
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.processor import capped, listed, sums_saturate
from tests.models import parsed
from tests.processor import SATURATES

ROWS, DEPTH, COLUMNS = 4, 64, 16


@pytest.mark.parametrize(
    ("have", "saturates"),
    [
        (("avx2",), True),
        (("avx2", "avx_vnni"), False),
        (("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"), False),
        (("asimd", "asimddp", "i8mm"), False),
        ((), True),  # nothing is known: 7-bit weights are right anywhere
    ],
)
def test_sums_saturate_on_x86_before_vnni(have: Sequence[str], saturates: bool) -> None:
    assert sums_saturate(have) == saturates


@pytest.mark.parametrize(
    ("content", "machine", "have"),
    [
        ("model name\t: Some CPU\nflags\t\t: fpu avx2 avx_vnni sse\n", "x86_64", ("avx2", "avx_vnni")),
        ("Features\t: fp asimd asimddp\n", "aarch64", ("asimd", "asimddp")),
        (None, "arm64", ("asimd",)),  # macOS lists nothing, and every 64-bit Arm has it
        (None, "x86_64", ()),
    ],
)
def test_the_instruction_sets_are_those_that_the_system_lists(
    content: str | None, machine: str, have: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(processor, "CPUINFO", file)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert listed.__wrapped__() == have


@pytest.mark.parametrize(
    ("cap", "left"),
    [
        ("", ("avx2", "avx512f", "avx512_vnni", "amx_int8")),
        ("AVX512_CORE_AMX", ("avx2", "avx512f", "avx512_vnni", "amx_int8")),
        ("AVX2", ("avx2",)),
        ("avx2", ("avx2",)),
    ],
)
def test_a_cap_on_one_runtime_is_one_for_all_decisions(cap: str, left: tuple[str, ...]) -> None:
    """What is built must be right in every runtime."""
    assert capped(("avx2", "avx512f", "avx512_vnni", "amx_int8"), cap) == left


def product(operator: str, second: np.ndarray, *more: np.ndarray, **how: int) -> np.ndarray:
    """What ONNX Runtime makes of ROWS x DEPTH largest activations times `second`."""
    integer = operator == "MatMulInteger"
    first = np.full((ROWS, DEPTH), 255, np.uint8) if integer else np.ones((ROWS, DEPTH), np.float32)
    constants = {f"c{index}": value for index, value in enumerate((second, *more))}
    attributes = ", ".join(f"{name} = {value}" for name, value in how.items())
    node = f"{operator} {f'<{attributes}>' if how else ''} (x, {', '.join(constants)})"
    kind = "uint8" if integer else "float"
    model = parsed(f"({kind}[{ROWS}, {DEPTH}] x) => (y) {{ y = {node} }}", constants)
    (answer,) = open_session(model, SessionOptions(1)).run(None, {"x": first})
    return np.asarray(answer)


def test_what_follows_from_the_instruction_sets_is_what_this_processor_computes() -> None:
    if not listed():
        pytest.skip("nothing is known of this processor")
    wide = product("MatMulInteger", np.full((DEPTH, COLUMNS), 127, np.int8))
    assert bool((wide != DEPTH * 255 * 127).any()) == SATURATES
    narrow = product("MatMulInteger", np.full((DEPTH, COLUMNS), 64, np.int8))
    assert np.all(narrow == DEPTH * 255 * 64)


@pytest.mark.parametrize(("largest", "fits"), [(127, not SATURATES), (64, True)])
def test_the_product_with_a_scale_at_run_time_saturates_alike(largest: int, fits: bool) -> None:
    scale, zero = np.full(COLUMNS, 1.0 / largest, np.float32), np.zeros(COLUMNS, np.int8)
    weights = np.full((DEPTH, COLUMNS), largest, np.int8)
    products = product("com.microsoft.DynamicQuantizeMatMul", weights, scale, zero)
    assert np.allclose(products, DEPTH, rtol=0.01) == fits


@pytest.mark.parametrize("bits", [8, 4])
def test_products_by_blocks_of_weights_saturate_nowhere(bits: int) -> None:
    """Their kernels do not add in 16 bits, so that int8-weights and int4-weights ask for no instruction set."""
    packed = np.full((COLUMNS, DEPTH // 32, 32 * bits // 8), 255, np.uint8)
    scale = np.full(COLUMNS * DEPTH // 32, 1.0 / (2 ** (bits - 1) - 1), np.float32)
    how = {"K": DEPTH, "N": COLUMNS, "bits": bits, "block_size": 32, "accuracy_level": 4}
    products = product("com.microsoft.MatMulNBits", packed, scale, **how)
    assert np.allclose(products, DEPTH, rtol=0.01)
