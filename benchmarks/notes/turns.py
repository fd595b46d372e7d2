"""Models that take turns, in sessions that are opened anew several times: one session of a model differs from the next
of the same model by more than its runs do.

Runs in any environment that has ONNX Runtime: python benchmarks/notes/turns.py SPEC.json
"""

import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

RUNS = 3  # in a row, of which the first is not counted: it finds its weights pushed out by the other models
LEAST, MOST = 3, 60


def _open(path: str, threads: int, provider: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[object] = ["CPUExecutionProvider"]
    if provider == "openvino":  # as the worker of `taglio compare` opens it
        config = {"device_type": "CPU", "num_of_threads": str(threads), "num_streams": "1", "precision": "FP32"}
        providers.insert(0, ("OpenVINOExecutionProvider", config))
    return ort.InferenceSession(path, options, providers=providers, enable_fallback=0)


def _seconds(session: ort.InferenceSession, feed: dict[str, object]) -> float:
    session.run(None, feed)
    start = time.perf_counter()
    for _ in range(RUNS - 1):
        session.run(None, feed)
    return (time.perf_counter() - start) / (RUNS - 1)


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    order, shuffle = list(spec["models"]), random.Random(0)
    openings = []
    with np.load(spec["arrays"]) as arrays:
        sample = arrays["held_out_0"][0]
    for _ in range(spec["openings"]):
        shuffle.shuffle(order)
        sessions = {
            key: _open(path, spec["threads"], provider) for key in order for path, provider in [spec["models"][key]]
        }
        feeds = {key: {session.get_inputs()[0].name: sample} for key, session in sessions.items()}
        rounds: list[dict[str, float]] = []
        start = time.perf_counter()
        while len(rounds) < LEAST or (
            len(rounds) < MOST and time.perf_counter() - start < spec["budget_s"] / spec["openings"]
        ):
            shuffle.shuffle(order)
            rounds.append({key: _seconds(sessions[key], feeds[key]) for key in order})
        openings.append(rounds[1:])
    sys.stdout.write(json.dumps(openings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
