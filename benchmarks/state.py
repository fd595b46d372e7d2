"""Does state stay where it is? Sessions of steps over two emulated devices, beside what was predicted.

* a decoder with random weights (decoder.py), its first half on one device and the rest, with its caches, on the other,
  in float and in other forms within a limit: tokens a second predicted and measured, and every answer held against one
  process;
* silero (../shared): its LSTM on the second device, 10,000 steps, as many equal to one process bit for bit.

    python benchmarks/state.py [--layers 12] [--tokens 256] [--silero-steps 10000] [--cases decoder,silero] [--json]

A prediction is of a context half as long as the session's at its end. It takes root, Linux, and taglio[cluster].
"""

import argparse
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from cases import CACHE, SHARED, end_once, markdown, write
from cluster import run
from decoder import VOCABULARY, decoder, states
from taglio.cluster.emulate.emulation import Emulation, start_devices

DEVICES = ("first", "second")
CLUSTER = """start = "first"
[device.first]
cpus = 1
threads = 1
[device.second]
cpus = 1
threads = 1
[[link]]
from = "first"
to = "second"
both = true
bandwidth_mbit_s = 100
latency_ms = 1
"""
SCHEME = "qdq-u8s8-asym-pc-rr"
# Model, data, pairs, and pins.
Case = tuple[Path, Path, list[str], list[str]]
# The limit on the error, and the scheme of which plans take the fastest forms.
FORMS = {
    "float32": (0.0, SCHEME),
    "int8": (0.1, SCHEME),
    "int8-weights": (0.1, f"{SCHEME}-w8"),
    "int8-dynamic": (0.2, f"{SCHEME}-dyn"),
    "int4-weights": (0.5, f"{SCHEME}-w4"),
}
SILERO = SHARED / "models" / "wild" / "silero_vad_op18_ifless.onnx"


def decoder_case(folder: Path, layers: int, tokens: int) -> Case:
    """Model, data, pairs and pins of the decoder; its data are half as many tokens as a session has."""
    model, data = folder / "decoder.onnx", folder / "tokens.npz"
    onnx.save(decoder(layers), model)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (max(tokens // 2, 4), 1, 1))
    np.savez(data, ids=ids.astype(np.int64))
    pairs = [f"{present}={past}" for present, past in states(layers)]
    names = [f"n_{present}" for present, _ in states(layers)]
    half = layers // 2 * 2
    return model, data, pairs, [f"{DEVICES[index >= half]}={name}" for index, name in enumerate(names)]


def silero_case(folder: Path) -> Case:
    """The same of silero, on windows of noise."""
    data = folder / "sound.npz"
    sound = np.random.default_rng(0).standard_normal((64, 1, 576)).astype(np.float32)
    np.savez(data, input=0.1 * sound, sr=np.full(64, 16_000, np.int64))
    graph = onnx.load(SILERO).graph
    keeps = next(node.name for node in graph.node if "stateN" in node.output)
    return SILERO, data, ["stateN=state"], [f"second={keeps}", f"first={graph.node[0].name}"]


def measured(made: Emulation, folder: Path, cluster: Path, case: Case, form: str, steps: int) -> dict[str, Any]:
    """One session of so many steps: profiled, planned, built and run, as a user would."""
    model, data, pairs, pins = case
    bound, scheme = FORMS[form]
    work = folder / scheme
    if not (work / "error.json").exists():
        state = [word for pair in pairs for word in ("--state", pair)]
        asked = ("--data", data, *state, "--scheme", scheme, "--runtime", "onnxruntime", "--threads", 1)
        for name in DEVICES:
            out = work if name == DEVICES[0] else folder / f"{scheme}, {name}"
            run(made, name, "profile", model, *asked, "--effort", 0.2, "-o", out)
            (work / "profiles").mkdir(exist_ok=True)
            shutil.copy(out / "profile.json", work / "profiles" / f"{name}.json")
        run(None, "", "error", work, "--effort", 0.01)
    pinned = [word for pin in pins for word in ("--pin", pin)]
    asked = ("--cluster", cluster, "--max-error", bound, *pinned, "--max-steps", steps, "--time-limit", 10, "--json")
    plan = json.loads(run(None, "", "plan", work, *asked))["plans"][0]
    run(None, "", "build", work)
    done = json.loads(run(made, DEVICES[0], "run", work, "--cluster", cluster, "--steps", steps, "--json"))
    crossed = {name for each in done["crossings"] for name in each["tensors"]}
    return {
        "steps": steps,
        "forms": dict(Counter(each["precision"] for each in plan["placements"])),
        "predicted_per_s": 1.0 / done["predicted_s"],
        "measured_per_s": done["rate_per_s"],
        "identical": done["identical"],
        "distance": done["distance"],
        "states_crossed": sorted(crossed & {name for pair in pairs for name in pair.split("=")}),
        "machine_busy": done["machine_busy"],
        "memory_mb": {each["device"]: each["peak_bytes"] / 1e6 for each in plan["usage"]},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--silero-steps", type=int, default=10_000)
    parser.add_argument("--cases", default="decoder,silero")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    end_once()
    home = CACHE / "state"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    file = home / "cluster.toml"
    file.write_text(CLUSTER)
    rows: list[dict[str, Any]] = []
    with Emulation(file) as made:
        start_devices(made)
        cluster = home / "probed.toml"
        run(made, DEVICES[0], "cluster", "probe", file, "--write", cluster)
        for name in options.cases.split(","):
            folder = home / name
            folder.mkdir()
            if name == "silero" and not SILERO.exists():
                print(f"skipped silero: {SILERO} is missing")
                continue
            case = silero_case(folder) if name == "silero" else decoder_case(folder, options.layers, options.tokens)
            steps = options.silero_steps if name == "silero" else options.tokens
            for form in FORMS if name == "decoder" else ["float32"]:
                rows.append({"case": name, "form": form, **measured(made, folder, cluster, case, form, steps)})
                print(rows[-1], flush=True)
    heads = ["case", "within", "blocks by form", "steps", "predicted /s", "measured /s", "ratio", "identical"]
    table = markdown(heads, [_cells(row) for row in rows])
    path = write("state", {"options": vars(options), "rows": rows}, table)
    print(json.dumps(rows) if options.json else f"{table}\nwrote {path}")
    return 0


def _cells(row: dict[str, Any]) -> list[str]:
    predicted, got = row["predicted_per_s"], row["measured_per_s"]
    forms = ", ".join(f"{count} {name}" for name, count in row["forms"].items())
    counts = (row["case"], f"{FORMS[row['form']][0]:.0%}", forms, str(row["steps"]))
    return [*counts, f"{predicted:.1f}", f"{got:.1f}", f"{got / predicted:.3f}", str(row["identical"])]


if __name__ == "__main__":
    sys.exit(main())
