"""Choose the threads of a run by racing a few numbers of them. Chooses nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from taglio.confirm.race import Patience, compared
from taglio.cores import available_cores
from taglio.deploy.write import write_in_way, write_source
from taglio.errors import plural
from taglio.flow.confirm import raced_inputs, write_plan
from taglio.lab.work import Work
from taglio.notes import Kind, Note
from taglio.plan.result import Plan
from taglio.runtimes.way import Way
from taglio.scratch import scratch

# More threads must be faster by this factor than fewer: a processor has other work to do.
_WORTH = 1.02
# A choice among a few numbers needs less time than a result.
_PATIENCE = Patience(seconds=6.0, most_pairs=20)


def numbers_of_threads(cores: int) -> list[int]:
    """The numbers that are raced: one, half of the cores, and all."""
    return sorted({1, max(1, cores // 2), cores})


def with_threads_of_source(work: Work) -> tuple[Work, Note | None]:
    """The work with as many threads as suit the source model in ONNX Runtime, and a note. Raises MeasurementFailed if
    it cannot be run."""
    numbers = numbers_of_threads(available_cores())
    if len(numbers) == 1:
        return work, None
    inputs = [spec.name for spec in work.inputs]
    with scratch() as root:
        folders = [root / str(threads) for threads in numbers]
        for threads, folder in zip(numbers, folders, strict=True):
            folder.mkdir()
            write_source(folder, work.source, inputs, work.outputs, threads)
        ratios = _ratios(work, folders)
    best = _fewest(numbers, ratios)
    others = [
        f"{ratios[best] / ratio:.2f} × as fast as with {number}"
        for number, ratio in zip(numbers, ratios, strict=True)
        if number != numbers[best]
    ]
    text = f"float32 runs with {plural(numbers[best], 'thread')}: {' and '.join(others)}"
    return work.but(setup=replace(work.setup, threads=numbers[best])), Note(Kind.THREADS, text)


def with_threads_of_plan(work: Work, plan: Plan) -> tuple[Work, Note | None]:
    """The work with as many threads as suit a plan, and a note where these are others than before. The source is
    still raced with its own number. Raises as `with_threads_of_source`, and BadOption for what cannot be delivered."""
    now, numbers = work.setup.threads, numbers_of_threads(available_cores())
    numbers = sorted({*numbers, now})
    if len(numbers) == 1:
        return work, None
    with scratch() as root, scratch() as delivered, scratch() as components:
        write_plan(work, plan, delivered, components)
        folders = [root / str(threads) for threads in numbers]
        for threads, folder in zip(numbers, folders, strict=True):
            write_in_way(folder, delivered, Way(threads, spinning=work.setup.spinning))
        ratios = _ratios(work, folders)
    best, current = _fewest(numbers, ratios), numbers.index(now)
    gain = ratios[best] / ratios[current]
    if gain < _WORTH:
        return work, None
    text = f"the plan runs with {plural(numbers[best], 'thread')}: {gain:.2f} × as fast as with float32's {now}"
    setup = replace(work.setup, threads=numbers[best], source_threads=work.setup.threads_of_source)
    return work.but(setup=setup), Note(Kind.THREADS, text)


def _ratios(work: Work, folders: Sequence[Path]) -> list[float]:
    """The speed of each of `folders` as a multiple of that of the first, over a few openings."""
    first, *others = folders
    with work.lab.openings(raced_inputs(work)) as race:
        return [1.0, *(speedup.ratio for speedup in compared(race, first, others, _PATIENCE))]


def _fewest(numbers: Sequence[int], ratios: Sequence[float]) -> int:
    """The index of the fewest threads that are about as fast as the fastest."""
    most = max(ratios)
    return min(index for index in range(len(numbers)) if ratios[index] * _WORTH >= most)
