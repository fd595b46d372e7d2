"""ONNX Runtime with the OpenVINO provider: how many partitions the provider took, and what was left to the CPU."""

import onnxruntime as ort

from taglio.compare.request import Request
from taglio.compare.row import Wanted
from taglio.compare.workers.contract import Data, Opened, Refused
from taglio.compare.workers.loop import distance
from taglio.compare.workers.sessions import Sessions
from taglio.runtimes.openvino_words import complaint

PROVIDER = "OpenVINOExecutionProvider"
# bfloat16 keeps 8 bits: a smaller difference shows that it was not used.
_LESS_THAN_BF16 = 1e-5


class OpenVinoProvider:
    """Sessions of the provider, and of the CPU provider of the same build."""

    def __init__(self, request: Request, data: Data) -> None:
        """Raises Refused if this build of ONNX Runtime lacks the provider."""
        if PROVIDER not in ort.get_available_providers():
            raise Refused(f"this ONNX Runtime has no {PROVIDER}, only {', '.join(ort.get_available_providers())}")
        cpu = "CPUExecutionProvider"
        self._sample = data.held_out[0]
        self._cpu = Sessions(request, data, [cpu])
        self._by_precision = {
            precision: Sessions(request, data, [(PROVIDER, _options(request.threads, precision)), cpu])
            for precision in ("FP32", "ACCURACY")
        }

    def open(self, wanted: Wanted) -> Opened:
        """A session on `wanted.file`."""
        if wanted.engine.startswith("CPU"):
            return self._cpu.open(wanted)
        provider = self._by_precision["ACCURACY" if wanted.method == "bfloat16" else "FP32"]
        try:
            opened = provider.open(wanted)
        except Exception as error:  # an error of ONNX Runtime with OpenVINO's message
            if said := complaint(error):
                raise Refused(said, "failed") from error
            raise
        if wanted.method == "bfloat16":
            plain = self._by_precision["FP32"].open(wanted)
            if distance([plain.run(self._sample)], [opened.run(self._sample)]) < _LESS_THAN_BF16:
                raise Refused("on a CPU the provider takes only FP32 and ACCURACY, and ACCURACY gave float32's values")
        partitions = {name: count for name, count in opened.operators.items() if "OpenVINO" in name}
        left = {name: count for name, count in opened.operators.items() if name not in partitions}
        count = sum(partitions.values())
        note = f"{count} partition{'s' if count != 1 else ''} by the provider, which does not report what runs inside"
        note += f"; left to the CPU provider: {', '.join(f'{v} {k}' for k, v in left.items())}" if left else ""
        int8 = {name: count for name, count in opened.int8_operators.items() if name in left}
        return Opened(opened.run, opened.size_bytes, left, int8, (note,), wanted.file)


def _options(threads: int, precision: str) -> dict[str, str]:
    return {"device_type": "CPU", "num_of_threads": str(threads), "num_streams": "1", "precision": precision}


make = OpenVinoProvider
