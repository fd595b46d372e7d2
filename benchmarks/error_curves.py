"""All blocks that can be int8: which model of the error needs fewest evaluations? Learning curves, 16 to 1,100.

Every candidate is tested on the same 100 random subsets of mixed sizes, which none has seen. What a candidate measures
alone counts as evaluations. Evaluations are kept under out/benchmarks, so that only the first run measures.

    python benchmarks/error_curves.py [--cases a,b] [--views 3] [--train 1000]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.preprocessing import PolynomialFeatures

from cases import RESULTS, markdown, write
from error_cases import NETWORKS, VIEWS, inputs_of, open_network, readings
from error_plots import Series, curves, scatter
from regressions import score
from taglio.error.combine import Measured, fit_outputs, upper_miss
from taglio.error.fit import fit_terms
from taglio.error.study import random_subsets
from taglio.error.terms import design
from taglio.quantize.precision import Assignment, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME

BUDGETS = (16, 32, 64, 96, 128, 160, 192, 256, 400, 600, 800, 1100)
TEST = 100
# The budget whose figures are held against the bars.
JUDGED = 400
CONFIDENCE = 0.9
# The subsets that taglio measures at most, and how often they are drawn anew to see what their upper end covers.
PRODUCT, DRAWS = 96, 20
OURS = "tensors and blocks alone, vectors"


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """All that was measured: `measured` has every training subset; `rows` and `truth` are of training and test."""

    measured: Measured
    rows: np.ndarray
    truth: np.ndarray
    blocks: int
    test_rows: np.ndarray
    test_truth: np.ndarray

    def spend(self, evaluations: int, *, blocks: bool, flows: bool) -> int:
        """Subsets that are left after what is measured alone; negative where that does not fit."""
        return evaluations - blocks * len(self.measured.singles) - flows * len(self.measured.flows)


Candidate = Callable[[Data, int], np.ndarray | None]


def ours(data: Data, evaluations: int, order: Sequence[int] | None = None) -> np.ndarray | None:
    """What taglio does."""
    count = data.spend(evaluations, blocks=True, flows=True)
    return _ours(data, count, data.measured, order) if count >= 0 else None


def norms(data: Data, evaluations: int) -> np.ndarray | None:
    """Blocks alone, their squared errors the start; tensors are not measured."""
    count = data.spend(evaluations, blocks=True, flows=False)
    return _ours(data, count, replace(data.measured, flows={})) if count >= 0 else None


def active(data: Data, evaluations: int) -> np.ndarray | None:
    """Ours, each next subset the one whose prediction is least sure."""
    count = data.spend(evaluations, blocks=True, flows=True)
    return _ours(data, count, data.measured, _least_sure(data, count)) if count > 0 else None


def gaussian_process(data: Data, evaluations: int) -> np.ndarray | None:
    """Ours, and a Gaussian process over the columns on what it leaves of the logarithm."""
    count = data.spend(evaluations, blocks=True, flows=True)
    base = ours(data, evaluations)
    if base is None or count < 16:
        return None
    fitted = fit_outputs(replace(data.measured, **_first(data.measured, range(count))))
    kernel = ConstantKernel(0.01) * RBF(5.0, (0.5, 100.0)) + WhiteKernel(0.001)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    process.fit(data.rows[:count], np.log(data.truth[:count] / np.maximum(fitted.unseen, 1e-12)))
    return np.asarray(base * np.exp(process.predict(data.test_rows)))


def subsets_only(data: Data, evaluations: int) -> np.ndarray | None:
    """The same link, nothing measured alone: every term starts equal."""
    if evaluations > len(data.rows):
        return None
    rows, errors = data.rows[:evaluations], data.truth[:evaluations]
    start = np.full(rows.shape[1], float(np.mean(errors**2)) / rows.shape[1])
    return fit_terms(rows, errors, start, np.ones(evaluations)).predict(data.test_rows)


def least_squares(data: Data, evaluations: int) -> np.ndarray | None:
    """Non-negative least squares of the squared error on the columns."""
    if evaluations > len(data.rows):
        return None
    model = LinearRegression(positive=True, fit_intercept=False)
    model.fit(data.rows[:evaluations], data.truth[:evaluations] ** 2)
    return np.asarray(np.sqrt(np.maximum(model.predict(data.test_rows), 1e-18)))


def quadratic(data: Data, evaluations: int) -> np.ndarray | None:
    """The notes' quadratic regression in blocks, with a ridge since there are more terms than subsets."""
    if evaluations > len(data.rows):
        return None
    features = PolynomialFeatures(2, interaction_only=True)
    model = Ridge(1.0).fit(features.fit_transform(data.rows[:evaluations, : data.blocks]), data.truth[:evaluations])
    return np.asarray(model.predict(features.transform(data.test_rows[:, : data.blocks])))


