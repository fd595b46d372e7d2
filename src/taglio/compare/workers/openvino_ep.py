"""ONNX Runtime with OpenVINO as its provider: how many partitions the provider took, and what was left to the CPU."""

from collections.abc import Iterator
from pathlib import Path

import onnxruntime as ort

from taglio.compare.request import Request
from taglio.compare.row import Layer, Wanted
from taglio.compare.workers.contract import Data, Opened, Refused
from taglio.compare.workers.onnxruntime import OnnxRuntime

PROVIDER = "OpenVINOExecutionProvider"


def versions() -> dict[str, str]:
    """Of what matters to the figures."""
    return {"onnxruntime-openvino": str(ort.__version__)}


def make(request: Request, data: Data) -> "OpenVinoProvider":
    """The back end. Raises Refused where this build of ONNX Runtime has no such provider."""
    if PROVIDER not in ort.get_available_providers():
        raise Refused(f"this ONNX Runtime has no {PROVIDER}, only {', '.join(ort.get_available_providers())}")
    return OpenVinoProvider(request, data)


class OpenVinoProvider:
    """Sessions of the provider, and of the CPU provider of the same build beside it."""

    def __init__(self, request: Request, data: Data) -> None:
        cpu = "CPUExecutionProvider"
        self._cpu = OnnxRuntime(request, data, [cpu])
        self._by_precision = {
            precision: OnnxRuntime(request, data, [(PROVIDER, _options(request.threads, precision)), cpu])
            for precision in ("FP32", "ACCURACY")
        }

    def open(self, wanted: Wanted) -> Opened:
        """A session on `wanted.file`."""
        if wanted.engine.startswith("CPU"):
            return self._cpu.open(wanted)
        provider = self._by_precision["ACCURACY" if wanted.method == "bfloat16" else "FP32"]
        opened = provider.open(wanted)
        partitions = {name: count for name, count in opened.operators.items() if "OpenVINO" in name}
        left = {name: count for name, count in opened.operators.items() if name not in partitions}
        count = sum(partitions.values())
        note = f"{count} partition{'s' if count != 1 else ''} by the provider"
        note += f", left to the CPU provider: {', '.join(f'{v} {k}' for k, v in left.items())}" if left else ""
        return Opened(opened.run, Path(wanted.file).stat().st_size, opened.operators, {}, (note,))

    def layers(self) -> Iterator[Layer]:
        """None: a compiled partition is one kernel."""
        raise Refused("the provider shows one kernel per partition: see openvino for the operators inside")


def _options(threads: int, precision: str) -> dict[str, str]:
    return {"device_type": "CPU", "num_of_threads": str(threads), "num_streams": "1", "precision": precision}
