"""Is this code's result as fast as that of another version? Both optimise the same networks on the same machine.

The other version has an environment of its own, named by its Python. The two results of a network are raced as
delivered, opening after opening, in a process without taglio. The speed-up is the other version's time divided by this
code's. Where the other version's result is not beyond doubt faster than float, float stands in its place.

Rows are kept in out/benchmarks/versions.jsonl: an interrupted run goes on, and --again starts anew.

python benchmarks/versions.py --other /path/to/bin/python [--cases digits,magika] [--max-error 0.01] [--effort 1]
                              [--threads 1] [--openings 16]
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from math import exp, fsum, log
from pathlib import Path

import onnx

from cases import CACHE, CASES, Kept, markdown, optimized, paths, show
from taglio.confirm.bench import Bench
from taglio.confirm.race import Patience, confirm
from taglio.confirm.speedup import Speedup
from taglio.deploy import verify
from taglio.deploy.write import read_samples, write_opened, write_source
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.runtimes.session import RUNTIMES
from taglio.scratch import scratch
from told import NETWORKS

OTHER, THIS = "other", "this"
# Run by the code of 28 November: a component in OpenVINO's format, with its marks of bfloat16.
_IN_BFLOAT16 = """
import json, sys
from pathlib import Path
import openvino
from taglio.runtimes.openvino import _core, marked
from taglio.runtimes.openvino_fusions import read_fused
path, written, tensors = Path(sys.argv[1]), Path(sys.argv[2]), json.load(sys.stdin)
model = marked(path, written.parent).read(tensors) if tensors else read_fused(_core(), str(path))
openvino.serialize(model, str(written), str(written.with_suffix(".bin")))
"""


@dataclass(frozen=True, slots=True)
class Version:
    """What one version made of a network: seconds of `optimize`, the error and runtime of the result, and its speed-up
    over float in a long race."""

    seconds: float
    error: float
    runtime: str
    over_float: Speedup


@dataclass(frozen=True, slots=True)
class Row:
    """One network: both versions, and how many times as fast this code's result is."""

    network: str
    limit: float
    effort: float
    other: Version
    this: Version
    gain: Speedup


def delivered(out: Path, folder: Path, threads: int, python: str) -> Path:
    """The result in `out` as a delivered folder; the code of 28 November, in the environment of `python`, wrote none,
    and gets one in `folder`."""
    if (out / "deploy").exists():
        return out / "deploy"
    (piece,) = json.loads((out / "components" / "manifest.json").read_text())["body"]["pieces"]
    path, runtime = out / "components" / piece["file"], piece["runtime"]
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in weights]
    where = SessionOptions(threads, runtime=runtime)
    if runtime in RUNTIMES:
        write_opened(folder, path, inputs, [value.name for value in graph.output], where)
        return folder
    # In bfloat16, all of it or the tensors that are named, as that code opened it.
    write_opened(folder, path, inputs, [value.name for value in graph.output], replace(where, runtime=OPENVINO))
    (part,) = json.loads((folder / verify.MANIFEST).read_text())["components"]
    named = json.dumps(piece["bfloat16"])
    subprocess.run([python, "-I", "-c", _IN_BFLOAT16, path, folder / part["model"]], input=named, text=True, check=True)
    settings = folder / part["settings"]
    settings.write_text(json.dumps(json.loads(settings.read_text()) | piece["properties"]))
    return folder


def compared(name: str, options: argparse.Namespace, *, is_this_first: bool) -> Row:
    """Both versions of one network, and the races of their results."""
    outs = {version: CACHE / "versions" / f"{name}-{version}" for version in (OTHER, THIS)}
    pythons = {OTHER: options.other, THIS: sys.executable}
    order = (THIS, OTHER) if is_this_first else (OTHER, THIS)
    given = "--max-error", options.max_error, "--effort", options.effort, "--threads", options.threads
    for out in outs.values():
        shutil.rmtree(out, ignore_errors=True)  # a search would reuse the errors of an earlier one
    runs = {version: optimized(name, outs[version], *given, python=pythons[version]) for version in order}
    manifest = json.loads((outs[THIS] / "deploy" / verify.MANIFEST).read_text())
    patience = Patience(
        openings=options.openings, fewest=options.openings // 2, half_width=0.019, seconds=30.0, slow_seconds=60.0
    )
    with scratch() as source, scratch() as other:
        write_source(source, paths(CASES[name])[0], manifest["inputs"], manifest["outputs"], options.threads)
        folders = {THIS: outs[THIS] / "deploy", OTHER: delivered(outs[OTHER], other, options.threads, options.other)}
        with Bench(read_samples(folders[THIS])) as race:
            run_s = runs[THIS][1]["float32"]["latency_s"]
            over_float = {
                version: confirm(race, source, folder, run_s, patience) for version, folder in folders.items()
            }
            base = folders[OTHER] if over_float[OTHER].low > 1.0 else source
            gain = confirm(race, base, folders[THIS], run_s, patience)
    versions = {
        version: Version(seconds, printed["plan"]["error"], printed["plan"]["runtime"], over_float[version])
        for version, (seconds, printed) in runs.items()
    }
    return Row(name, options.max_error, options.effort, versions[OTHER], versions[THIS], gain)


def main() -> int:
    """Compare what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", required=True, metavar="PYTHON", help="of an environment with the other version")
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--max-error", type=float, default=0.01)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--openings", type=int, default=16)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    kept = Kept(CACHE / "versions.jsonl", Row, again=options.again)
    rows = kept.rows
    done = {(row.network, row.limit, row.effort) for row in rows}
    for number, name in enumerate(options.cases.split(",")):
        if (name, options.max_error, options.effort) in done:
            continue
        try:
            kept.add(compared(name, options, is_this_first=bool(number % 2)))
        except (FileNotFoundError, RuntimeError) as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        print(" | ".join(cells(rows[-1])), file=sys.stderr, flush=True)
    sides = ("result", "error", "optimize")
    head = ["network", "limit", *(f"{what}, {version}" for what in sides for version in (OTHER, THIS)), "gain"]
    text = markdown(head, [cells(row) for row in rows])
    if rows:
        gain, share = (
            mean([row.gain.ratio for row in rows]),
            mean([row.this.seconds / row.other.seconds for row in rows]),
        )
        text += f"\n\nGeometric means: results {gain:.3f} × as fast, `optimize` takes {share:.2f} of the time."
    show("versions", {"rows": [asdict(row) for row in rows]}, text, as_json=options.json)
    return 0 if rows else 1


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return exp(fsum(map(log, ratios)) / len(ratios))


def cells(row: Row) -> list[str]:
    """A line of the table."""
    results = [f"{version.over_float} in {version.runtime}" for version in (row.other, row.this)]
    errors = [f"{version.error:.2%}" for version in (row.other, row.this)]
    times = [f"{version.seconds:.0f} s" for version in (row.other, row.this)]
    return [row.network, f"{row.limit:.0%}", *results, *errors, *times, str(row.gain)]


if __name__ == "__main__":
    sys.exit(main())
