"""Operations of a Keras network's layers by TensorFlow's profiler, beside our own count of the same network in ONNX.

python benchmarks/notes/keras_counts.py
"""

import sys
from collections import defaultdict

from claims import FOLDER, Claim, decided, keras_network, options, report, run
from taglio.compare.row import Layer
from taglio.model.graph import build
from taglio.model.load import load

NAME = "resnet50"


def _by_kind(layers: list[Layer]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for layer in layers:
        found[layer.kind] += layer.flops or 0
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _shown(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {value / 1e6:.2f}" for kind, value in counts.items()) + " million"


def main() -> int:
    asked = options(__doc__)
    try:
        source = keras_network("ResNet50V2")
    except FileNotFoundError as error:
        print(f"skipped {error}")
        return 0
    result = run(NAME, source, "", asked, "keras", ("float32",), layers=True)
    layers = [layer for layer in result.layers if layer.backend == "keras"]
    theirs = _by_kind(layers)
    model = load(FOLDER / NAME / "work" / "float32.onnx", {})
    ours: dict[str, int] = defaultdict(int)
    elements: dict[str, int] = defaultdict(int)
    for block in build(model).blocks:
        ours[block.kind.split("+")[0]] += block.flops
        elements[block.kind] += 1
    counted, total = sum(theirs.values()), sum(ours.values())
    relus = [layer for layer in layers if layer.kind in ("Activation", "ReLU")]
    one_each = sum((layer.float_bytes or 0) // 4 for layer in relus)
    norms = [layer for layer in layers if layer.kind == "BatchNormalization"]
    normed = sum(layer.flops or 0 for layer in norms)
    claims = [
        Claim(
            "TensorFlow's profiler counts no operations for a ReLU",
            '"re_lu does no arithmetic"; yet in sub-models some ReLU have operations',
            f"{len(relus)} ReLU layers, {sum(layer.flops or 0 for layer in relus)} operations",
            decided(not any(layer.flops for layer in relus)),
            f"taglio counts one an element, {one_each / 1e6:.2f} million here",
        ),
        Claim(
            "convolution is one operation in the report, BatchNormalization several",
            "screenshots of both",
            f"{len(norms)} BatchNormalization layers have {normed / 1e6:.2f} million operations, of "
            f"{counted / 1e6:.2f} million in all",
            decided(normed > 0),
            "ONNX folds a BatchNormalization into the convolution before it where there is one: "
            + (", ".join(f"{count} {kind}" for kind, count in sorted(elements.items(), key=lambda e: -e[1])[:6]))
            + " are the blocks of the same network",
        ),
        Claim(
            "both counts agree but for ReLU and BatchNormalization",
            "not in the notes: this tool's own count is checked against the one they used",
            f"TensorFlow {counted / 1e6:.2f} million ({_shown(theirs)}), taglio {total / 1e6:.2f} million",
            decided(abs(counted - total) < 0.01 * counted),
            f"difference {(total - counted) / 1e6:+.2f} million ({(total - counted) / counted:+.2%}): folded "
            "BatchNormalization, biases of zeros, which the ONNX form leaves out, and ReLU, which taglio alone counts; "
            "taglio by first operator of the block: "
            f"{_shown(dict(sorted(ours.items(), key=lambda each: -each[1])))}",
        ),
    ]
    return report("keras_counts", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
