"""NNCF's ways to make an ONNX file smaller and faster, as OpenVINO files. Run by an interpreter that has NNCF; times
nothing and knows nothing of taglio.

python rivals_nncf.py MODEL.onnx FOLDER_OF_NPZ OUT
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import nncf
import numpy as np
import openvino


def main() -> None:
    model, data, out = (Path(word) for word in sys.argv[1:4])
    feeds = [dict(np.load(path)) for path in sorted(data.glob("*.npz"))]
    dataset, reasons = nncf.Dataset(feeds), {}

    def read() -> openvino.Model:
        return openvino.Core().read_model(str(model))

    def ptq(**options: object) -> openvino.Model:
        return nncf.quantize(read(), dataset, subset_size=len(feeds), **options)

    ways: dict[str, Callable[[], openvino.Model]] = {
        "NNCF PTQ, mixed": lambda: ptq(preset=nncf.QuantizationPreset.MIXED),
        "NNCF PTQ, transformer": lambda: ptq(model_type=nncf.ModelType.TRANSFORMER),
        "NNCF int8 weights": lambda: nncf.compress_weights(read(), mode=nncf.CompressWeightsMode.INT8_ASYM),
    }
    for index, (name, make) in enumerate(ways.items()):
        try:
            openvino.save_model(make(), str(out / f"nncf-{index}.xml"), compress_to_fp16=False)
            reasons[name] = ""
        except Exception as error:  # whatever NNCF cannot do is a row with a reason
            reasons[name] = " ".join(str(error).split())[:200] or type(error).__name__
    (out / "nncf.json").write_text(json.dumps(reasons))


if __name__ == "__main__":
    main()
