"""Is taglio's plan the fastest that holds the bound? Against float, all-int8, top-K by FLOPs, the notes' "only layers
with speed-up > 1", and a sensitivity-greedy exclusion as NNCF's accuracy control does.

Each rival is built twice: by ONNX Runtime's own `quantize_static` in the form its documentation recommends for x86,
as its users would, and by taglio's builder under the scheme that taglio chose. Calibration and held-out inputs are the
same for all, only those that hold the bound count, and all models of a network are timed in one interleaved session.

    python benchmarks/quality.py [--cases a,b] [--bounds 0.005,0.01,0.02,0.05]
"""

import argparse
import sys
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
from taglio.quantize.precision import Precision, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme
from taglio.search.decide import decide
from taglio.search.explore import meters
from taglio.search.screen import screen

# After so many more blocks in float than taglio's meter asks for, ONNX Runtime's greedy model is given up.
_MORE = 3


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What taglio measured of a network under one scheme."""

    scheme: Scheme
    builder: QdqBuilder
    profile: Profile
    model: ErrorModel
    everything: dict[str, Precision]
    int8: Precision


def stages(work: Work, scheme: Scheme, effort: float) -> Stages:
    builder = work.builder(scheme)
    profile = profile_as(work.at(effort), scheme)
    model = error_model(work, profile, effort=effort)
    everything = dict(pure_assignments(work.graph, precisions(scheme))["int8"])
    int8 = next(precision for precision in precisions(scheme) if precision.form == "whole")
    return Stages(scheme, builder, profile, model, everything, int8)


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A model to time, its error, and the one bound it was made for (None: any). `kind`: taglio, same or ort."""

    name: str
    kind: str
    build: Any
    error: float
    bound: float | None


def same_builder(work: Work, at: Stages, bounds: list[float], speedup: dict[str, float]) -> list[Contender]:
    """The rivals' choices, built as taglio builds."""
    meter = meters(work, at.profile, Limits(max(bounds)))[1]()
    tag = f" ({at.scheme})"
    result = [
        Contender(name + tag, "same", partial(at.builder.build, chosen), meter.error(chosen), None)
        for name, chosen in fixed(work.graph, at.int8, at.everything, speedup).items()
    ]
    alone = {reading.block: reading.error for reading in at.model.alone if reading.precision == "int8"}
    for bound in bounds:
        for chosen in excluding(work.graph, at.int8, at.everything, alone):
            error = meter.error(chosen) if chosen else 0.0
            if error <= bound:
                result.append(Contender("greedy" + tag, "same", partial(at.builder.build, chosen), error, bound))
                break
    return result


def as_users_do(work: Work, at: Stages, bounds: list[float], speedup: dict[str, float]) -> list[Contender]:
    """The rivals' choices, built by ONNX Runtime's quantiser."""
    result = []
    for name, chosen in fixed(work.graph, at.int8, at.everything, speedup).items():
        made = by_onnxruntime(work, chosen)
        result.append(Contender(name, "ort", partial(_give, made), model_error(work, made), None))
    meter = meters(work, at.profile, Limits(max(bounds)))[0]
    alone = {reading.block: reading.error for reading in at.model.alone if reading.precision == "int8"}
    for bound in bounds:
        tries = 0
        for chosen in excluding(work.graph, at.int8, at.everything, alone):
            if not chosen or tries > _MORE:
                break
            if tries == 0 and meter.error(chosen) > bound:
                continue
            tries += 1
            made = by_onnxruntime(work, chosen)
            error = model_error(work, made)
            if error <= bound:
                result.append(Contender("greedy", "ort", partial(_give, made), error, bound))
                break
    return result


def _give(model: onnx.ModelProto) -> onnx.ModelProto:
    return model


