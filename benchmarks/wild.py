"""Does `taglio optimize` work on networks and graphs that nobody made for it? All of ../shared/cases and models/wild.

Each is optimised in a process of its own. What it delivers is then opened without taglio, and run beside the float
file in ONNX Runtime without optimisation, on all samples; the error is computed by code of this benchmark
alone and stands beside the one that taglio reports.

With --rivals each network of models/wild is optimised at 1 % and 3 % and run beside what else a user could do with it
(wild_rivals.py), on a quiet machine.

python benchmarks/wild.py [--cases 22_yolo_head,ch_PP-OCRv4_rec_infer] [--max-error 0.01] [--effort 0.2]
python benchmarks/wild.py --rivals [--cases …] [--folder OTHER_NETWORKS] [--threads 1] [--seconds 20] [--json]
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from cases import CACHE, CASES, SHARED, WILD, markdown, paths, show, write
from taglio.data.files import load
from taglio.data.preprocess import parse_preprocess
from taglio.deploy import verify
from taglio.model.inputs import input_specs
from wild_rivals import Contest, contest, everything, means, rows

# Refusals that are right, with a word that the message must hold.
REFUSED = {"19_custom_op": "MyNms", "43_opset6": "opset", "48_constant_outputs": "no error can be measured"}
LIMIT_S = 1200


@dataclass(frozen=True, slots=True)
class Row:
    """One model. `reported` is taglio's error of the plan, `checked` this benchmark's, over the worst output, and
    `predicted_error` the one before it was measured; NaN where a run ended without one. Seconds are the plan's."""

    name: str
    outcome: str
    seconds: float
    speed_up: float = float("nan")
    int8_blocks: int = 0
    blocks: int = 0
    reported: float = float("nan")
    checked: float = float("nan")
    same_interface: bool = False
    said: str = ""
    predicted_error: float = float("nan")
    latency_s: float = float("nan")
    predicted_s: float = float("nan")


def optimize(
    model: Path, data: Path, max_error: float, effort: float, out: Path | None = None, threads: int | None = None
) -> Row:
    """One `taglio optimize`, and its result checked."""
    out = out or CACHE / "wild" / model.stem
    command = [
        sys.executable,
        "-m",
        "taglio",
        "optimize",
        str(model),
        "--data",
        str(data),
        "--json",
        "-o",
        str(out),
    ]
    command += ["--max-error", str(max_error), "--effort", str(effort)]
    command += ["--threads", str(threads)] if threads else []
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Row(model.stem, "timeout", LIMIT_S)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if "Traceback" in done.stderr or done.returncode < 0:
            return Row(model.stem, "crash", seconds, said=last[:160])
        right = model.stem in REFUSED and REFUSED[model.stem] in last
        return Row(model.stem, "refused, rightly" if right else "refused", seconds, said=last[:160])
    printed = json.loads(done.stdout)
    plan = printed["plan"]
    built = out / "components" / "model.onnx"
    return Row(
        model.stem,
        "works",
        seconds,
        printed["speedup"] or 1.0,  # null where float stays
        plan["int8_blocks"],
        plan["blocks"],
        plan["error"],
        check(model, out / "deploy", data),
        same_interface(model, built),
        predicted_error=plan["predicted_error"],
        latency_s=plan["latency_s"],
        predicted_s=plan["predicted_latency_s"] or float("nan"),
    )


def same_interface(before: Path, after: Path) -> bool:
    """Whether inputs and outputs have the same names, order, types and dimensions. Where the original declares no
    dimensions of an output, any will do."""
    old, new = interface(before), interface(after)
    return [port[0] for port in old] == [port[0] for port in new] and all(
        two == one or ("," not in one and two.startswith(one)) for (_, one), (_, two) in zip(old, new, strict=True)
    )


