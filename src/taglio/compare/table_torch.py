"""The rows of PyTorch, as a table."""

from itertools import product

from taglio.compare.row import Wanted

_BACKEND = "pytorch"
ENGINES = ("x86", "onednn", "fbgemm", "qnnpack")
_FORMS = ("eager", "fx")
_INDUCTOR = "inductor (x86)"
_PT2E_ONLY = (
    "the only PT2E quantizer in PyTorch and torchao is X86InductorQuantizer, with per-channel symmetric weights and "
    "affine activations: other engines' quantizers come with ExecuTorch"
)


def torch_rows() -> tuple[Wanted, ...]:
    """Every row of PyTorch: form × method × engine × per channel or not × symmetric or not, where applicable."""
    floats = [
        _row("float32", "float32", "eager", "f32", "eager"),
        _row("float32 compiled", "float32", "eager", "f32", _INDUCTOR),
        _row("bfloat16", "bfloat16", "autocast", "bf16", "eager"),
        _row("bfloat16 compiled", "bfloat16", "autocast", "bf16", _INDUCTOR),
        _row("float32 cuda", "float32", "eager", "f32", "cuda"),
        _row("float16 cuda", "float16", "autocast", "f16", "cuda"),
        _row("float32 cuda compiled", "float32", "eager", "f32", "cuda inductor"),
    ]
    dynamic = [
        _row(f"{form}-dynamic-{_pc(channel)} {engine}", "dynamic", form, "u8s8", engine, per_channel=channel)
        for form, engine, channel in product(_FORMS, ENGINES, (True, False))
    ]
    trained = [
        _row(f"{form}-{method}-{_sym(symmetric)}-{_pc(channel)} {engine}", method, form, "u8s8", engine,
             symmetric=symmetric, per_channel=channel)
        for method, form, engine, symmetric, channel in product(
            ("static", "qat"), _FORMS, ENGINES, (False, True), (True, False)
        )
        if method == "static" or engine == "x86" or (channel and not symmetric)
    ]  # fmt: skip
    exported = [
        _row(f"pt2e-{method}-asym-pc", method, "pt2e", "u8s8", _INDUCTOR, symmetric=False, per_channel=True)
        for method in ("static", "dynamic", "qat")
    ]
    reference = _row("pt2e-static reference", "static", "pt2e", "u8s8", "x86 eager", symmetric=False, per_channel=True)
    elsewhere = (
        ("onednn", "onednn", False, True),
        ("fbgemm", "fbgemm", False, True),
        ("qnnpack", "qnnpack", False, True),
        ("per tensor", _INDUCTOR, False, False),
        ("symmetric", _INDUCTOR, True, True),
    )
    others = [
        _row(f"pt2e {what}", "static", "pt2e", "u8s8", engine, symmetric=sym, per_channel=pc, refusal=_PT2E_ONLY)
        for what, engine, sym, pc in elsewhere
    ]
    compiled = [row for row in floats if "inductor" in row.engine]
    eager = [row for row in floats if row not in compiled]
    return (*eager, *dynamic, *trained, reference, *compiled, *exported, *others)


def _row(
    key: str,
    method: str,
    form: str,
    types: str,
    engine: str,
    *,
    symmetric: bool | None = None,
    per_channel: bool | None = None,
    refusal: str = "",
) -> Wanted:
    return Wanted(f"{_BACKEND}/{key}", _BACKEND, method, form, types, symmetric, per_channel, engine, "", "", refusal)


def _pc(per_channel: bool) -> str:
    return "pc" if per_channel else "pt"


def _sym(symmetric: bool) -> str:
    return "sym" if symmetric else "asym"
