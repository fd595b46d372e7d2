"""Requests and rows for tests that run no back end."""

from pathlib import Path

from taglio.compare.request import Request
from taglio.compare.row import Latency, Row, RowCheck, WantedRow


def wanted(key: str, backend: str = "onnxruntime", method: str = "static") -> WantedRow:
    return WantedRow(f"{backend}/{key}", backend, method, "qdq", "u8s8", engine="CPU")


def request(folder: Path, rows: tuple[WantedRow, ...]) -> Request:
    return Request(
        task="rows", backend="onnxruntime", model="m.onnx", kind="onnx", onnx="m.onnx", inputs=("x",), shapes=((1, 2),),
        outputs=("y",), folder=str(folder), rows=rows, budget_s=0.01, memory_bytes=2**40,
    )  # fmt: skip


def measured(key: str, milliseconds: float, error: float, backend: str = "onnxruntime", spread: float = 0.01) -> Row:
    method = "float32" if key == "float32" else "static"
    latency = Latency(milliseconds * 1e-3, spread * 1e-3, milliseconds * 1.1e-3, 10, 10e-3, 10e-3)
    checked = RowCheck(1_500_000, error, error, {"QLinearConv": 3, "Relu": 1}, {"QLinearConv": 3})
    return Row(wanted(key, backend, method), "measured", "", checked, latency)