CANDIDATES: dict[str, Candidate] = {
    OURS: ours,
    "the same, active choice": active,
    "the same, Gaussian process on the rest": gaussian_process,
    "blocks alone, norms": norms,
    "subsets only": subsets_only,
    "least squares on squares": least_squares,
    "quadratic in blocks": quadratic,
}


def _ours(data: Data, count: int, measured: Measured, order: Sequence[int] | None = None) -> np.ndarray | None:
    if count > len(data.rows):
        return None
    some = replace(measured, **_first(measured, range(count) if order is None else order))
    terms = fit_outputs(some, unseen=False).terms.values()
    return np.asarray(np.max([each.predict(data.test_rows) for each in terms], axis=0))


def _first(measured: Measured, order: Sequence[int]) -> dict[str, Any]:
    return {
        "subsets": [measured.subsets[i] for i in order],
        "subset_readings": [measured.subset_readings[i] for i in order],
    }


def _least_sure(data: Data, count: int) -> list[int]:
    """Greedy D-optimal order of the training subsets under the fit linearised at its start (ridge 0.3 on factors)."""
    terms = fit_outputs(replace(data.measured, subsets=[], subset_readings=[]), unseen=False).terms
    start = next(iter(terms.values())).noise
    shares = 0.5 * data.rows * start / np.maximum(data.rows @ start, 1e-30)[:, None]
    spread = np.eye(len(start)) / 0.3
    chosen: list[int] = []
    for _ in range(min(count, len(shares))):
        unsure = np.einsum("si,ij,sj->s", shares, spread, shares)
        unsure[chosen] = -1.0
        best = int(np.argmax(unsure))
        chosen.append(best)
        reach = spread @ shares[best]
        spread -= np.outer(reach, reach) / (1.0 + shares[best] @ reach)
    return chosen


def load(name: str, views: int, train: int) -> tuple[Data, int]:
    """Measure or read everything of one network; how many inputs it was measured on."""
    network = open_network(name, views)
    graph, forms = network.work.graph, precisions(DEFAULT_SCHEME)
    columns = design(graph, forms)
    by_name = {form.name: form for form in forms}
    singles: list[Assignment] = [{block: by_name[form]} for block, form in columns.own]
    wires = [flow for flow in dict.fromkeys(flow for flow, _ in columns.edge) if flow in network.meter.wires]
    alone = readings(network, "blocks", singles, [None] * len(singles), sketch=True)
    flows = readings(network, "tensors", [{} for _ in wires], wires, sketch=True)
    subsets: list[Assignment] = [*random_subsets(graph, forms, train + TEST, 7)]
    known = readings(network, "subsets", subsets, [None] * len(subsets), sketch=False)
    rows = np.array([columns.row(each) for each in subsets])
    truth = np.array([float(each.l2.max()) for each in known])
    cut = len(subsets) - TEST
    flows_alone = dict(zip(wires, flows, strict=True))
    measured = Measured(columns, tuple(forms), singles, alone, flows_alone, subsets[:cut], known[:cut])
    data = Data(measured, rows[:cut], truth[:cut], len(columns.own), rows[cut:], truth[cut:])
    return data, inputs_of(network.work.data.held_out)


def coverage(data: Data, order: np.ndarray) -> tuple[float, float]:
    """Upper end of a prediction of 1 by the training subsets in `order`, and what share of the others it covers."""
    fitted = fit_outputs(replace(data.measured, **_first(data.measured, [*map(int, order)])))
    upper = upper_miss([float(each) for each in np.log(data.truth[order] / fitted.unseen)], CONFIDENCE, 1.0)
    others = np.setdiff1d(np.arange(len(data.rows)), order)
    rows = np.concatenate([data.rows[others], data.test_rows])
    truth = np.concatenate([data.truth[others], data.test_truth])
    predicted = np.max([each.predict(rows) for each in fitted.terms.values()], axis=0)
    return float(np.exp(upper)), float(np.mean(truth <= predicted * np.exp(upper)))


