"""How fast is the planner on large problems, with a proof, and how good are its plans?

python benchmarks/plan_scale.py --blocks 652 --devices 3 [--graph chain|static|random|dense|yolo11x] [--seed 0] [--json]
python benchmarks/plan_scale.py --table       every row of the table, and how time grows, as an SVG
python benchmarks/plan_scale.py --quality     200 random instances against four simple ways to place

`--peer-s 60` gives the peer's formulation that many seconds on the same instance and solver (HiGHS): products of two
binaries linearised one by one (y ≥ a + b − 1, y ≤ a, y ≤ b) where ours ties them by their sums. Its build is not
counted in those seconds, and instances of more than 1,100 blocks are not built for it. The table gives the median and
the longest of `--seeds` instances for ours; the peer's has the first.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cases import markdown, write
from plan_instances import instance
from plan_milp import Expression, Program, State
from taglio.cluster.planning.costs import Costs, evaluate
from taglio.cluster.planning.problem import SOURCE, Problem
from taglio.cluster.planning.solve import Placed, solve
from taglio.plan.result import GAP
from taglio.report import written as pages
from taglio.report.parts import Axis, Chart, Heading, Mark

# Blocks, devices, graph, whether precision and limits are in it, seconds allowed by the target (None: it has none). The
# peer's own networks are chains and `random`, in float and without limits that bind.
ROWS = (
    (652, 3, "chain", True, 0.3),
    (652, 3, "static", True, 0.3),
    (652, 6, "chain", True, 1.0),
    (652, 6, "static", True, 1.0),
    (1852, 6, "chain", True, 4.0),
    (1852, 6, "static", True, 4.0),
    (1032, 6, "random", True, 15.0),
    (1032, 6, "dense", True, None),
    (5000, 6, "static", True, 15.0),
    (660, 2, "static", False, 0.05),
    (652, 6, "chain", False, 1.0),
    (1852, 6, "chain", False, 4.0),
    (1032, 6, "random", False, 15.0),
)
# The peer's formulation of more blocks takes minutes and gigabytes to write down.
_LARGEST_PEER = 1100


class OneByOne(Program):
    """Ours in all but the products, each of which has three rows of its own."""

    def _pairs(
        self, writes: dict[State, Expression], reads: dict[State, Expression], strict: bool
    ) -> dict[tuple[State, State], Expression]:
        if len(writes) == 1 or len(reads) == 1:
            return super()._pairs(writes, reads, strict)
        pairs = {}
        for p, (_, written) in writes.items():
            for s, (_, read) in reads.items():
                if strict and p[1] != s[1]:
                    self.matrix.row(-np.inf, 1.0, [*written, *read])
                    continue
                y = self.matrix.column(self.nothing)
                flipped = [(column, -value) for column, value in (*written, *read)]
                self.matrix.row(-1.0, np.inf, [(y, 1.0), *flipped])
                for one in (written, read):
                    self.matrix.row(-np.inf, 0.0, [(y, 1.0), *((column, -value) for column, value in one)])
                pairs[p, s] = (0.0, [(y, 1.0)])
        return pairs


def peer(problem: Problem, seconds: float) -> dict[str, Any]:
    start = time.perf_counter()
    program = OneByOne(Costs(problem), problem.allowed.reshape(len(problem.nodes), -1))
    built = time.perf_counter()
    found = program.solve(time_limit_s=seconds, gap=GAP)
    objective = None if found.labels is None else evaluate(problem, found.labels.tolist(), found.copies).objective
    gap = None if objective is None else max(0.0, (objective - found.bound) / objective)
    return {
        "build_s": built - start,
        "solve_s": time.perf_counter() - built,
        "total_s": time.perf_counter() - start,
        "objective": objective,
        "gap": gap,
    }


def figures(placed: Placed, problem: Problem, total_s: float) -> dict[str, Any]:
    """What was found, looked at once more by the plain evaluation."""
    broken: tuple[str, ...] = ("no plan",)
    objective = None
    if placed.labels:
        totals = evaluate(problem, placed.labels, placed.copies)
        broken, objective = totals.broken, totals.objective
    return {
        "total_s": total_s,
        "gap": placed.gap if placed.labels else None,
        "status": placed.status,
        "objective": objective,
        "bound": placed.bound,
        "broken": list(broken),
    }


def timed(problem: Problem, time_limit_s: float, **options: Any) -> tuple[Placed, dict[str, Any]]:
    start = time.perf_counter()
    placed = solve(problem, time_limit_s=time_limit_s, **options)
    return placed, figures(placed, problem, time.perf_counter() - start)


def slower_link(problem: Problem) -> Problem:
    """The same with the link from the first to the last device at half its speed."""
    resources = []
    for each in problem.resources:
        byte = each.byte.copy()
        byte[0, -1] *= 2.0
        resources.append(replace(each, byte=byte))
    return replace(problem, resources=tuple(resources))


def table(options: argparse.Namespace) -> int:
    results: list[dict[str, Any]] = []
    rows = []
    solve(instance("static", 40, 2, 0), time_limit_s=5.0)  # loads what Python loads once
    for blocks, devices, graph, quantize, target in ROWS:
        ours = []
        for seed in range(options.seed, options.seed + options.seeds):
            problem = instance(graph, blocks, devices, seed, quantize=quantize, limits=quantize)
            ours.append(timed(problem, options.time_limit_s)[1] | {"seed": seed})
        first = instance(graph, blocks, devices, options.seed, quantize=quantize, limits=quantize)
        theirs = peer(first, options.peer_s) if options.peer_s and blocks <= _LARGEST_PEER else None
        case = {"blocks": blocks, "devices": devices, "graph": graph, "target_s": target}
        results.append(case | {"ours": ours, "peer": theirs})
        rows.append(_row(f"{blocks} × {devices}, {graph}{'' if quantize else ', float'}", ours, target, theirs))
        print(rows[-1], file=sys.stderr, flush=True)
    first_time, again = [], []
    for seed in range(options.seed, options.seed + options.seeds):
        problem = instance("yolo11x", None, 4, seed)
        before, figures_ = timed(problem, options.time_limit_s)
        first_time.append(figures_ | {"seed": seed})
        running = before.labels or None
        again.append(timed(slower_link(problem), options.time_limit_s, incumbent=running)[1] | {"seed": seed})
    rows.append(_row("yolo11x-seg × 4", first_time, None, None))
    rows.append(_row("the same after a link changed", again, 0.3, None))
    results += [{"graph": "yolo11x", "ours": first_time}, {"graph": "yolo11x, link changed", "ours": again}]
    header = ["case", "median s", "longest s", "target s", "proven to 5e-3", "largest gap", "peer's formulation"]
    text = markdown(header, rows)
    growing = growth(options)
    path = write("plan_scale", {"rows": results, "growth": growing}, text)
    plot(path.with_suffix(".html"), growing)
    print(text)
    return 0


def _row(name: str, ours: list[dict[str, Any]], target: float | None, theirs: dict[str, Any] | None) -> list[str]:
    taken = [each["total_s"] for each in ours]
    gaps = [np.inf if each["gap"] is None or each["broken"] else each["gap"] for each in ours]
    beside = "–"
    if theirs is not None:
        reached = "no plan" if theirs["gap"] is None else f"gap {theirs['gap']:.1e}"
        beside = f"{theirs['total_s']:.1f} s, of which {theirs['build_s']:.1f} to build: {reached}"
    proven = sum(gap <= GAP for gap in gaps)
    return [
        name,
        f"{np.median(taken):.2f}",
        f"{max(taken):.2f}",
        "–" if target is None else f"{target:g}",
        f"{proven} of {len(ours)}",
        f"{max(gaps):.1e}",
        beside,
    ]


def growth(options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Seconds by blocks (3 devices), by devices (324 blocks) and by share of edges with noise (324 × 3)."""
    result: dict[str, list[tuple[float, float]]] = {"blocks": [], "devices": [], "edge terms": []}
    for blocks in (81, 162, 324, 652, 1304):
        ours = timed(instance("static", blocks, 3, options.seed), options.time_limit_s)[1]
        result["blocks"].append((blocks, ours["total_s"]))
    for devices in (2, 3, 4, 6, 8):
        ours = timed(instance("static", 324, devices, options.seed), options.time_limit_s)[1]
        result["devices"].append((devices, ours["total_s"]))
    for share in (0.0, 0.25, 0.5, 1.0):
        problem = instance("static", 324, 3, options.seed)
        keep = np.random.default_rng(options.seed).random(len(problem.values.readers)) < share
        noises = tuple(replace(each, edge=each.edge * keep, wire=each.wire * keep) for each in problem.noises)
        ours = timed(replace(problem, noises=noises), options.time_limit_s)[1]
        result["edge terms"].append((float(keep.sum()), ours["total_s"]))
    return result


