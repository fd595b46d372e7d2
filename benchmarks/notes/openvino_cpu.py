"""OpenVINO against ONNX Runtime's CPU provider on yolo11n-seg, and the sum of layers against the whole.

python benchmarks/notes/openvino_cpu.py
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

from claims import Claim, case_paths, decided, ms, options, report, row, run_case, seconds
from kernels import kernels, largest
from pairs import turns
from taglio.compare.environments import find
from taglio.compare.result import Comparison
from taglio.model.graph import build
from taglio.model.load import load
from taglio.profile.layerwise import LayerCutter
from taglio.quantize.precision import FLOAT32
from taglio.quantize.qdq import QdqBuilder

NETWORK, SIGNED = "yolo11n-seg", "qdq-s8s8-sym-pc"


def against(result: Comparison, key: str) -> float:
    """Seconds of ONNX Runtime's float model, which had a turn in the same rounds, over a row's."""
    latency = row(result, key).latency
    assert latency is not None
    assert latency.against_reference is not None
    return latency.against_reference


def layer_sums(asked: argparse.Namespace) -> dict[str, float]:
    """Seconds of all layers in float, each a model of its own, by provider."""
    model = load(case_paths(NETWORK)[0], {})
    graph = build(model)
    cutter = LayerCutter(model, graph, QdqBuilder(model, graph, {}))
    interpreter = find("openvino-ep").interpreter
    assert interpreter is not None
    with tempfile.TemporaryDirectory() as folder:
        for index, block in enumerate(build(model).blocks):
            onnx.save(cutter.layer(block, FLOAT32, "upstream"), Path(folder) / f"{index:04d}.onnx")
        script = Path(__file__).parent / "layer_sums.py"
        done = subprocess.run(
            [interpreter, script, folder, str(asked.threads)], capture_output=True, text=True, check=True
        )
    sums: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return sums


def main() -> int:
    asked = options(__doc__)
    for backend in ("openvino", "openvino-ep"):
        if (place := find(backend)).interpreter is None:
            print(f"skipped: {place.reason}")
            return 0
    keys = ("qdq-u8s8-sym-pc", SIGNED, "float32 CPU provider", "bfloat16")
    result = run_case(NETWORK, asked, "onnxruntime,openvino-ep,openvino", keys)
    own = ["openvino-ep/float32", "openvino-ep/float32 CPU provider", f"openvino-ep/{SIGNED}"]
    taken = turns(NETWORK, result, own, 60.0 * asked.effort)
    provider, beside, quantized = (taken.seconds(key) for key in own)
    ratio = taken.ratio(own[0], own[1])
    int8 = {each: against(result, f"{each}/{SIGNED}") for each in ("onnxruntime", "openvino-ep", "openvino")}
    sums = layer_sums(asked)
    over = {"OpenVINO": sums["openvino"] / provider, "CPU": sums["cpu"] / beside}
    native = {key: seconds(result, f"openvino/{key}") for key in ("float32", "bfloat16")}
    spent = kernels(NETWORK, result, ("float32",))["float32"]
    compiled = row(result, "openvino/float32").checked
    assert compiled is not None
    parts = ", ".join(f"{count} {kind}" for kind, count in sorted(compiled.operators.items(), key=lambda e: -e[1])[:6])
    claims = [
        Claim(
            "float is slower without OpenVINO",
            "so the text, which calls it very strange (the figures, sums of layers, are in screenshots)",
            f"whole model: OpenVINO provider {ms(provider)}, CPU provider of the same build {ms(beside)}, "
            f"ratio {ratio}; natively {ms(native['float32'])} (bf16 {ms(native['bfloat16'])}); "
            f"sum of layers, each alone: OpenVINO provider {ms(sums['openvino'])}, CPU provider {ms(sums['cpu'])}",
            ratio.below_one(),
            f"what runs, CPU provider of ONNX Runtime's own build: {largest(spent, 5)}; OpenVINO's "
            f"compiled graph has {sum(compiled.operators.values())} parts, {parts}: activations are part of their "
            "convolution there and kernels of their own here",
        ),
        Claim(
            "a sum of layers is near to the time of the whole",
            "the layers' times are summed; the measured whole was then lower than predicted",
            ", ".join(f"sum / whole, {key} provider: {value:.2f}" for key, value in over.items()),
            decided(max(over.values()) < 1.1),
            "a layer alone is a call of its own, fuses with no neighbour and gives its output in the plain layout",
        ),
        Claim(
            "s8s8 is slow on x86",
            "in ONNX Runtime",
            "speed over ONNX Runtime's float model, in turn: "
            + ", ".join(f"{key} {value:.2f} x" for key, value in int8.items())
            + f" ({ms(quantized)} through the provider)",
            decided(int8["onnxruntime"] < 1.0 < int8["openvino"]),
            "the same file on the same processor is fast in OpenVINO: it is ONNX Runtime's kernels, not the processor "
            "(formats says which); confirmed means slow in ONNX Runtime and fast in OpenVINO",
        ),
    ]
    return report("openvino_cpu", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
