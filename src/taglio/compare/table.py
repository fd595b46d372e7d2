"""The rows of each back end, as one explicit table. Measures and writes nothing.

A form of the model that could not be written is a row too, with the reason. What no Linux CPU can run has no row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from taglio.compare.row import WantedRow
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme

FLOAT = "float32"

# ---- LiteRT
_CONVERTER, _QUANTIZER = "TFLite converter", "ai-edge-quantizer"

# ---- PyTorch
_INDUCTOR = "inductor (x86)"


@dataclass(frozen=True, slots=True)
class OnnxForm:
    """A form of the model as ONNX, shared by all back ends that read ONNX: they run the same file.

    `scheme` is None for forms that do not quantise activations statically.
    """

    key: str
    method: str
    scheme: Scheme | None = None


def static_forms() -> tuple[OnnxForm, ...]:
    """Every static int8 form."""
    schemes = (DEFAULT_SCHEME, Scheme(signed=True), DEFAULT_SCHEME.narrow)
    return tuple(OnnxForm(str(scheme), "static", scheme) for scheme in schemes)


def forms() -> tuple[OnnxForm, ...]:
    """Every ONNX form, float32 first."""
    wide = Scheme(uncalibrated=("int8-dynamic",))
    dynamic, narrow = OnnxForm("int8-dynamic", "dynamic", wide), OnnxForm("int8-dynamic-rr", "dynamic", wide.narrow)
    return (OnnxForm(FLOAT, FLOAT), OnnxForm("float16", "float16"), dynamic, narrow, *static_forms())


def rows_of(
    backend: str, files: Mapping[str, str], refusals: Mapping[str, str], max_error: float
) -> tuple[WantedRow, ...]:
    """The rows of a back end. Each ONNX form's key is in either `files` or `refusals`, for back ends that read them."""
    match backend:
        case "onnxruntime":
            return _onnxruntime(files, refusals)
        case "openvino":
            return _openvino(files, refusals)
        case "nncf":
            return _nncf(max_error)
        case "onnxsim":
            return _onnxsim(max_error)
        case "litert":
            return _litert()
        case "pytorch":
            return _pytorch()
        case "qkeras":
            return _qkeras()
    calls = {"": "tf.function", " XLA": "XLA", " call": "call", " predict": "predict"}
    return tuple(_row(backend, f"float32{key}", FLOAT, "keras", "f32", engine) for key, engine in calls.items())


def _row(backend: str, key: str, method: str, form: str, types: str, engine: str, **how: Any) -> WantedRow:
    return WantedRow(f"{backend}/{key}", backend, method, form, types, engine=engine, **how)


def _onnxruntime(files: Mapping[str, str], refusals: Mapping[str, str]) -> tuple[WantedRow, ...]:
    """ONNX Runtime's CPU provider."""
    return tuple(_onnx_row("onnxruntime", form, "CPU", files=files, refusals=refusals) for form in forms())


def _openvino(files: Mapping[str, str], refusals: Mapping[str, str]) -> tuple[WantedRow, ...]:
    """OpenVINO's own runtime on the CPU plugin."""
    row = partial(_onnx_row, "openvino", files=files, refusals=refusals)
    hints = [
        _row("openvino", name, name, "onnx", types, "CPU plugin", file=files[FLOAT])
        for name, types in (("bfloat16", "bf16"), ("float16", "f16"))
    ]
    rows = [row(form, "CPU plugin") for form in forms() if form.method not in (FLOAT, "float16")]
    beside = [
        row(form, "CPU plugin, bf16", " + bf16")
        for form in static_forms()
        if form.scheme and not form.scheme.reduced_range
    ]
    return (row(forms()[0], "CPU plugin"), *hints, *rows, *beside)


