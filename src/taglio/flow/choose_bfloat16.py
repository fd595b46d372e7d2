"""If bfloat16 is fast but breaks the limit, or leaves little of it to int8: find the blocks that may compute in it.

Each block's seconds in both precisions are measured inside the whole model, and its error alone in bfloat16 on the
switchable graph. Errors of blocks add as those of forms do: as squares. So the choice is a mixed-integer program, in
which converting a tensor to the other precision costs seconds. It is measured in OpenVINO, which corrects the next.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from math import inf, isfinite
from operator import itemgetter

import numpy as np

from taglio.error.loss import Metric
from taglio.error.switchable import Switchable
from taglio.error.tally import Reference
from taglio.flow.work import Work
from taglio.model.graph import Block, Graph
from taglio.plan.program import ONE, ZERO, Program, weighted
from taglio.plan.result import GAP
from taglio.profile.attribution import Attributor
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.sessions import sessions_within
from taglio.profile.stopwatch import Effort, time_models
from taglio.progress import reported
from taglio.quantize.precision import BFLOAT16
from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.onnxruntime import NAME as ONNXRUNTIME
from taglio.runtimes.openvino import BF16, MIXED, NAME, compiled, marked

# Seconds, at effort 1, for the errors of blocks alone, and again for choices; lower efforts than _LEAST count as that.
_BUDGET_S, _LEAST = 6.0, 0.6
# The fewest runs that tell blocks apart, and the most times the budget that they may take.
_RUNS, _LONGER = 16, 3.0
# Inputs for the error of a block alone if the budget holds _RUNS on each, else one; a choice is measured on all that
# are given.
_FEW = 2
# Neighbours share a measurement if time is short. Groups are first as large as takes this share of it; the rest is for
# dividing those with the largest errors.
_FIRST = 0.5
# The share of the limit that a choice may use: on other inputs its error differs.
_SHARE = 0.8
# The share of the seconds that int8 saves where all of the limit is left to it; it was 0.1 to 0.2 on networks that were
# trained.
_INT8_SAVES = 0.15
# A choice is worth it if it takes at most this share of float32's time.
_WORTH = 0.97
# Choices, at most; sweeps of a correction over all that was measured, and the most by which one corrects other blocks;
# and how many times the limit an error counts at most, if it is infinite too.
_TRIED, _SWEEPS, _SURPRISE, _FAR = 16, 100, 2.0, 4.0
# The fewest sessions that choose well: to time both precisions, to measure blocks alone, eight choices, and to time the
# best. Opening them may take this many times the budget.
_SESSIONS, _OPENING = 14, 5.0
_KERNELS, _WALL = Effort(maximum=20, budget_s=0.3), Effort(maximum=60, budget_s=0.2)
# Copies of the weights, at most, while models are compared.
_COPIES = 4
# Seconds to convert a byte between the precisions, and the bytes that take as long as an operator by itself.
_BYTE_S, _ONE = 2e-10, 32768.0
# Nodes of branch and bound for a choice, and the safety net of seconds.
_NODES, _SOLVE_S = 1000, 20.0
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Choice:
    """The tensors that are computed in bfloat16, and the float model's seconds and error with them."""

    bfloat16: tuple[str, ...]
    seconds: float
    error: float


