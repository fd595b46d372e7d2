"""Record real networks for the simulated lab (tests/support/simulated.py): their tables, and what these do not explain.

Of each network a profile and a study of errors are made, as `optimize` does. Then random mixes of forms are timed
beside float in several openings, and the errors of others are measured on the switchable graph and as built. Weights
and inputs stay out of a recording. It is named after the network and the kind of processor.

python benchmarks/record.py [--cases digits,ultraface-rfb-320] [--timed 60] [--measured 240] [--openings 3]
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import log
from statistics import median

import numpy as np

from cases import CASES, ROOT, open_case
from taglio.error.measure import ErrorMeter
from taglio.error.model import ErrorModel
from taglio.error.parts import whole
from taglio.error.tally import Tally
from taglio.flow.error import error_model
from taglio.flow.profile import profile_as
from taglio.lab.work import Work
from taglio.profile.effort import MIXES
from taglio.profile.machine import describe
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile, predict
from taglio.quantize.mixes import random_mixes
from taglio.quantize.precision import Assignment
from taglio.runtimes.onnxruntime import NAME, open_session, run_session

sys.path.insert(0, str(ROOT))
from tests.support.networks import FORMS, SCHEME
from tests.support.recorded import Recording, Residuals, save

NETWORKS = "digits,magika,ultraface-rfb-320,yunet-n-640,ch_PP-OCRv4_det_infer,paraphrase-MiniLM-L3-v2-6000"
# Never the seeds that a profile or a search draws from.
TIMED_SEED, MEASURED_SEED = 20261201, 20261202
# Mixes are timed in groups, about as many side by side as in a profile. Beside 60 others float lost more of its caches
# between turns than mixes did, and these seemed a quarter faster than predicted.
GROUP_S = 0.6
# Errors below this are rounding: nothing is learnt from their ratios.
LEAST_ERROR = 1e-6


def record(name: str, options: argparse.Namespace) -> Recording:
    """The recording of one case."""
    work = open_case(name, 1, NAME)
    work.kept.put(("parts", work.data.held_out.sha256), whole(work.model.outputs))
    work = work.settled(SCHEME)
    profile = profile_as(work, SCHEME)
    errors = error_model(work, profile)
    seconds, openings = _timed(
        work, profile, random_mixes(work.graph, FORMS, options.timed, TIMED_SEED), options.openings
    )
    mixes = random_mixes(work.graph, FORMS, options.measured, MEASURED_SEED).values()
    on_graph, as_built = _measured(work, errors, [*mixes])
    machine = describe()
    return Recording(
        made=f"{machine}, {', '.join(machine.instructions)}",
        graph=work.graph,
        seconds=replace(profile, runs=()),
        errors=replace(errors, subsets=(), notes=()),
        residuals=Residuals(seconds, openings, on_graph, as_built),
    )


def _timed(
    work: Work, profile: Profile, mixes: Mapping[str, Assignment], openings: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Log ratios of measured to predicted seconds by mix, and of openings to their median."""
    builder = work.builder(profile.scheme)
    models = {name: partial(builder.build, mix) for name, mix in {FLOAT_RUN: {}, **mixes}.items()}
    ratios: dict[str, list[float]] = {name: [] for name in mixes}
    for group in [*batched(mixes, MIXES)] * openings:
        together = {name: models[name] for name in (FLOAT_RUN, *group)}
        timed = work.stopwatch.time(together, work.within(GROUP_S), kernels=False).timed
        for name in timed.keys() & set(group):
            ratios[name].append(timed[name].wall.median_s / timed[FLOAT_RUN].wall.median_s)
    float_s = predict(profile, work.graph, {}).total_s
    seconds, offsets = [], []
    for name, measured in ratios.items():
        if len(measured) == openings:
            seconds.append(log(median(measured) * float_s / predict(profile, work.graph, mixes[name]).total_s))
            offsets += [log(ratio / median(measured)) for ratio in measured]
    return tuple(seconds), tuple(offsets)


def batched(names: Iterable[str], most: int) -> Iterator[tuple[str, ...]]:
    """The names in groups of at most `most`."""
    waiting = iter(names)
    while group := tuple(islice(waiting, most)):
        yield group


def _measured(
    work: Work, errors: ErrorModel, mixes: Sequence[Assignment]
) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    """Log ratios by mix and output: error on the switchable graph to the predicted one, and as built to that on the
    graph. Outputs without a model of their own, or without an error, have zeros."""
    samples = work.data.held_out.samples[: errors.samples]
    meter = ErrorMeter(work.switchable(SCHEME), samples, whole(work.model.outputs))
    builder, models = work.builder(SCHEME), {model.output: model for model in errors.outputs}
    on_graph, as_built = [], []
    for mix in filter(None, mixes):
        session = open_session(builder.build(mix), work.setup.options(), label=work.name)
        tally = Tally(whole(work.model.outputs))
        for sample, reference in zip(samples, meter.references, strict=True):
            tally.add(reference, run_session(session, work.model.outputs, sample, work.name))
        del session
        switched, built = meter.read(mix).l2, tally.l2()
        predicted = [
            models[name].from_noise(models[name].noise(work.graph, mix)) if name in models else 0.0
            for name in work.model.outputs
        ]
        on_graph.append(_logs(switched, np.array(predicted)))
        as_built.append(_logs(built, switched))
    return tuple(on_graph), tuple(as_built)


def _logs(errors: np.ndarray, of: np.ndarray) -> tuple[float, ...]:
    usable = np.isfinite(errors) & (errors > LEAST_ERROR) & (of > LEAST_ERROR)
    return tuple(np.where(usable, np.log(np.where(usable, errors, 1.0) / np.where(usable, of, 1.0)), 0.0).tolist())


def main() -> None:
    """Record, and say how far tables are from what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=NETWORKS)
    parser.add_argument("--timed", type=int, default=60)
    parser.add_argument("--measured", type=int, default=240)
    parser.add_argument("--openings", type=int, default=3)
    options = parser.parse_args()
    machine = describe()
    kind = "avx2" if machine.lacks_vnni else "vnni"
    for name in options.cases.split(","):
        try:
            recording = record(CASES[name].name, options)
        except FileNotFoundError as error:
            print(f"skipped {error}", file=sys.stderr)
            continue
        path = save(f"{name}_{kind}", recording)
        residuals = recording.residuals
        spreads = (residuals.seconds, residuals.openings, sum(residuals.errors, ()), sum(residuals.built, ()))
        cells = [f"{np.median(values):+.3f} ± {np.std(values):.3f}" for values in spreads]
        sizes = f"{len(residuals.seconds)} timed, {len(residuals.errors)} measured, {path.stat().st_size // 1024} kB"
        print(" | ".join([name, *cells, sizes]), flush=True)


if __name__ == "__main__":
    main()
