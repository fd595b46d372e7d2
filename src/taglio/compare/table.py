"""The rows of each back end, as one explicit table. Measures and writes nothing.

Impossible rows are in the table too, with their reason, so that a comparison never omits one silently.
"""

from dataclasses import dataclass, replace
from itertools import product

from taglio.compare.row import Wanted
from taglio.quantize.scheme import ActivationType, Format, Scheme

FLOAT = "float32"
TOP_FLOPS = (10, 20)
FASTER = "speed-up > 1"
PROVIDER = " for the provider"
_S8U8 = "ONNX Runtime has no kernel for s8 activations with u8 weights: use s8s8"
_TYPES: tuple[tuple[ActivationType, ActivationType], ...] = (("u8", "u8"), ("u8", "s8"), ("s8", "s8"))
_FORMATS: tuple[Format, ...] = ("qdq", "qoperator")


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the model as ONNX, shared by all back ends that read ONNX: they run the same file.

    `scheme` is None for forms that do not quantise activations statically. `blocks` is a rule of `graph.select`, or
    FASTER for the blocks that run faster alone in int8 than alone in float.
    """

    key: str
    method: str
    scheme: Scheme | None = None
    blocks: str = "all"


def static_forms() -> tuple[Form, ...]:
    """Every static int8 form: format × types × symmetric or not × per channel or not; and u8s8 per channel with 7-bit
    weights, which processors without VNNI need."""
    every = [
        Form(f"{form}-{a}{w}-{'sym' if symmetric else 'asym'}-{'pc' if channel else 'pt'}", "static", scheme)
        for form, (a, w), symmetric, channel in product(_FORMATS, _TYPES, (False, True), (True, False))
        for scheme in (_scheme(form, a, w, symmetric, channel),)
    ]
    narrow = [
        replace(each, key=f"{each.key}-rr", scheme=replace(each.scheme, reduced_range=True))
        for each in every
        if each.scheme is not None and each.scheme.activation != each.scheme.weight and each.scheme.per_channel
    ]
    return (*every, *narrow)


def forms() -> tuple[Form, ...]:
    """Every ONNX form, float32 first."""
    weights: tuple[tuple[ActivationType, bool], ...] = (("s8", False), ("s8", True), ("u8", False))
    dynamic = [
        Form(f"dynamic-u8{weight}-{'pc' if channel else 'pt'}", "dynamic", _scheme("qdq", "u8", weight, False, channel))
        for weight, channel in weights
    ]
    rules: list[tuple[str, str]] = [(f"top-{count}", f"top-flops:{count}") for count in TOP_FLOPS] + [
        ("faster", FASTER)
    ]
    mixed = [
        Form(
            f"mixed-{'sym' if symmetric else 'asym'}-{name}", "mixed", _scheme("qdq", "u8", "s8", symmetric, True), rule
        )
        for symmetric, (name, rule) in product((False, True), rules)
    ]
    return (Form(FLOAT, FLOAT), Form("float16", "float16"), *dynamic, *static_forms(), *mixed)


def onnxruntime_rows(files: dict[str, str], refusals: dict[str, str]) -> tuple[Wanted, ...]:
    """Rows of ONNX Runtime's CPU provider. Each form's key is in either `files` or `refusals`."""
    backend = "onnxruntime"
    levels = [
        Wanted(f"{backend}/float32 {level}", backend, FLOAT, "onnx", "f32", engine=f"CPU {level}", file=files[FLOAT])
        for level in ("none", "basic", "extended")
    ]
    rows = [_onnx_row(backend, form, files, refusals, "CPU all") for form in forms()]
    impossible = [
        Wanted(f"{backend}/{form}-s8u8", backend, "static", form, "s8u8", engine="CPU all", refusal=_S8U8)
        for form in _FORMATS
    ]
    at = [
        _onnx_row(backend, form, files, refusals, f"CPU {level}", f" {level}")
        for form in static_forms()
        if form.key in ("qdq-u8s8-sym-pc", "qoperator-u8s8-sym-pc")
        for level in ("basic", "extended")
    ]
    return (rows[0], *levels, *rows[1:], *at, *impossible)


def openvino_rows(files: dict[str, str], refusals: dict[str, str]) -> tuple[Wanted, ...]:
    """Rows of OpenVINO's own runtime on the CPU plugin."""
    backend = "openvino"
    hints = [
        Wanted(f"{backend}/{name}", backend, name, "onnx", types, engine="CPU plugin", file=files[FLOAT])
        for name, types in (("bfloat16", "bf16"), ("float16", "f16"))
    ]
    quantized = [form for form in forms() if form.method not in (FLOAT, "float16")]
    rows = [_onnx_row(backend, form, files, refusals, "CPU plugin") for form in quantized]
    beside = [
        _onnx_row(backend, form, files, refusals, "CPU plugin, bf16", " + bf16")
        for form in static_forms()
        if form.key in ("qdq-u8s8-sym-pc", "qdq-s8s8-sym-pc", "qdq-u8s8-asym-pc")
    ]
    return (_onnx_row(backend, forms()[0], files, refusals, "CPU plugin"), *hints, *rows, *beside)


def openvino_provider_rows(files: dict[str, str], refusals: dict[str, str]) -> tuple[Wanted, ...]:
    """Rows of OpenVINO as ONNX Runtime's provider; some forms have a separate file for it."""
    backend = "openvino-ep"
    own_files = files | {key.removesuffix(PROVIDER): path for key, path in files.items() if key.endswith(PROVIDER)}
    bf16 = Wanted(f"{backend}/bfloat16", backend, "bfloat16", "onnx", "bf16", engine="OpenVINO all", file=files[FLOAT])
    own = Wanted(f"{backend}/float32 CPU provider", backend, FLOAT, "onnx", "f32", engine="CPU all", file=files[FLOAT])
    quantized = [form for form in forms() if form.method in ("dynamic", "static", "mixed")]
    rows = [_onnx_row(backend, form, own_files, refusals, "OpenVINO all") for form in quantized]
    return (_onnx_row(backend, forms()[0], files, refusals, "OpenVINO all"), own, bf16, *rows)


def _onnx_row(
    backend: str, form: Form, files: dict[str, str], refusals: dict[str, str], engine: str, suffix: str = ""
) -> Wanted:
    scheme = form.scheme
    static = scheme is not None and form.method in ("static", "mixed")
    return Wanted(
        f"{backend}/{form.key}{suffix}",
        backend,
        form.method,
        scheme.format if static and scheme else "onnx",
        f"{scheme.activation}{scheme.weight}" if scheme else {"float16": "f16"}.get(form.method, "f32"),
        scheme.activation_symmetry == "symmetric" if scheme else None,
        scheme.per_channel if scheme else None,
        engine,
        form.blocks if scheme else "",
        files.get(form.key, ""),
        refusals.get(form.key, ""),
    )


def _scheme(
    form: Format, activation: ActivationType, weight: ActivationType, symmetric: bool, per_channel: bool
) -> Scheme:
    return Scheme(
        form,
        activation,
        weight,
        "symmetric" if symmetric else "asymmetric",
        weight_symmetric=symmetric or weight == "s8",
        per_channel=per_channel,
    )