def plot(path: Path, growing: dict[str, list[tuple[float, float]]]) -> None:
    """A chart for each thing that grows, on a page beside the results."""

    def chart(name: str, points: list[tuple[float, float]]) -> Chart:
        marks = [Mark(x, y, "dot", f"{x:g} {name}: {y:.3f} s") for x, y in points]
        return Chart(f"seconds by {name}", Axis(name, zero=True), Axis("seconds", "log"), marks)

    charts = pages.Section("seconds", "Seconds", [lambda: [chart(*each) for each in growing.items()]])
    top = [lambda: [Heading("Planning time by size", 1)]]
    pages.write(path, *pages.render("Planning time by size", path.stem, top, [charts]))


def quality(options: argparse.Namespace) -> int:
    """Two to four devices, float only and no limits, so that every simple way has a plan to offer."""
    better: dict[str, list[float]] = {"one device": [], "single cut": [], "minimum cut": [], "greedy": []}
    for seed in range(options.instances):
        rng = np.random.default_rng(seed)
        graph, devices = str(rng.choice(["static", "random", "dense"])), int(rng.integers(2, 5))
        problem = instance(graph, int(rng.integers(20, 60)), devices, seed, quantize=False, limits=False)
        placed = solve(problem, gap=1e-6, time_limit_s=30.0)
        for name, objective in simple(problem).items():
            better[name].append(objective / placed.objective)
    rows = []
    for name, ratios in better.items():
        values = np.array(ratios)
        worse = int((values < 1.0 - 1e-6).sum())
        rows.append([name, f"{worse}", f"{np.median(values):.3f}", f"{values.mean():.3f}", f"{values.max():.3f}"])
    text = markdown(["rival", "ours worse", "median of rival / ours", "mean", "largest"], rows)
    if options.json:
        print(json.dumps(better))
    else:
        write("plan_quality", {"ratios": better}, text)
        print(text)
    return int(any(row[1] != "0" for row in rows))


