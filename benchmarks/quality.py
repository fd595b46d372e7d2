"""Is taglio's plan the fastest that holds the bound? Against float, all-int8, top-K by FLOPs, the notes' "only layers
with speed-up > 1", and a sensitivity-greedy exclusion as NNCF's accuracy control does.

Rivals are built by ONNX Runtime's own `quantize_static` in the form that its documentation recommends for x86.
Calibration and held-out inputs are the same for all, only those that hold the bound count, and all models of a network
are timed in one interleaved session.

    python benchmarks/quality.py [--cases a,b] [--bounds 0.005,0.01,0.02,0.05]
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from typing import Any

import onnx

from cases import CASES, markdown, open_case, write
from layerwise import layer_times, speedups
from rivals import RECOMMENDED, by_onnxruntime, excluding, fixed, model_error
from taglio.error.loss import Metric
from taglio.error.model import ErrorModel
from taglio.flow.error import error_model
from taglio.flow.profile import profile_as
from taglio.lab.work import Work
from taglio.plan.result import Limits
from taglio.profile.measure import FLOAT_RUN, pure_assignments
from taglio.profile.result import Profile
from taglio.profile.stopwatch import FEEDS
from taglio.quantize.precision import int8_of, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme
from taglio.search.decide import decide
from taglio.search.explore import meter_of
from taglio.search.screen import screen

# After so many more blocks in float than taglio's meter asks for, ONNX Runtime's greedy model is given up.
_MORE = 3


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What taglio measured of a network under one scheme."""

    builder: QdqBuilder
    profile: Profile
    model: ErrorModel


