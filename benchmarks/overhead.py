"""What a session of taglio adds to a run of its runtime: both run one file on the same sample, in turn.

The rival is the runtime's own call on the file that the session opened: `InferenceSession.run` of ONNX Runtime, and
`infer` of an OpenVINO request, whose outputs are copied as a caller who keeps them must.

python benchmarks/overhead.py [--cases digits,ultraface-rfb-320,MiniLM-L3] [--threads 1] [--seconds 4]
"""

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

import numpy as np
import onnxruntime as ort

from cases import CASES, markdown, paths, write
from taglio.components.build import Manifest
from taglio.components.cut import Component
from taglio.lab.build import Built
from taglio.model.inputs import random_feed
from taglio.model.load import Model, load
from taglio.optional import optional
from taglio.runtimes import onnxruntime, openvino
from taglio.runtimes.places import refusal
from taglio.scratch import scratch

MINILM = "MiniLM-L3"
NETWORKS = ("digits", "ultraface-rfb-320", MINILM)
_TOKENS = 32
Feed = dict[str, np.ndarray]


def network(name: str) -> tuple[Model, Feed]:
    """A network as taglio reads it, and a sample for it."""
    if name != MINILM:
        model = load(paths(CASES[name])[0])
        return model, random_feed(model.inputs, 0)
    model = load(paths(CASES["paraphrase-MiniLM-L3-v2-6000"])[0])
    ids = np.arange(_TOKENS, dtype=np.int64)[None] + 1000
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return model, {spec.name: values[spec.name] for spec in model.inputs}


def own_run(path: Path, runtime: str, threads: int) -> Callable[[Feed], object]:
    """The runtime's own call for the file at `path`."""
    if runtime == openvino.NAME:
        ov = optional("openvino", "pip install 'taglio[openvino]'")
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        request = ov.Core().compile_model(path, "CPU", settings).create_infer_request()
        return lambda feed: [np.array(value) for value in request.infer(feed, share_inputs=True).values()]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def race(name: str, runtime: str, threads: int, seconds: float) -> tuple[float, float, int]:
    """Seconds of the runtime's own run and of the session's, and the rounds. Of each the fastest tenth counts, since
    other programs can only add."""
    model, sample = network(name)
    names = tuple(spec.name for spec in model.inputs)
    component = Component(name, "local", (), model.proto, names, model.outputs)
    built = Built(Manifest(model.sha256, names, model.outputs, ()), (component,), runtimes={"local": runtime})
    with scratch() as folder:
        manifest = built.write(folder)
        calls = {"own": own_run(folder / manifest.pieces[0].file, runtime, threads)}
    calls["session"] = built.session(threads).run
    order = random.Random(0)
    took: dict[str, list[float]] = {"own": [], "session": []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for which in order.sample(list(calls), 2):
            start = time.perf_counter()
            calls[which](sample)
            took[which].append(time.perf_counter() - start)
    own, session = (quantiles(seconds, n=10)[0] for seconds in took.values())
    return own, session, len(took["own"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each network and runtime")
    options = parser.parse_args()
    rows, figures = [], {}
    for name in options.cases.split(","):
        for runtime in (onnxruntime.NAME, openvino.NAME):
            if reason := refusal(runtime):
                print(f"{runtime}: skipped: {reason}")
                continue
            own, session, rounds = race(name, runtime, options.threads, options.seconds)
            figures[f"{name} {runtime}"] = {"own_s": own, "session_s": session, "rounds": rounds}
            took = [f"{seconds * 1e6:.1f} µs" for seconds in (own, session, session - own)]
            rows.append([name, runtime, *took, str(rounds)])
    table = markdown(["network", "runtime", "its own run", "session", "added", "rounds"], rows)
    print(table)
    print(f"\n{write('overhead', figures, table)}")


if __name__ == "__main__":
    main()
