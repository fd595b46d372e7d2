"""What people do today: a list of blocks chosen by a rule, quantised by ONNX Runtime's own tool. Times nothing."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from taglio.error.tally import Tally
from taglio.lab.work import Work
from taglio.model.graph import Graph
from taglio.quantize.effective import effective
from taglio.quantize.precision import Precision
from taglio.runtimes.onnxruntime import SessionOptions, open_session

TOP_K = (5, 10, 20, 40, 80)
# What ONNX Runtime's documentation recommends for x86 with VNNI.
RECOMMENDED = "QDQ, u8 activations, s8 weights, asymmetric, per channel, min-max"


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._feeds: Iterator[Mapping[str, np.ndarray]] = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        feed = next(self._feeds, None)
        return None if feed is None else dict(feed)


def quantized(
    source: Path, target: Path, samples: Sequence[Mapping[str, np.ndarray]], operators: Sequence[str] | None = None
) -> None:
    """Write `source` to `target`, its `operators` (None: all) by `quantize_static` as RECOMMENDED."""
    quantize_static(
        source,
        target,
        _Samples(samples),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        nodes_to_quantize=operators,
    )


def by_onnxruntime(work: Work, blocks: Mapping[str, Precision]) -> onnx.ModelProto:
    """The operators of `blocks` quantised, calibrated on the same samples."""
    names = [name for block in blocks for name in work.graph.block(block).operators]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(work.model.proto, source)
        quantized(source, target, work.data.calibration.samples, names)
        return onnx.load(target)


def model_error(work: Work, proto: onnx.ModelProto) -> float:
    """Relative L2 of a quantised model on all held-out samples."""
    options = SessionOptions(work.setup.threads, spinning=True)
    sessions = [open_session(model, options) for model in (work.model.proto, proto)]
    total = Tally(work.model.outputs)
    for sample in work.data.held_out.samples:
        reference, outputs = (session.run(list(work.model.outputs), sample) for session in sessions)
        total.add(reference, outputs)
    return total.value()


def fixed(
    graph: Graph, int8: Precision, everything: dict[str, Precision], speedup: dict[str, float]
) -> dict[str, dict[str, Precision]]:
    """Choices that do not depend on the bound, by name."""
    result: dict[str, dict[str, Precision]] = {"all int8": everything}
    flops = sorted((b for b in graph.candidates() if not b.movement), key=lambda b: -b.flops)
    for count in TOP_K:
        if count < len(flops):
            result[f"top-{count} FLOPs"] = effective(graph, {b.name: int8 for b in flops[:count]}, int8)
    faster = {name: int8 for name, ratio in speedup.items() if ratio > 1.0 and name in everything}
    result["speed-up > 1"] = effective(graph, faster, int8)
    return result


def excluding(
    graph: Graph, int8: Precision, everything: dict[str, Precision], alone: dict[str, float]
) -> Iterator[dict[str, Precision]]:
    """All int8, then with the block that hurts most alone put back to float, and so on: NNCF's accuracy control."""
    chosen = {name: precision for name, precision in everything.items() if not graph.block(name).movement}
    for name in sorted(chosen, key=lambda block: -alone.get(block, 0.0)):
        yield effective(graph, chosen, int8)
        del chosen[name]
    yield {}
