"""Choose the threads of a run by racing a few numbers of them. Chooses nothing else."""

from collections.abc import Sequence
from dataclasses import replace

from taglio.confirm.race import Patience, compared
from taglio.cores import available_cores
from taglio.deploy.write import write_in_way
from taglio.errors import BadOption, MeasurementFailed, plural
from taglio.flow.confirm import Deliveries
from taglio.lab.work import Work
from taglio.notes import Kind, Note
from taglio.plan.result import Plan

# More threads must be faster by this factor than fewer: a processor has other work to do.
_WORTH = 1.02
# A choice among a few numbers needs less time than a result.
_PATIENCE = Patience(seconds=6.0, most_pairs=20)


def numbers_of_threads(cores: int) -> list[int]:
    """The numbers that are raced: one, half of the cores, and all."""
    return sorted({1, max(1, cores // 2), cores})


def with_threads(work: Work, plan: Plan | None = None) -> tuple[Work, Note | None]:
    """The work with as many threads as suit the source model in ONNX Runtime, or a `plan`, and a note where they were
    chosen or could not be raced. Beside a plan, the source is still raced with its own number."""
    current, candidates = work.setup.threads, numbers_of_threads(available_cores())
    numbers = candidates if plan is None else sorted({*candidates, current})
    if len(numbers) == 1:
        return work, None
    try:
        speeds = _speeds(work, plan, numbers)
    except (BadOption, MeasurementFailed) as error:
        return work, Note(Kind.THREADS, f"numbers of threads were not compared: {error}")
    best = min(number for number in numbers if speeds[number] * _WORTH >= max(speeds.values()))
    gains = {number: speeds[best] / speeds[number] for number in numbers if number != best}
    if plan is None:
        others = " and ".join(f"{gain:.2f} × as fast as with {number}" for number, gain in gains.items())
        text = f"float32 runs with {plural(best, 'thread')}: {others}"
        return work.but(setup=replace(work.setup, threads=best)), Note(Kind.THREADS, text)
    if gains.get(current, 1.0) < _WORTH:
        return work, None
    text = f"the plan runs with {plural(best, 'thread')}: {gains[current]:.2f} × as fast as with float32's {current}"
    setup = replace(work.setup, threads=best, source_threads=work.setup.threads_of_source)
    return work.but(setup=setup), Note(Kind.THREADS, text)


def _speeds(work: Work, plan: Plan | None, numbers: Sequence[int]) -> dict[int, float]:
    """By number of threads, the speed of the source model or a plan as a multiple of that with the first number, over a
    few openings. Raises MeasurementFailed for what cannot be run, and BadOption for what cannot be delivered."""
    with Deliveries(work) as deliveries:
        if plan is None:
            folders = [deliveries.source(number) for number in numbers]
        else:
            options, folders = work.setup.options(plan.runtime), [deliveries.root / str(number) for number in numbers]
            for number, folder in zip(numbers, folders, strict=True):
                write_in_way(folder, deliveries.folder(plan), replace(options, threads=number).way)
        first, *others = folders
        ratios = [1.0, *(speedup.ratio for speedup in compared(deliveries.bench, first, others, _PATIENCE))]
    return dict(zip(numbers, ratios, strict=True))
