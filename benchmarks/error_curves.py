"""How well is the error of unseen subsets predicted, after how many evaluations? All blocks that can be int8.

Predictions are compared with 100 random subsets of mixed sizes, which no fit has seen. Blocks that are measured alone
count as evaluations.

Photographs are few, and the outputs of a detector are nearly zero but for a handful of cells: measured on five
pictures, the error of one output jumps by 20 % when any early block is rounded differently. So the held-out photographs
(never the calibration ones) are also shown in parts, each enlarged to the input's size: `--views` inputs a photograph.

    python benchmarks/error_curves.py [--cases a,b] [--views 3]
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from cases import markdown, open_case, write
from taglio.conformal import COVERAGE, conformal_quantile
from taglio.data.dataset import Split
from taglio.error.combine import Measured, fit_outputs
from taglio.error.measure import ErrorMeter
from taglio.error.parts import whole
from taglio.error.study import random_subsets
from taglio.error.terms import design
from taglio.lab.work import Work
from taglio.quantize.precision import Assignment, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME

NETWORKS = ("ultraface-rfb-320", "yunet-n-640", "digits")
# Where a part begins, as a share of height and width; each is 0.6 of both.
PARTS = ((0.0, 0.0), (0.4, 0.4), (0.0, 0.4), (0.4, 0.0))
PART_SIZE = 0.6
VIEWS = 3
DIGITS = 64
BUDGETS = (160, 192, 256, 400)
TEST = 100
# Never the seed of a study.
SEED = 7


@dataclass(frozen=True, slots=True)
class Score:
    """How predictions compare with measured errors of unseen subsets; `upper` is the upper end of a prediction of 1,
    and `covers` the share of errors below the upper end of their own prediction."""

    evaluations: int
    spearman: float
    median_relative: float
    r2: float
    upper: float
    covers: float


def open_network(name: str, views: int) -> tuple[Work, ErrorMeter]:
    """The network `name`, and a meter on its held-out inputs."""
    work = open_case(name)
    samples = work.data.held_out.samples
    if name == "digits":
        samples = samples[:DIGITS]
    else:
        samples = tuple(view for sample in samples for view in views_of(sample, views))
    held_out = replace(work.data.held_out, samples=samples)
    work = work.but(data=Split(work.data.calibration, held_out))
    return work, ErrorMeter(work.switchable(DEFAULT_SCHEME), samples, whole(work.model.outputs))


def views_of(sample: Mapping[str, np.ndarray], count: int) -> list[Mapping[str, np.ndarray]]:
    """A picture whole and in parts, `count` in all."""
    ((name, picture),) = sample.items()
    height, width = picture.shape[2:]
    result: list[Mapping[str, np.ndarray]] = [sample]
    for top, left in PARTS[: count - 1]:
        rows = slice(int(top * height), int((top + PART_SIZE) * height))
        columns = slice(int(left * width), int((left + PART_SIZE) * width))
        channels = [
            np.asarray(Image.fromarray(channel[rows, columns]).resize((width, height), Image.Resampling.BILINEAR))
            for channel in picture[0]
        ]
        result.append({name: np.stack(channels)[None].astype(picture.dtype)})
    return result


def measure(name: str, views: int) -> dict[str, Any]:
    """The scores of one network after each number of evaluations."""
    work, meter = open_network(name, views)
    forms = precisions(DEFAULT_SCHEME)
    columns = design(work.graph, forms)
    by_name = {form.name: form for form in forms}
    singles: list[Assignment] = [{block: by_name[form]} for block, form in columns.own]
    alone = [meter.read(single) for single in singles]
    most = max(0, BUDGETS[-1] - len(alone))
    subsets: list[Assignment] = [*random_subsets(work.graph, forms, most + TEST, SEED)]
    readings = [meter.read(subset) for subset in subsets]
    measured = Measured(columns, tuple(forms), singles, alone, subsets[:most], readings[:most])
    rows = np.array([columns.row(subset) for subset in subsets])
    truth = np.array([float(reading.l2.max()) for reading in readings])
    counts = [budget - len(alone) for budget in BUDGETS]
    scores = [score(measured, count, rows, truth) for count in counts if count > 0]
    inputs = len(work.data.held_out.samples)
    return {"case": name, "inputs": inputs, "blocks": len(alone), "scores": scores}


def score(measured: Measured, count: int, rows: np.ndarray, truth: np.ndarray) -> Score:
    """The fit to the first `count` subsets, compared with the last TEST of `rows` and `truth`."""
    part = replace(measured, subsets=measured.subsets[:count], subset_readings=measured.subset_readings[:count])
    fitted = fit_outputs(part)
    upper = float(np.exp(conformal_quantile(np.log(truth[:count] / fitted.unseen).tolist())))
    predicted = np.max([terms.predict(rows[-TEST:]) for terms in fitted.terms.values()], axis=0)
    truth = truth[-TEST:]
    return Score(
        len(measured.singles) + count,
        float(np.corrcoef(ranks(predicted), ranks(truth))[0, 1]),
        float(np.median(np.abs(predicted / truth - 1.0))),
        1.0 - float(((predicted - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()),
        upper,
        float(np.mean(truth <= predicted * upper)),
    )


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--views", type=int, default=VIEWS, help="inputs shown of each photograph")
    options = parser.parse_args()
    results, rows, curves = [], [], []
    for name in options.cases.split(","):
        try:
            result = measure(name, options.views)
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        scores = result["scores"]
        last = scores[-1]
        cells = [name, str(result["inputs"]), str(result["blocks"]), str(last.evaluations)]
        cells += [f"{last.spearman:.4f}", f"{last.median_relative:.2%}", f"{last.r2:.4f}", f"{last.upper:.3f}"]
        rows.append([*cells, f"{last.covers:.1%}"])
        print(" | ".join(rows[-1]), flush=True)
        medians = {point.evaluations: f"{point.median_relative:.1%}" for point in scores}
        curves.append([name, *(medians.get(budget, "") for budget in BUDGETS)])
        results.append({**result, "scores": [asdict(point) for point in scores]})
    header = ["network", "inputs", "alone", "evaluations", "Spearman", "median relative error", "R²", "upper end ×"]
    table = markdown([*header, f"covers of the unseen ({COVERAGE:.0%} stated)"], rows)
    table += "\n\nMedian relative error by evaluations:\n\n" + markdown(["network", *map(str, BUDGETS)], curves)
    print(f"wrote {write('error_curves', {'options': vars(options), 'cases': results}, table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