def stages(work: Work, scheme: Scheme, effort: float) -> Stages:
    profile = profile_as(work.at(effort), scheme)
    return Stages(work.builder(scheme), profile, error_model(work, profile, effort=effort))


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A model to time, its error, and the one bound it was made for (None: any)."""

    name: str
    build: Callable[[], onnx.ModelProto]
    error: float
    bound: float | None = None


def rivals(work: Work, at: Stages, bounds: list[float]) -> list[Contender]:
    """The rivals' choices, built by ONNX Runtime's quantiser."""
    forms = precisions(DEFAULT_SCHEME)
    everything = dict(pure_assignments(work.graph, forms)["int8"])
    int8 = int8_of(forms)
    layers = speedups(layer_times(at.builder, work.graph, forms, work.setup.options(), work.typical[0]))
    result = []
    for name, chosen in fixed(work.graph, int8, everything, layers).items():
        made = by_onnxruntime(work, chosen)
        result.append(Contender(name, partial(_give, made), model_error(work, made)))
    meter = meter_of(work, at.profile, Limits(max(bounds)))
    alone = {reading.block: reading.error for reading in at.model.alone if reading.precision == "int8"}
    for bound in bounds:
        tries = 0
        for chosen in excluding(work.graph, int8, everything, alone):
            if not chosen or tries > _MORE:
                break
            if tries == 0 and meter.error(chosen) > bound:
                continue
            tries += 1
            made = by_onnxruntime(work, chosen)
            error = model_error(work, made)
            if error <= bound:
                result.append(Contender("greedy", partial(_give, made), error, bound))
                break
    return result


def _give(model: onnx.ModelProto) -> onnx.ModelProto:
    return model


def measure(name: str, bounds: list[float], effort: float) -> dict[str, Any]:
    """Measured latency of every contender at every bound."""
    work = open_case(name)
    schemes = {bound: screen(work, None, bound, Metric(), is_forced=True).scheme for bound in bounds}
    measured = {scheme: stages(work, scheme, effort) for scheme in dict.fromkeys([DEFAULT_SCHEME, *schemes.values()])}
    others = [Contender(FLOAT_RUN, partial(_give, work.model.proto), 0.0)]
    others += rivals(work, measured[DEFAULT_SCHEME], bounds)
    ours, plans = {}, {}
    for bound, scheme in schemes.items():
        at = measured[scheme]
        decision = decide(work.at(effort), {at.profile.conditions.runtime: at.profile}, at.model, Limits(bound))
        winner = decision.winner
        plans[bound] = winner.plan
        ours[bound] = Contender("taglio", partial(at.builder.build, winner.plan.assignment()), winner.error, bound)
    useful = [one for one in others if one.error <= max(bounds) or one.name == "all int8"] + [*ours.values()]
    keys = {one: FLOAT_RUN if one.name == FLOAT_RUN else f"{index} {one.name}" for index, one in enumerate(useful)}
    stopwatch = replace(work.stopwatch, feeds=work.data.held_out.samples[:FEEDS])
    patience = replace(work.within(60.0 * effort), minimum=9, maximum=60)
    timed = stopwatch.time({key: one.build for one, key in keys.items()}, patience).all()
    seconds = {one: timed[key].wall.median_s for one, key in keys.items()}
    everything = next(one for one in useful if one.name == "all int8")
    table = []
    for bound, plan in plans.items():
        holding = [one for one in others if one in seconds and one.error <= bound and one.bound in (None, bound)]
        rival = min(holding, key=seconds.__getitem__)
        table.append(
            {
                "bound": bound,
                "scheme": str(schemes[bound]),
                "taglio_s": seconds[ours[bound]],
                "taglio_error": ours[bound].error,
                "predicted_s": plan.predicted_latency_s.value,
                "holds": ours[bound].error <= bound,
                "float_s": seconds[others[0]],
                "int8_s": seconds[everything],
                "int8_error": everything.error,
                "rival": rival.name,
                "rival_s": seconds[rival],
                "gain": seconds[rival] / seconds[ours[bound]],
            }
        )
    contenders = [
        {
            "name": one.name,
            "bound": one.bound,
            "error": one.error,
            "latency_s": timed[key].wall.median_s,
            "deviation_s": timed[key].wall.deviation_s,
        }
        for one, key in keys.items()
    ]
    return {"case": name, "threads": work.setup.threads, "bounds": table, "contenders": contenders}


def mean(values: list[float]) -> float:
    """Geometric."""
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,yunet-n-640,yolo11n-seg,yolo11s-seg")
    parser.add_argument("--bounds", default="0.005,0.01,0.02,0.05")
    parser.add_argument("--effort", type=float, default=1.0)
    options = parser.parse_args()
    bounds = [float(bound) for bound in options.bounds.split(",")]
    results, rows, gains = [], [], []
    for name in options.cases.split(","):
        if name not in CASES:
            parser.error(f"{name} is none of {', '.join(CASES)}")
        try:
            results.append(measure(name, bounds, options.effort))
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        for row in results[-1]["bounds"]:
            gains.append(row["gain"])
            mark = "" if row["int8_error"] <= row["bound"] else " (breaks)"
            rows.append(
                [
                    name,
                    f"{row['bound']:.1%}",
                    f"{row['float_s'] * 1e3:.2f}",
                    f"{row['int8_s'] * 1e3:.2f}{mark}",
                    f"{row['rival']} {row['rival_s'] * 1e3:.2f}",
                    f"**{row['taglio_s'] * 1e3:.2f}**",
                    f"{row['taglio_error']:.2%}",
                    row["scheme"],
                    f"{row['gain']:.3f}",
                ]
            )
            print(" | ".join(rows[-1]), flush=True)
    header = ["network", "bound", "float ms", "all int8 ms", "best rival ms", "taglio ms", "error", "scheme"]
    header.append("rival / taglio")
    said = (
        f"Rivals by ONNX Runtime's quantize_static ({RECOMMENDED}).\n\n"
        f"Geometric mean of rival / taglio: **{mean(gains):.3f}**, smallest {min(gains):.3f}."
    )
    print(said)
    text = markdown(header, rows) + f"\n\n{said}"
    print(f"wrote {write('quality', {'options': vars(options), 'cases': results}, text)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
