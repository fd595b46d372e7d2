"""Every layer as a model of its own, through two providers of one ONNX Runtime: the notes' way to time a network.

Runs in the environment of ONNX Runtime's OpenVINO provider: python benchmarks/notes/layer_sums.py FOLDER THREADS
"""

import json
import sys
import time
from pathlib import Path
from statistics import fmean

import numpy as np
import onnxruntime as ort

RUNS = 10
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}


def seconds(path: Path, providers: list[object], threads: int) -> float:
    """Mean of ten runs after one that is not counted, as in the notes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    rng = np.random.default_rng(0)
    feed = {each.name: rng.random(each.shape).astype(TYPES[each.type]) for each in session.get_inputs()}
    taken = []
    for _ in range(1 + RUNS):
        start = time.perf_counter()
        session.run(None, feed)
        taken.append(time.perf_counter() - start)
    return fmean(taken[1:])


def main() -> int:
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    # As the worker of `taglio compare` opens them.
    config = {"device_type": "CPU", "num_of_threads": str(threads), "num_streams": "1", "precision": "FP32"}
    provider = ("OpenVINOExecutionProvider", config)
    sums = {"openvino": 0.0, "cpu": 0.0}
    for path in sorted(folder.glob("*.onnx")):
        sums["cpu"] += seconds(path, ["CPUExecutionProvider"], threads)
        sums["openvino"] += seconds(path, [provider, "CPUExecutionProvider"], threads)
    sys.stdout.write(json.dumps(sums))
    return 0


if __name__ == "__main__":
    sys.exit(main())
