"""ONNX Runtime with the OpenVINO provider: how many partitions the provider took, and what was left to the CPU."""

import onnxruntime as ort

from taglio.compare.request import Request
from taglio.compare.row import Wanted
from taglio.compare.workers.contract import Opened, Refused
from taglio.compare.workers.sessions import Sessions
from taglio.runtimes.openvino_words import complaint

PROVIDER = "OpenVINOExecutionProvider"


class OpenVinoProvider:
    """Sessions of the provider, and of the CPU provider of the same build."""

    def __init__(self, request: Request) -> None:
        """Raises Refused if this build of ONNX Runtime lacks the provider."""
        if PROVIDER not in ort.get_available_providers():
            raise Refused(f"this ONNX Runtime has no {PROVIDER}, only {', '.join(ort.get_available_providers())}")
        cpu = "CPUExecutionProvider"
        options = {
            "device_type": "CPU", "num_of_threads": str(request.threads), "num_streams": "1", "precision": "FP32",
        }  # fmt: skip
        self._cpu = Sessions(request, [cpu])
        self._provider = Sessions(request, [(PROVIDER, options), cpu])

    def open(self, wanted: Wanted) -> Opened:
        """A session on `wanted.file`."""
        if wanted.engine.startswith("CPU"):
            return self._cpu.open(wanted)
        try:
            opened = self._provider.open(wanted)
        except Exception as error:  # an error of ONNX Runtime with OpenVINO's message
            if message := complaint(error):
                raise Refused(message, "failed") from error
            raise
        partitions = {name: count for name, count in opened.operators.items() if "OpenVINO" in name}
        on_cpu = {name: count for name, count in opened.operators.items() if name not in partitions}
        count = sum(partitions.values())
        note = f"{count} partition{'s' if count != 1 else ''} by the provider, which does not report what runs inside"
        note += f"; left to the CPU provider: {', '.join(f'{v} {k}' for k, v in on_cpu.items())}" if on_cpu else ""
        int8 = {name: count for name, count in opened.int8_operators.items() if name in on_cpu}
        return Opened(opened.run, opened.size_bytes, on_cpu, int8, (note,), wanted.file)


make = OpenVinoProvider
