"""The notes' study of the error, and ours beside it, on real networks and photographs.

Theirs: the 15 blocks with most FLOPs; 1,000 random combinations without repetition to train, 100 to test; linear,
quadratic and cubic regression on which blocks are in int8. Ours: at most 96 evaluations, each block and each tensor
alone included, the same 100 combinations to test, which neither has seen. Evaluations are kept under out/benchmarks,
so that only the first run measures.

    python benchmarks/error_study.py [--cases a,b] [--views 3]
"""

import argparse
import random
import sys
from dataclasses import asdict
from math import comb
from typing import Any

import numpy as np

from cases import RESULTS, markdown, write
from error_cases import NETWORKS, VIEWS, Network, inputs_of, open_network, readings, top_flops
from error_plots import Series, scatter
from regressions import DEGREES, polynomial, score
from taglio.error.combine import Measured, fit_outputs
from taglio.error.measure import Reading
from taglio.error.terms import Design, design
from taglio.quantize.effective import effective
from taglio.quantize.precision import FLOAT32, Assignment, Precision
from taglio.quantize.scheme import DEFAULT_SCHEME

BLOCKS, TRAIN, TEST, OURS = 15, 1000, 100, 96
INT8 = Precision("int8", DEFAULT_SCHEME, "whole")
SEED = 20261120


def combinations(names: list[str], count: int) -> list[tuple[str, ...]]:
    """Random combinations of every size, without repetition: first the size, then which."""
    rng = random.Random(SEED)
    found: dict[tuple[str, ...], None] = {}
    left = {size: comb(len(names), size) for size in range(1, len(names) + 1)}
    while len(found) < count:
        size = rng.choice([each for each in left if left[each] > 0])
        chosen = set(rng.sample(names, size))
        key = tuple(name for name in names if name in chosen)
        if key not in found:
            found[key] = None
            left[size] -= 1
    return list(found)


def ours(network: Network, columns: Design, train: list[Assignment], known: list[Reading]) -> tuple[Measured, int]:
    """Blocks alone, tensors alone, and as many of the training combinations as make 96 evaluations."""
    singles: list[Assignment] = [{name: INT8} for name, _ in columns.own]
    wires = [flow for flow in dict.fromkeys(flow for flow, _ in columns.edge) if flow in network.meter.wires]
    alone = readings(network, "study-blocks", singles, [None] * len(singles), sketch=True)
    flows = readings(network, "study-tensors", [{} for _ in wires], wires, sketch=True)
    count = OURS - len(singles) - len(wires)
    flows_alone = dict(zip(wires, flows, strict=True))
    return Measured(columns, (FLOAT32, INT8), singles, alone, flows_alone, train[:count], known[:count]), count


def study(name: str, views: int) -> dict[str, Any]:
    """Scores of the three regressions and of our model on one network."""
    network = open_network(name, views)
    graph = network.work.graph
    names = top_flops(graph, BLOCKS)
    subsets = combinations(names, TRAIN + TEST)
    # No rule of `effective` is lost: what it adds is how the subset will run, and what the switchable graph computes.
    assignments: list[Assignment] = [effective(graph, dict.fromkeys(each, INT8), INT8) for each in subsets]
    known = readings(network, "study", assignments, [None] * len(assignments), sketch=False)
    # Sizes with few combinations are used up early: which train and which test is drawn anew.
    order = np.random.default_rng(SEED).permutation(len(subsets))
    subsets, assignments = [subsets[i] for i in order], [assignments[i] for i in order]
    known = [known[i] for i in order]
    truth = np.array([each.l2.max() for each in known])
    rows = np.array([[block in each for block in names] for each in subsets], float)
    result: dict[str, Any] = {"case": name, "inputs": inputs_of(network.work.data.held_out), "blocks": names}
    unseen = truth[TRAIN:]
    predictions: dict[str, np.ndarray] = {}
    for label, degree in DEGREES.items():
        predict = polynomial(rows[:TRAIN], truth[:TRAIN], degree)
        result[label] = {
            "evaluations": TRAIN,
            "train": asdict(score(predict(rows[:TRAIN]), truth[:TRAIN])),
            "test": asdict(score(predict(rows[TRAIN:]), unseen)),
        }
        predictions[f"{label}, {TRAIN}"] = predict(rows[TRAIN:])
    columns = design(graph, (FLOAT32, INT8))
    measured, count = ours(network, columns, assignments[:TRAIN], known)
    terms = fit_outputs(measured, unseen=False).terms.values()
    design_rows = np.array([columns.row(each) for each in assignments])
    predicted = np.max([each.predict(design_rows) for each in terms], axis=0)
    result["ours"] = {
        "evaluations": OURS,
        "subsets": count,
        "train": asdict(score(predicted[:count], truth[:count])),
        "test": asdict(score(predicted[TRAIN:], unseen)),
    }
    predictions[f"ours, {OURS}"] = predicted[TRAIN:]
    picture = RESULTS / f"error_study_{name}.svg"
    series = [Series(label, unseen * 100, values * 100) for label, values in predictions.items()]
    picture.write_text(scatter(f"{name}: {BLOCKS} blocks, {TEST} unseen combinations", "error, %", series))
    result["picture"] = picture.name
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--views", type=int, default=VIEWS, help="inputs shown of each photograph")
    options = parser.parse_args()
    results, rows = [], []
    for name in options.cases.split(","):
        try:
            result = study(name, options.views)
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        results.append(result)
        for label in (*DEGREES, "ours"):
            each = result[label]
            cells = [name, label, str(each["evaluations"])]
            for part in ("train", "test"):
                cells += [f"{each[part]['r2']:.4f}", f"{each[part]['mean_absolute']:.3%}"]
            cells += [f"{each['test']['spearman']:.4f}", f"{each['test']['median_relative']:.1%}"]
            rows.append(cells)
            print(" | ".join(cells), flush=True)
    header = [
        "network",
        "model",
        "evaluations",
        "train R²",
        "MAE",
        "test R²",
        "MAE",
        "test Spearman",
        "median relative",
    ]
    table = markdown(header, rows) + "\n\n" + "\n".join(f"![{r['case']}]({r['picture']})" for r in results)
    print(f"wrote {write('error_study', {'options': vars(options), 'cases': results}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
