"""Stand-ins for the models of the how-to pages, small and random, with data: `python -m tests.docs_models NAME`."""

import sys
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

from tests.models import Sketch


def detector(folder: Path) -> onnx.ModelProto:
    """Image 1x3x64x64 → rows of four box coordinates in pixels and two scores; a folder of pictures."""
    g = Sketch(3)
    x = g.input("image", 1, 3, 64, 64)
    for fan_in, fan_out in ((3, 32), (32, 32), (32, 32)):
        x = g.op("Relu", g.conv(x, fan_in, fan_out))
    x = g.op("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4])
    x = g.op("Relu", g.conv(x, 32, 48))
    rows = [
        g.op("Mul", g.op("Sigmoid", g.conv(x, 48, 4, kernel=1)), g.constant(np.float32(64))),
        g.op("Sigmoid", g.conv(x, 48, 2, kernel=1)),
    ]
    joined = g.op("Concat", *rows, axis=1)
    g.op("Transpose", g.op("Reshape", joined, g.constant(np.array([1, 6, -1]))), perm=[0, 2, 1])
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    for index in range(24):
        small = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(small).resize((64, 64)).save(folder / "images" / f"{index:02}.png")
    return g.model(g.rename(g.nodes[-1].output[0], "detections"))


def encoder(folder: Path) -> onnx.ModelProto:
    """Token ids 1xN → an embedding 1x64; 24 texts of 12 tokens."""
    g = Sketch(4)
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [1, 12])
    g.inputs.append(ids)
    x = g.op("Gather", g.weight(500, 64, gain=8.0), "input_ids")
    for _ in range(3):
        hidden = g.op("Relu", g.op("MatMul", x, g.weight(64, 256, gain=0.5)))
        x = g.op("Add", x, g.op("MatMul", hidden, g.weight(256, 64, gain=0.5)))
    g.op("ReduceMean", x, axes=[1], keepdims=0)
    np.savez(folder / "texts.npz", input_ids=np.random.default_rng(0).integers(0, 500, (24, 1, 12)))
    return g.model(g.rename(g.nodes[-1].output[0], "embedding"))


def speech(folder: Path) -> onnx.ModelProto:
    """Samples 1x1x1600 → log-probabilities 1x100x29; 24 clips."""
    g = Sketch(5)
    x = g.input("audio", 1, 1, 1600)
    for fan_in, fan_out, kernel, stride in ((1, 32, 16, 8), (32, 64, 4, 2), (64, 64, 3, 1)):
        pads = [(kernel - stride) // 2] * 2 if stride > 1 else [1, 1]
        x = g.op("Relu", g.op("Conv", x, g.weight(fan_out, fan_in, kernel), strides=[stride], pads=pads))
    x = g.op("MatMul", g.op("Transpose", x, perm=[0, 2, 1]), g.weight(64, 29))
    g.op("LogSoftmax", x, axis=2)
    np.save(folder / "clips.npy", np.random.default_rng(0).standard_normal((24, 1, 1600)).astype(np.float32))
    return g.model(g.rename(g.nodes[-1].output[0], "log_probabilities"))


def main() -> None:
    name, folder = sys.argv[1], Path()
    makers = {"detector": detector, "encoder": encoder, "speech": speech}
    onnx.save(makers[name](folder), folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