def judge(name: str, data: Data, inputs: int) -> dict[str, Any]:
    """Scores of every candidate at every budget, and how often the upper end of ours covers unseen subsets."""
    scores: dict[str, dict[int, Any]] = {}
    for label, candidate in CANDIDATES.items():
        for budget in BUDGETS:
            predicted = candidate(data, budget)
            if predicted is not None:
                scores.setdefault(label, {})[budget] = asdict(score(predicted, data.test_truth))
        print(f"  {name}: {label} done", flush=True)
    judged = min(JUDGED, len(data.measured.singles) + len(data.measured.flows) + len(data.rows))
    final = ours(data, judged)
    assert final is not None, f"what is measured alone must fit into {JUDGED} evaluations"
    count = data.spend(judged, blocks=True, flows=True)
    judged_upper = coverage(data, np.arange(count))
    draws = [np.random.default_rng(each).permutation(len(data.rows))[:PRODUCT] for each in range(DRAWS)]
    drawn = [coverage(data, each) for each in draws]
    picture = RESULTS / f"error_curves_{name}.svg"
    series = [
        Series(label, np.array(list(each), float), np.array([s["median_relative"] for s in each.values()]))
        for label, each in scores.items()
    ]
    picture.write_text(curves(f"{name}: all blocks, unseen subsets", "evaluations", "median relative error", series))
    pair = RESULTS / f"error_curves_{name}_scatter.svg"
    panel = Series(f"ours, {judged} evaluations", data.test_truth * 100, final * 100)
    pair.write_text(scatter(f"{name}: all blocks", "error, %", [panel]))
    return {
        "case": name,
        "inputs": inputs,
        "blocks": len(data.measured.singles),
        "tensors": len(data.measured.flows),
        "scores": scores,
        "judged": judged,
        "final": asdict(score(final, data.test_truth)),
        "upper": judged_upper,
        "drawn_uppers": drawn,
        "pictures": [picture.name, pair.name],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--views", type=int, default=VIEWS, help="inputs shown of each photograph")
    parser.add_argument("--train", type=int, default=1000, help="random subsets to learn from")
    options = parser.parse_args()
    results, rows, wide = [], [], []
    for name in options.cases.split(","):
        try:
            data, inputs = load(name, options.views, options.train)
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        result = judge(name, data, inputs)
        results.append(result)
        alone = f"{result['blocks']} + {result['tensors']}"
        best = result["final"]
        cells = [
            name,
            str(inputs),
            alone,
            str(result["judged"]),
            f"{best['spearman']:.4f}",
            f"{best['median_relative']:.2%}",
        ]
        upper, covered = result["upper"]
        uppers, shares = zip(*result["drawn_uppers"], strict=True)
        cells += [f"{best['r2']:.4f}", f"{upper:.3f}", f"{covered:.1%}"]
        cells += [f"{np.mean(uppers):.3f}", f"{np.mean(shares):.1%}", f"{min(shares):.1%}"]
        rows.append(cells)
        print(" | ".join(cells), flush=True)
        for label, each in result["scores"].items():
            values = [each.get(budget) for budget in BUDGETS]
            wide.append([name, label, *("" if v is None else f"{v['median_relative']:.1%}" for v in values)])
    header = ["network", "inputs", "alone", "evaluations", "Spearman", "median relative error", "R²", "upper end ×"]
    header += [f"covers of all unseen ({CONFIDENCE:.0%} stated)", f"upper end × of {PRODUCT} subsets"]
    table = markdown([*header, f"covers, mean of {DRAWS} draws", "least"], rows)
    table += "\n\nMedian relative error by evaluations:\n\n" + markdown(["network", "model", *map(str, BUDGETS)], wide)
    table += "\n\n" + "\n".join(f"![{r['case']}]({picture})" for r in results for picture in r["pictures"])
    print(f"wrote {write('error_curves', {'options': vars(options), 'cases': results}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