def _nncf(max_error: float) -> tuple[WantedRow, ...]:
    """NNCF's presets and accuracy control, and weights alone: in OpenVINO, with float parts in float32 or bfloat16."""
    row = partial(_row, "nncf")
    weights = {"int8_asym": "f32u8", "int8_sym": "f32s8", "int4_asym": "f32u4", "int4_sym": "f32s4"}
    rows = [row(FLOAT, FLOAT, "onnx", "f32", "CPU plugin")]
    for engine, suffix in (("CPU plugin", ""), ("CPU plugin, bf16", " + bf16")):
        rows += [
            row(f"{form}{suffix}", "static", form, "u8s8", engine) for form in ("performance", "mixed", "transformer")
        ]
        rows.append(row(f"accuracy-control{suffix}", "mixed", "accuracy control", "u8s8", engine, max_error=max_error))
        rows += [
            row(f"{form.replace('_', '-')}-weights{suffix}", "weights only", form, types, engine)
            for form, types in weights.items()
        ]
    return tuple(rows)


def _onnxsim(max_error: float) -> tuple[WantedRow, ...]:
    row = partial(_row, "onnxsim", form="onnx", engine="CPU")
    return (row(FLOAT, FLOAT, types="f32"), row("recommended", "recommended", types="", max_error=max_error))


def _onnx_row(
    backend: str,
    form: OnnxForm,
    engine: str,
    suffix: str = "",
    *,
    files: Mapping[str, str],
    refusals: Mapping[str, str],
) -> WantedRow:
    scheme = form.scheme
    row = partial(_row, backend, f"{form.key}{suffix}", form.method, engine=engine)
    source: dict[str, Any] = {"file": files.get(form.key, ""), "refusal": refusals.get(form.key, "")}
    if scheme is None:
        return row("onnx", "f16" if form.method == "float16" else "f32", **source)
    return row("onnx" if form.method == "dynamic" else "qdq", "s8s8" if scheme.signed else "u8s8", **source)


def _litert() -> tuple[WantedRow, ...]:
    row = partial(_row, "litert")

    def static(key: str, form: str, *, per_channel: bool = True) -> WantedRow:
        return row(key, "static", form, "s8s8", "XNNPACK", per_channel=per_channel)

    def quantizer(key: str, method: str, types: str) -> WantedRow:
        return row(f"{key}-aeq", method, _QUANTIZER, types, "XNNPACK")

    return (
        row(FLOAT, FLOAT, _CONVERTER, "f32", "XNNPACK"),
        row("float32 CompiledModel", FLOAT, _CONVERTER, "f32", "CompiledModel CPU"),
        row("float16", "float16", _CONVERTER, "f16", "XNNPACK"),
        row("dynamic", "dynamic", _CONVERTER, "f32s8", "XNNPACK"),
        static("int8", _CONVERTER),
        static("int8-pt", _CONVERTER, per_channel=False),
        static("int8-io", f"{_CONVERTER}, int8 in and out"),
        row("int16x8", "int16x8", _CONVERTER, "s16s8", "XNNPACK"),
        static("int8-aeq", _QUANTIZER),
        static("int8-aeq-pt", _QUANTIZER, per_channel=False),
        quantizer("dynamic", "dynamic", "f32s8"),
        quantizer("weights", "weights only", "f32s8"),
        quantizer("int16x8", "int16x8", "s16s8"),
    )


def _pytorch() -> tuple[WantedRow, ...]:
    """Float in eager mode and compiled; int8 by PT2E, compiled."""
    row = partial(_row, "pytorch")
    pt2e = partial(row, form="pt2e", types="u8s8", engine=_INDUCTOR)
    return (
        row("float32", FLOAT, "eager", "f32", "eager"),
        row("bfloat16", "bfloat16", "autocast", "bf16", "eager"),
        row("float32 compiled", FLOAT, "eager", "f32", _INDUCTOR),
        row("bfloat16 compiled", "bfloat16", "autocast", "bf16", _INDUCTOR),
        *(pt2e(f"pt2e-{method}-asym-pc", method) for method in ("static", "dynamic")),
    )


def _qkeras() -> tuple[WantedRow, ...]:
    """Quantised after training, with fewer and fewer bits, in TensorFlow."""
    row = partial(_row, "qkeras", engine="tf.function")
    static = partial(row, method="static", form="qkeras")
    return (
        row("float32", FLOAT, "tf_keras", "f32"),
        *(static(f"ptq-{n}", types=f"u{n}s{n}") for n in (8, 6, 4)),
    )
