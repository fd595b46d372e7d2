"""ONNX Runtime's CPU provider on the rows' ONNX files, and which kernels ran."""

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from taglio.compare.request import Request
from taglio.compare.row import WantedRow
from taglio.compare.workers.contract import Array, Opened, file_bytes

PROVIDERS = ["CPUExecutionProvider"]
_SUFFIX = "_kernel_time"
_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
# Kernels whose only int8 input, the weights, may be packed, and then is not in the profile.
_PACKED = frozenset({"DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM"})
_INT8 = ("uint8", "int8")


class OnnxRuntime:
    """Sessions on the CPU."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def open(self, wanted: WantedRow) -> Opened:
        """A session on `wanted.file`, with all optimisations."""
        path = Path(wanted.file)
        counts, int8 = self._kernels(path)  # before the session that stays: two take twice the memory
        session = self.session(path)
        names = [value.name for value in session.get_inputs()]

        def run(sample: Sequence[Array]) -> list[Array]:
            outputs: list[Array] = session.run(None, dict(zip(names, sample, strict=True)))
            return outputs

        return Opened(run, file_bytes(path), counts, int8, file=wanted.file)

    def session(self, path: Path, profile: Path | None = None) -> ort.InferenceSession:
        """Open `path` with the options of every timed session."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._request.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        return ort.InferenceSession(str(path), options, providers=PROVIDERS, enable_fallback=0)

    def _kernels(self, path: Path) -> tuple[dict[str, int], dict[str, int]]:
        """Counts by type of the kernels in one profiled inference, and of those that computed on int8."""
        with tempfile.TemporaryDirectory(dir=self._request.folder) as folder:
            session = self.session(path, Path(folder) / "profile")
            feed = dict(zip((value.name for value in session.get_inputs()), self._request.held_out[0], strict=True))
            session.run(None, feed)
            events = json.loads(Path(session.end_profiling()).read_text())
        kernels = [event["args"] for event in events if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX)]
        counts = Counter(args["op_name"] for args in kernels)
        int8 = Counter(args["op_name"] for args in kernels if _computes_int8(args))
        return dict(counts), dict(int8)


def _computes_int8(args: dict[str, Any]) -> bool:
    if args["op_name"] in _CONVERSIONS:
        return False
    types = {kind for entry in args.get("input_type_shape", []) for kind in entry}
    return args["op_name"] in _PACKED or bool(types & set(_INT8))


make = OnnxRuntime