def interface(path: Path) -> list[tuple[str, str]]:
    """Name and type, with its dimensions, of every input and output."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    values = [value for value in [*graph.input, *graph.output] if value.name not in weights]
    return [(value.name, onnx.helper.printable_type(value.type)) for value in values]


def check(model: Path, deploy: Path, data: Path) -> float:
    """‖y − ŷ‖ / ‖y‖ over all samples, the worst over the float outputs that always have one shape in both."""
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain.log_severity_level = 4
    # From memory: ONNX Runtime itself cannot open a file whose shapes are external data.
    whole = onnx.load(model).SerializeToString()
    before = ort.InferenceSession(whole, plain, providers=["CPUExecutionProvider"])
    after = verify.DeployedModel(deploy)
    squares: dict[str, list[float]] = {}
    for feed in samples(data, before):
        names = [output.name for output in before.get_outputs()]
        answer = after.run(feed)
        for name, y in zip(names, before.run(names, feed), strict=True):
            z = answer[name]
            if np.asarray(y).dtype.kind == "f" and np.shape(y) == np.shape(z):
                wide = np.asarray(y, np.float64)
                total = squares.setdefault(name, [0.0, 0.0])
                total[0] += float(np.nansum((wide - z) ** 2))
                total[1] += float(np.nansum(wide**2))
    return max((float(np.sqrt(a / b)) for a, b in squares.values() if b), default=float("nan"))


def samples(data: Path, session: ort.InferenceSession) -> Iterator[dict[str, np.ndarray]]:
    """Feeds: a dimension that a sample lacks is the batch, wherever the model has it."""
    with np.load(data) as arrays:
        columns = {port.name: (port.shape, samples_of(arrays, port.name)) for port in session.get_inputs()}
    for index in range(len(next(iter(columns.values()))[1])):
        feed = {}
        for name, (shape, column) in columns.items():
            sample = np.asarray(column[index])
            feed[name] = sample if sample.ndim == len(shape) else np.expand_dims(sample, batch_axis(shape, sample))
        yield feed


def samples_of(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray | list[np.ndarray]:
    """The samples of an input: rows of the array of its name, or, where shapes differ, one array each (x0, x1, …)."""
    return arrays[name] if name in arrays else [arrays[key] for key in takewhile(arrays.__contains__, numbered(name))]


def numbered(name: str) -> Iterator[str]:
    """The name with 0, 1, 2 … behind it."""
    return (f"{name}{index}" for index in count())


def batch_axis(shape: list[int | str], sample: np.ndarray) -> int:
    """Where the dimension that `sample` lacks is in `shape`."""
    for axis in range(len(shape)):
        rest = shape[:axis] + shape[axis + 1 :]
        fits = all(not isinstance(size, int) or size == has for size, has in zip(rest, sample.shape, strict=True))
        if fits and not (isinstance(shape[axis], int) and shape[axis] != 1):
            return axis
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="")
    parser.add_argument("--max-error", type=float, default=0.01)
    parser.add_argument("--effort", type=float, default=0.2)
    parser.add_argument("--rivals", action="store_true", help="beside other ways to run each network")
    parser.add_argument("--folder", type=Path, help="of networks NAME.onnx and their samples NAME.npz, with --rivals")
    parser.add_argument("--threads", type=int, default=1, help="of every session, with --rivals (default 1)")
    parser.add_argument("--seconds", type=float, default=20.0, help="timing of one network, with --rivals (default 20)")
    parser.add_argument("--limits", default="0.01,0.03", help="of --rivals (default 0.01,0.03)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables, with --rivals")
    options = parser.parse_args()
    if options.rivals:
        return with_rivals(options)
    models = [(model, model.with_suffix(".npz")) for model in sorted((SHARED / "cases").glob("*.onnx"))]
    try:
        models += [paths(CASES[name]) for name in WILD]
    except FileNotFoundError as error:
        print(error)
        return 1
    chosen = set(options.cases.split(",")) if options.cases else {model.stem for model, _ in models}
    rows: list[Row] = []
    for model, data in models:
        if model.stem in chosen:
            rows.append(optimize(model, data, options.max_error, options.effort))
            print(" | ".join(cells(rows[-1])), flush=True)
    works = sum(row.outcome in ("works", "refused, rightly") for row in rows)
    text = markdown(
        ["model", "outcome", "× float", "int8 blocks", "error", "checked", "interface", "seconds", "said"],
        [cells(row) for row in rows],
    )
    text += f"\n\n{works} of {len(rows)} work or are refused for a real reason."
    print(f"wrote {write('wild', {'rows': [asdict(row) for row in rows]}, text)}")
    return 0 if works == len(rows) else 1


def networks(options: argparse.Namespace) -> dict[str, tuple[Path, Path]]:
    """The networks that were asked for, with their samples; what is missing is said."""
    if options.folder:
        models = {model.stem: (model, model.with_suffix(".npz")) for model in sorted(options.folder.glob("*.onnx"))}
        return {name: models[name] for name in options.cases.split(",")} if options.cases else models
    detectors = ["ultraface-rfb-320", "yunet-n-640", "yolo11n-seg", "yolo11s-seg"]
    models = {}
    for name in options.cases.split(",") if options.cases else [*WILD, *detectors]:
        if name not in CASES:
            raise SystemExit(f"{name} is none of {', '.join(CASES)}; --folder takes other networks")
        try:
            model, data = paths(CASES[name])
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            continue
        models[name] = model, images_of(name) if CASES[name].images else data
    return models


def with_rivals(options: argparse.Namespace) -> int:
    contests: list[Contest] = []
    limits = tuple(float(limit) for limit in options.limits.split(","))
    plans: list[list[str]] = []
    for name, (model, data) in networks(options).items():
        out = {limit: CACHE / "wild" / f"{name}-{limit:g}" for limit in limits}
        done = {limit: optimize(model, data, limit, options.effort, out[limit], options.threads) for limit in limits}
        for limit, row in done.items():
            if row.outcome == "works":
                plans.append(predicted(row, limit))
            else:
                print(f"{name} at {limit:.0%}: {row.outcome}: {row.said}", file=sys.stderr)
        ours = {limit: out[limit] for limit, row in done.items() if row.outcome == "works"}
        contests.append(contest(model, data, ours, options.threads, options.seconds))
        if not options.json:
            print(markdown(*everything(contests[-1:])), flush=True)
    text = markdown(*rows(contests, limits)) + "\n"
    for limit in limits if contests else ():
        ours_gain, rival_gain = means(contests, limit)
        text += f"\nWithin {limit:.0%}, geometric mean over float: taglio {ours_gain:.2f}, best rival {rival_gain:.2f}."
    head = ["network", "limit", "quantised", "error predicted", "measured", "latency predicted", "measured", "optimize"]
    text += f"\n\n{markdown(head, plans)}"
    figures = {"contests": [asdict(result) for result in contests]}
    show("wild_rivals", figures, f"{text}\n\n{markdown(*everything(contests))}", as_json=options.json)
    return 0 if contests else 1


def predicted(row: Row, limit: float) -> list[str]:
    """What taglio expected of its plan beside what it measured."""
    errors = [f"{error:.3%}" for error in (row.predicted_error, row.reported)]
    times = [f"{seconds * 1e3:.2f} ms" for seconds in (row.predicted_s, row.latency_s)]
    return [row.name, f"{limit:.0%}", f"{row.int8_blocks} of {row.blocks}", *errors, *times, f"{row.seconds:.0f} s"]


def images_of(name: str) -> Path:
    """The samples of a network whose data are photographs, as an .npz."""
    model, folder = paths(CASES[name])
    proto = onnx.load(model, load_external_data=False)
    weights = {tensor.name for tensor in proto.graph.initializer}  # which old files also declare as inputs
    spec = tuple(port for port in input_specs(model, proto) if port.name not in weights)
    path = CACHE / "wild" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    loaded = load(folder, spec, parse_preprocess(CASES[name].preprocess))
    np.savez(
        path,
        allow_pickle=False,
        **{port.name: np.concatenate([sample[port.name] for sample in loaded.samples]) for port in spec},
    )
    return path


def cells(row: Row) -> list[str]:
    if row.outcome != "works":
        return [row.name, row.outcome, "", "", "", "", "", f"{row.seconds:.0f}", row.said]
    kept = "kept" if row.same_interface else "CHANGED"
    errors = [f"{row.reported:.3%}", f"{row.checked:.3%}"]
    return [row.name, row.outcome, f"{row.speed_up:.2f}", f"{row.int8_blocks} of {row.blocks}", *errors, kept,
            f"{row.seconds:.0f}", ""]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