def choose_bfloat16(work: Work, reference: Reference, limit: float, metric: Metric, float_s: float) -> Choice | str:
    """The fastest choice for the float model that keeps a share of `limit` on the inputs of `reference`. The reason,
    one line, if none is clearly faster than `float_s`, OpenVINO's time in float32, if the model is too slow to measure
    errors of many blocks, or if memory does not hold the weights often enough."""
    budget_s = max(_LEAST, work.effort) * _BUDGET_S
    weight_bytes = sum(block.weight_bytes(32) for block in work.graph.blocks)
    if work.memory_bytes is not None and _COPIES * weight_bytes > work.memory_bytes:
        return f"the memory limit does not hold {_COPIES} copies of the weights, as choosing its blocks needs"
    least_s = _RUNS * float_s
    if least_s > _LONGER * budget_s:
        return f"a run takes {float_s:.2g} s: its blocks were not chosen; a higher effort chooses them"
    if sessions_within(_OPENING * budget_s, work.model.proto) < _SESSIONS:
        count = len(work.model.proto.graph.node)
        return f"{count:,} operators take long to open: its blocks were not chosen; a higher effort chooses them"
    few = _FEW if _FEW * least_s <= budget_s else 1
    budget_s = max(budget_s, least_s)
    seconds = np.array([_seconds(work, place) for place in (MIXED, BF16)])
    alone = _alone(work, seconds[1], reference.first(few), metric, budget_s)
    squares = np.square([0.0 if block.movement else alone.get(block.name, inf) for block in work.graph.blocks])
    best = _mixed(work, seconds, squares, reference, _SHARE * limit, metric=metric, budget_s=budget_s)
    if best is None:
        return f"no choice of blocks was found that gains and keeps {_SHARE:.0%} of the limit"
    share = _relative(work, best.bfloat16)
    if share > _WORTH:
        return f"the best choice of blocks takes {share:.0%} of the time in {NAME}: no clear gain"
    return replace(best, seconds=float_s * share)


def _mixed(
    work: Work,
    seconds: np.ndarray,
    squares: np.ndarray,
    reference: Reference,
    most: float,
    *,
    metric: Metric,
    budget_s: float,
) -> Choice | None:
    """`searched`, for `budget_s` seconds, with errors on the inputs of `reference`."""
    with work.stored() as path:
        model = marked(path, path.parent)

        def tensors(chosen: np.ndarray) -> tuple[str, ...]:
            return _tensors(work, [work.graph.blocks[index] for index in np.flatnonzero(chosen)])

        def error(chosen: np.ndarray) -> float:
            session = compiled(model.read(tensors(chosen)), work.setup.options(MIXED))
            return reference.loss(metric.basis, partial(session.run, work.model.outputs))

        end = time.perf_counter() + budget_s
        rounds = reported(range(_TRIED), "mixing bfloat16", work.progress)
        found = searched(
            work.graph, seconds, squares, most, error, takewhile(lambda _: time.perf_counter() < end, rounds)
        )
        return found and Choice(tensors(found[0]), *found[1:])


def searched(
    graph: Graph,
    seconds: np.ndarray,
    squares: np.ndarray,
    most: float,
    error: Callable[[np.ndarray], float],
    rounds: Iterable[object],
) -> tuple[np.ndarray, float, float] | None:
    """The choice, bool [blocks], that is expected to be fastest and has an `error` of at most `most`, with its seconds
    and error, from the `seconds` [precision, block] and the `squares` of errors alone, [block].

    In each of the `rounds`, measure what is chosen, correct the squares, and choose again. The first choice that keeps
    the limit is seldom among the fastest, so one that is near it ends nothing.
    """
    fixed = error(np.zeros(len(squares), bool))  # of operators that do not stay in float32
    best, measured = None, dict[bytes, tuple[np.ndarray, float]]()

    def measure(chosen: np.ndarray) -> float:
        found = error(chosen)
        measured[chosen.tobytes()] = chosen, max(min(found, _FAR * most) ** 2 - fixed**2, _TINY)
        return found

    for _ in rounds if fixed < most else ():
        chosen, expected_s = fastest(graph, seconds, squares, most**2 - fixed**2)
        chosen = following(graph, chosen)
        if not chosen.any() or chosen.tobytes() in measured:
            break
        expected = float(squares[chosen].sum())
        found = measure(chosen)
        if found > most:  # half of it tells which blocks are to blame
            added = np.cumsum(np.where(chosen, squares, 0.0))
            half = following(graph, chosen & (added <= added[-1] / 2.0))
            if half.any():
                measure(half)
        elif best is None or expected_s < best[1]:
            best = chosen, expected_s, found
        # The root of the factor by which the estimate was off concerns blocks that were never chosen, too.
        factor = measured[chosen.tobytes()][1] / max(expected, _TINY)
        squares = corrected(squares * np.clip(factor**0.5, 1.0 / _SURPRISE, _SURPRISE), [*measured.values()])
    return best


