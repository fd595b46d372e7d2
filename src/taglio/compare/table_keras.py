"""The rows of Keras and QKeras, as a table."""

from taglio.compare.row import Wanted

_CALLS = (("", "tf.function"), (" XLA", "XLA"), (" call", "call"), (" predict", "predict"))
_BITS = (8, 6, 4)


def keras_rows() -> tuple[Wanted, ...]:
    """Keras' rows: ways to call the float model."""
    return tuple(_row("keras", f"float32{suffix}", "float32", "keras", "f32", engine) for suffix, engine in _CALLS)


def qkeras_rows() -> tuple[Wanted, ...]:
    """QKeras' rows: quantised after training and by training, with fewer and fewer bits; in TensorFlow and TFLite."""
    backend = "qkeras"
    rows = [
        _row(backend, "float32", "float32", "tf_keras", "f32", "tf.function"),
        _row(backend, "float32 TFLite", "float32", "tflite", "f32", "TFLite"),
    ]
    for method, key in (("static", "ptq"), ("qat", "qat")):
        rows += [
            _row(backend, f"{key}-{bits}", method, "qkeras", f"u{bits}s{bits}", "tf.function", quantized=True)
            for bits in _BITS
        ]
        rows += [
            _row(backend, f"{key}-8 TFLite", method, "tflite", "u8s8", "TFLite", quantized=True),
            _row(backend, f"{key}-8 TFLite int8", method, "tflite int8", "u8s8", "TFLite", quantized=True),
        ]
    return tuple(rows)


def _row(backend: str, key: str, method: str, form: str, types: str, engine: str, *, quantized: bool = False) -> Wanted:
    known = True if quantized else None
    return Wanted(f"{backend}/{key}", backend, method, form, types, known, known, engine)