def measure(name: str, bounds: list[float], effort: float, auto: bool) -> dict[str, Any]:
    """Measured latency of every contender at every bound."""
    work = open_case(name)
    chosen = {
        bound: screen(work, None, bound, Metric(), is_forced=True).scheme if auto else DEFAULT_SCHEME
        for bound in bounds
    }
    measured = {scheme: stages(work, scheme, effort) for scheme in dict.fromkeys([DEFAULT_SCHEME, *chosen.values()])}
    plain = measured[DEFAULT_SCHEME]
    layers = speedups(
        layer_times(plain.builder, work.graph, precisions(DEFAULT_SCHEME), work.setup.options(), work.typical[0])
    )
    contenders = [Contender("float", "both", partial(_give, work.model.proto), 0.0, None)]
    contenders += as_users_do(work, plain, bounds, layers)
    for scheme in dict.fromkeys(chosen.values()):
        theirs = [bound for bound in bounds if chosen[bound] == scheme]
        contenders += same_builder(work, measured[scheme], theirs, layers)
    plans = {}
    for bound in bounds:
        at = measured[chosen[bound]]
        profiles = {at.profile.conditions.runtime: at.profile}
        decision = decide(work.at(effort), profiles, at.model, Limits(bound))
        winner = decision.winner
        plans[bound] = winner.plan
        build = partial(at.builder.build, winner.plan.assignment())
        contenders.append(Contender("taglio", "taglio", build, winner.error, bound))
    useful = [
        contender
        for contender in contenders
        if contender.kind == "both" or contender.error <= max(bounds) or "all int8" in contender.name
    ]
    keys = {
        contender: FLOAT_RUN if contender.name == "float" else f"{index} {contender.name}"
        for index, contender in enumerate(useful)
    }
    timed = (
        replace(work.stopwatch, feeds=work.data.held_out.samples[:FEEDS])
        .time(
            {key: contender.build for contender, key in keys.items()},
            replace(work.within(60.0 * effort), minimum=9, maximum=60),
        )
        .all()
    )
    seconds = {contender: timed[key].wall.median_s for contender, key in keys.items()}
    table = []
    for bound in bounds:
        ours = next(contender for contender in useful if contender.kind == "taglio" and contender.bound == bound)

        def best(kind: str, bound: float = bound) -> Contender:
            holding = [e for e in useful if e.kind in (kind, "both") and e.error <= bound and e.bound in (None, bound)]
            if kind == "same":  # of this bound's scheme
                holding = [e for e in holding if e.kind == "both" or f"({chosen[bound]})" in e.name]
            return min(holding, key=lambda one: seconds[one])

        everything = next(contender for contender in useful if contender.kind == "ort" and contender.name == "all int8")
        users, same = best("ort"), best("same")
        table.append(
            {
                "bound": bound,
                "scheme": str(chosen[bound]),
                "taglio_s": seconds[ours],
                "taglio_error": ours.error,
                "predicted_s": plans[bound].predicted_latency_s.value,
                "holds": ours.error <= bound,
                "float_s": seconds[useful[0]],
                "int8_s": seconds[everything],
                "int8_error": everything.error,
                "rival": users.name,
                "rival_s": seconds[users],
                "gain": seconds[users] / seconds[ours],
                "same_builder_rival": same.name,
                "same_builder_rival_s": seconds[same],
                "same_builder_gain": seconds[same] / seconds[ours],
            }
        )
    return {
        "case": name,
        "threads": work.setup.threads,
        "bounds": table,
        "contenders": [
            {
                "name": contender.name,
                "kind": contender.kind,
                "bound": contender.bound,
                "error": contender.error,
                "latency_s": timed[key].wall.median_s,
                "deviation_s": timed[key].wall.deviation_s,
            }
            for contender, key in keys.items()
        ],
    }


def mean(values: list[float]) -> float:
    """Geometric."""
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="digits,ultraface-rfb-320,yunet-n-640,yolo11n-seg,yolo11s-seg")
    parser.add_argument("--bounds", default="0.005,0.01,0.02,0.05")
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--fixed-scheme", action="store_true", help=f"plan under {DEFAULT_SCHEME} instead of auto")
    options = parser.parse_args()
    bounds = [float(bound) for bound in options.bounds.split(",")]
    results, rows, gains, same = [], [], [], []
    for name in options.cases.split(","):
        if name not in CASES:
            parser.error(f"{name} is none of {', '.join(CASES)}")
        try:
            results.append(measure(name, bounds, options.effort, not options.fixed_scheme))
        except FileNotFoundError as error:
            print(f"skipped {error}")
            continue
        for row in results[-1]["bounds"]:
            gains.append(row["gain"])
            same.append(row["same_builder_gain"])
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
                    f"{row['same_builder_rival']} {row['same_builder_gain']:.3f}",
                ]
            )
            print(" | ".join(rows[-1]), flush=True)
    header = ["network", "bound", "float ms", "all int8 ms", "best rival ms", "taglio ms", "error", "scheme"]
    header += ["rival / taglio", "same builder and scheme: rival / taglio"]
    said = (
        f"Rivals by ONNX Runtime's quantize_static ({RECOMMENDED}).\n\n"
        f"Geometric mean of rival / taglio: **{mean(gains):.3f}**, smallest {min(gains):.3f}; against the same choices "
        f"in taglio's own builder and scheme **{mean(same):.3f}**, smallest {min(same):.3f}."
    )
    print(said)
    text = markdown(header, rows) + f"\n\n{said}"
    print(f"wrote {write('quality', {'options': vars(options), 'cases': results}, text)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
