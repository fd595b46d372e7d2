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

from claims import Claim, case_paths, decided, ms, options, report, run_case, seconds
from taglio.compare.environments import find
from taglio.graph import build
from taglio.model import load
from taglio.profile.layerwise import LayerCutter
from taglio.quantize.precision import FLOAT32
from taglio.quantize.qdq import QdqBuilder


def layer_sums(asked: argparse.Namespace) -> dict[str, float]:
    """Seconds of all layers of yolo11n-seg in float, each a model of its own, by provider."""
    model = load(case_paths("yolo11n-seg")[0], {})
    cutter = LayerCutter(model, QdqBuilder(model, build(model), {}))
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
    keys = ("qdq-u8s8-sym-pc", "qdq-s8s8-sym-pc", "float32 CPU provider", "bfloat16")
    result = run_case("yolo11n-seg", asked, "onnxruntime,openvino-ep,openvino", keys)
    plain = seconds(result, "onnxruntime/float32")
    provider, beside = seconds(result, "openvino-ep/float32"), seconds(result, "openvino-ep/float32 CPU provider")
    quantized = {
        backend: seconds(result, f"{backend}/qdq-s8s8-sym-pc") for backend in ("onnxruntime", "openvino-ep", "openvino")
    }
    sums = layer_sums(asked)
    claims = [
        Claim(
            "float is slower without OpenVINO",
            "so the text, which calls it very strange (the figures, sums of layers, are in screenshots)",
            f"whole model: OpenVINO provider {ms(provider)}, CPU provider of the same build {ms(beside)}, native "
            f"{ms(seconds(result, 'openvino/float32'))} (bf16 {ms(seconds(result, 'openvino/bfloat16'))}); sum of "
            f"layers, each alone: OpenVINO provider {ms(sums['openvino'])}, CPU provider {ms(sums['cpu'])}",
            decided(provider < beside),
            f"a sum of layers is {sums['openvino'] / provider:.2f} x the whole for OpenVINO and "
            f"{sums['cpu'] / beside:.2f} x for the CPU provider: what each loses of fusion and pays for each call",
        ),
        Claim(
            "s8s8 is slow on x86",
            "in ONNX Runtime",
            ", ".join(f"{backend} {ms(value)}" for backend, value in quantized.items()) + f" (float {ms(plain)})",
            decided(quantized["onnxruntime"] > quantized["openvino"]),
            "the same file on the same processor: it is ONNX Runtime, not the processor (see formats for its kernels)",
        ),
    ]
    return report("openvino_cpu", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