def corrected(squares: np.ndarray, measured: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    """`squares` of errors alone, [block], scaled so that those of each of the `measured` choices, bool [block], add up
    to what was found of it, as nearly as they can agree.

    Errors of blocks interplay, and those that were chosen may have looked small by chance. This is the multiplicative
    algebraic reconstruction of Gordon, Bender and Herman, 1970: each choice in turn, several times.
    """
    squares = squares.copy()
    for chosen, found in _SWEEPS * [*measured]:
        squares[chosen] *= found / max(float(squares[chosen].sum()), _TINY)
    return squares


def with_int8(seconds: float, error: float, limit: float) -> float:
    """The expected seconds of a plan whose blocks in float take `seconds` and have `error` before any is int8."""
    return seconds * (1.0 - _INT8_SAVES * max(0.0, 1.0 - (error / limit) ** 2) ** 0.5) if limit > 0.0 else seconds


def fastest(graph: Graph, seconds: np.ndarray, squares: np.ndarray, most: float) -> tuple[np.ndarray, float]:
    """Which blocks are in bfloat16, bool [blocks], so that their `squares` add up to at most `most` and the sum of
    `seconds` [precision, block] and of what conversions take is least; and that sum. Model inputs and outputs are
    float32, and so are blocks with infinite squares."""
    program = Program()
    bfloat16 = {
        block.name: program.binary() if isfinite(square) else ZERO
        for block, square in zip(graph.blocks, squares, strict=True)
    }
    costs = [(float(seconds[0].sum()), ONE)]
    costs += [
        (float(more_s), choice) for more_s, choice in zip(seconds[1] - seconds[0], bfloat16.values(), strict=True)
    ]
    for tensor in graph.tensors:
        if tensor.dtype == "float32":
            written = bfloat16[tensor.producer] if tensor.producer is not None else ZERO
            converted = program.fraction()
            for read in [bfloat16[name] for name in tensor.consumers] + [ZERO] * (tensor.name in graph.outputs):
                program.at_most(read - written, converted)
                program.at_most(written - read, converted)
            costs.append((_BYTE_S * (tensor.float_bytes + _ONE), converted))
    added = [(float(square), choice) for square, choice in zip(squares, bfloat16.values(), strict=True) if choice.terms]
    program.limit(added, most)
    solution = program.minimise(weighted(costs), gap=GAP, nodes=_NODES, time_limit_s=_SOLVE_S)
    if solution.values is None:  # out of time
        return np.zeros(len(squares), bool), float(seconds[0].sum())
    return np.array([choice.at(solution.values) > 0.5 for choice in bfloat16.values()]), solution.objective


def following(graph: Graph, chosen: np.ndarray) -> np.ndarray:
    """The choice, bool [blocks], in which movement is in bfloat16 only if all that it reads is. It hands on rounded
    numbers as they are, but would round those of float32 blocks."""
    reads: dict[str, list[str | None]] = {}
    for tensor in graph.tensors:
        for reader in tensor.consumers if tensor.dtype == "float32" else ():
            reads.setdefault(reader, []).append(tensor.producer)
    rounded = set[str | None]()
    for block, each in zip(graph.blocks, chosen, strict=True):
        if each and (not block.movement or rounded.issuperset(reads.get(block.name, ()))):
            rounded.add(block.name)
    return np.array([block.name in rounded for block in graph.blocks])


def _alone(work: Work, seconds: np.ndarray, reference: Reference, metric: Metric, budget_s: float) -> dict[str, float]:
    """The error of each block alone in bfloat16, as ONNX Runtime computes it on rounded numbers. Blocks that OpenVINO
    fuses into others, and take no `seconds`, are measured with the one before. Neighbours are first measured together,
    then the worst of these groups in halves, for `budget_s` seconds; a group shares its result."""
    floats = {tensor.name for tensor in work.graph.tensors if tensor.dtype == "float32"}
    runs: list[list[str]] = []
    for block, each_s in zip(work.graph.blocks, seconds, strict=True):
        if BFLOAT16.fits(block) and floats.issuperset(block.outputs):
            if each_s > 0.0 or not runs:
                runs.append([])
            runs[-1].append(block.name)
    builder, options = QdqBuilder(work.model, work.graph, {}), work.setup.options(ONNXRUNTIME)
    names = [name for run in runs for name in run]
    graph = Switchable(work.model, work.graph, builder, (BFLOAT16,), options, blocks=names)

    def error(some: Collection[str]) -> float:
        return reference.loss(metric.basis, partial(graph.run, dict.fromkeys(some, BFLOAT16)))

    error(())
    begun = time.perf_counter()
    error(())
    end = time.perf_counter() + budget_s
    size = max(1, round(len(runs) * (time.perf_counter() - begun) / (_FIRST * budget_s)))
    groups = [runs[start : start + size] for start in range(0, len(runs), size)]
    first = [(error([*chain(*group)]), group) for group in reported(groups, "trying bfloat16", work.progress)]
    found: dict[str, float] = {}
    for each, group in _divided(first, error, lambda: time.perf_counter() < end):
        members = [*chain(*group)]
        found |= dict.fromkeys(members, each / len(members) ** 0.5)
    return found


def _divided(
    measured: list[tuple[float, list[list[str]]]], error: Callable[[list[str]], float], goes_on: Callable[[], bool]
) -> list[tuple[float, list[list[str]]]]:
    """Errors and groups of runs of blocks, with the worst group divided in halves and measured, again and again while
    `goes_on`."""
    while goes_on() and (several := [each for each in measured if len(each[1]) > 1]):
        worst = max(several, key=itemgetter(0))
        measured.remove(worst)
        middle = len(worst[1]) // 2
        measured += [(error([*chain(*half)]), half) for half in (worst[1][:middle], worst[1][middle:])]
    return measured


def _tensors(work: Work, blocks: Sequence[Block]) -> tuple[str, ...]:
    """The tensors that the operators of `blocks` compute."""
    operators = {operator for block in blocks for operator in block.operators}
    nodes = work.model.proto.graph.node
    return tuple(name for node in nodes if node.name in operators for name in node.output if name)


def _seconds(work: Work, place: str) -> list[float]:
    """Seconds of the float model's kernels in `place`, by block; what is behind a tensor belongs to its producer."""
    options = work.setup.options(place)
    timed = time_models(
        {FLOAT_RUN: lambda: work.model.proto},
        work.timed,
        options,
        replace(_KERNELS, budget_s=work.effort * _KERNELS.budget_s),
        kernels=True,
        progress=work.progress,
        limit_bytes=work.memory_bytes,
    )[FLOAT_RUN]
    known = Attributor(work.model, work.graph).attribute(timed.optimized, timed.kernels)
    by_block = dict(known.blocks_s)
    for tensor in work.graph.tensors:
        if tensor.producer is not None:
            taken = known.tensors_s.get(tensor.name, 0.0)
            by_block[tensor.producer] = by_block.get(tensor.producer, 0.0) + taken
    return [by_block.get(block.name, 0.0) for block in work.graph.blocks]


def _relative(work: Work, bfloat16: tuple[str, ...]) -> float:
    """The float model's time with these tensors in bfloat16, as a share of OpenVINO's in float32, side by side."""
    options = work.setup.options(NAME)
    places = {NAME: options, MIXED: replace(options, runtime=MIXED, bfloat16=bfloat16)}
    timed = time_models(
        dict.fromkeys(places, lambda: work.model.proto),
        work.timed,
        options,
        replace(_WALL, budget_s=work.effort * _WALL.budget_s),
        kernels=False,
        limit_bytes=work.memory_bytes,
        places=places,
    )
    return timed[MIXED].wall.median_s / timed[NAME].wall.median_s