def simple(problem: Problem) -> dict[str, float]:
    """The best of each simple way: all on one device; a cut of the execution order between the first and one other
    (Neurosurgeon); a minimum cut between the first and one other (DADS); node by node, the cheapest so far (greedy)."""
    nodes, devices, forms = len(problem.nodes), len(problem.devices), len(problem.forms)

    def cost(on: np.ndarray) -> float:
        return evaluate(problem, (on * forms).tolist()).objective

    whole = [cost(np.full(nodes, device)) for device in range(devices)]
    single = [
        cost(np.where(np.arange(nodes) < cut, 0, device)) for device in range(1, devices) for cut in range(nodes + 1)
    ]
    pairs = []
    for device in range(1, devices):
        only = np.zeros_like(problem.allowed)
        only[:, [0, device]] = problem.allowed[:, [0, device]]
        pairs.append(solve(replace(problem, allowed=only), gap=1e-9).objective)
    return {
        "one device": min(whole),
        "single cut": min(single),
        "minimum cut": min(pairs),
        "greedy": cost(greedy(problem)),
    }


def greedy(problem: Problem) -> np.ndarray:
    """In execution order each node goes where it, with what it reads, adds least."""
    on = np.zeros(len(problem.nodes), dtype=np.intp)
    values = problem.values
    reads: dict[int, list[int]] = {}
    for value, reader in zip(values.edge_value().tolist(), values.readers.tolist(), strict=True):
        reads.setdefault(reader, []).append(value)
    for node in range(len(on)):
        best = np.inf
        for device in range(len(problem.devices)):
            total = 0.0
            for each in problem.resources:
                add = each.device[device] * problem.seconds[node, device, 0]
                for value in reads.get(node, []):
                    producer = values.producer[value]
                    source = values.home[value] if producer == SOURCE else on[producer]
                    if source != device:
                        add += each.link[source, device] + each.byte[source, device] * values.float_bytes[value]
                total += each.weight * add
            if total < best:
                best, on[node] = total, device
    return on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--graph", choices=("chain", "static", "random", "dense", "yolo11x"), default="static")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3, help="instances of each case, with --table")
    parser.add_argument("--float-only", action="store_true", help="no quantisation and no limits")
    parser.add_argument("--time-limit-s", type=float, default=60.0)
    parser.add_argument("--peer-s", type=float, default=0.0, help="seconds for the peer's formulation; 0 leaves it out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--instances", type=int, default=200)
    options = parser.parse_args()
    if options.table:
        return table(options)
    if options.quality:
        return quality(options)
    limits = not options.float_only
    problem = instance(options.graph, options.blocks, options.devices, options.seed, quantize=limits, limits=limits)
    _, ours = timed(problem, options.time_limit_s)
    result = {
        "blocks": len(problem.nodes),
        "devices": options.devices,
        "graph": options.graph,
        "seed": options.seed,
        **ours,
    }
    if options.peer_s:
        result["peer"] = peer(problem, options.peer_s)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    return int(ours["status"] != "optimal")


if __name__ == "__main__":
    sys.exit(main())
