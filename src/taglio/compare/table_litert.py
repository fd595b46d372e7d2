"""The rows of LiteRT, as a table."""

from collections.abc import Sequence

from taglio.compare.row import Wanted
from taglio.compare.table import FASTER, FLOAT, TOP_FLOPS

_BACKEND = "litert"
_CONVERTER, _QUANTIZER = "TFLite converter", "ai-edge-quantizer"
_ENGINES = (("", "XNNPACK"), (" built-in", "built-in kernels"), (" reference", "reference kernels"))
# Delegates in LiteRT's documentation, and the library that load_delegate would need.
_DELEGATES = (
    ("GPU delegate", "libtensorflowlite_gpu_delegate.so"),
    ("Hexagon", "libhexagon_delegate.so"),
    ("Edge TPU", "libedgetpu.so.1"),
    ("Flex", "libtensorflowlite_flex.so"),
)
_ELSEWHERE = (
    ("NNAPI", "Android only: it has no library on this system and no Python interface"),
    ("Core ML", "Apple systems only: it has no library on this system and no Python interface"),
    ("stable delegates", "the interface exists for C, C++ and Java, not for Python"),
)


def litert_rows(threads: int) -> tuple[Wanted, ...]:
    """Every row of LiteRT."""
    one = [(" 1 thread", "XNNPACK, 1 thread")] if threads > 1 else []
    rows = [
        *_each(FLOAT, _CONVERTER, "f32", FLOAT, [*_ENGINES, *one]),
        _row("float32 CompiledModel", FLOAT, _CONVERTER, "f32", engine="CompiledModel CPU"),
        *_each("float16", _CONVERTER, "f16", "float16", _ENGINES[:2]),
        *_each("dynamic", _CONVERTER, "f32s8", "dynamic", _ENGINES[:2], symmetric=True, per_channel=True),
        *_each("static", _CONVERTER, "s8s8", "int8", [*_ENGINES, *one], symmetric=False, per_channel=True),
        _static("int8-pt", _CONVERTER, per_channel=False),
        _static("int8-io", f"{_CONVERTER}, int8 in and out"),
        *_each("int16x8", _CONVERTER, "s16s8", "int16x8", _ENGINES[:2], symmetric=True, per_channel=True),
        _static("int8-aeq", _QUANTIZER, blocks="all"),
        _static("int8-aeq-pt", _QUANTIZER, per_channel=False, blocks="all"),
        _row("dynamic-aeq", "dynamic", _QUANTIZER, "f32s8", symmetric=True, per_channel=True, blocks="all"),
        _row("weights-aeq", "weights only", _QUANTIZER, "f32s8", symmetric=True, per_channel=True, blocks="all"),
        _row("int16x8-aeq", "int16x8", _QUANTIZER, "s16s8", symmetric=True, per_channel=True, blocks="all"),
        *(_static(f"mixed-top-{count}", _QUANTIZER, blocks=f"top-flops:{count}") for count in TOP_FLOPS),
        _static("mixed-faster", _QUANTIZER, blocks=FASTER),
        *(_row(f"float32 {name}", FLOAT, _CONVERTER, "f32", engine=f"CompiledModel {name}") for name in ("GPU", "NPU")),
        *(_row(f"float32 {name}", FLOAT, _CONVERTER, "f32", engine=f"delegate {lib}") for name, lib in _DELEGATES),
        *(
            _row(f"float32 {name}", FLOAT, _CONVERTER, "f32", engine="delegate", refusal=why)
            for name, why in _ELSEWHERE
        ),
    ]  # fmt: skip
    return tuple(rows)


def _each(
    method: str,
    form: str,
    types: str,
    key: str,
    engines: Sequence[tuple[str, str]],
    *,
    symmetric: bool | None = None,
    per_channel: bool | None = None,
) -> list[Wanted]:
    return [
        _row(f"{key}{suffix}", method, form, types, engine=engine, symmetric=symmetric, per_channel=per_channel)
        for suffix, engine in engines
    ]


def _static(key: str, form: str, *, per_channel: bool = True, blocks: str = "") -> Wanted:
    return _row(key, "static", form, "s8s8", symmetric=False, per_channel=per_channel, blocks=blocks)


def _row(
    key: str,
    method: str,
    form: str,
    types: str,
    *,
    engine: str = "XNNPACK",
    symmetric: bool | None = None,
    per_channel: bool | None = None,
    blocks: str = "",
    refusal: str = "",
) -> Wanted:
    return Wanted(
        f"{_BACKEND}/{key}", _BACKEND, method, form, types, symmetric, per_channel, engine, blocks, "", refusal
    )
