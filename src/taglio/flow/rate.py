"""Choose and confirm how a result is run for a rate: which of the plans, in which way. Plans nothing."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import fsum, log
from pathlib import Path

import numpy as np

from taglio.cores import available_cores
from taglio.deploy.write import Answered, write_samples, write_source
from taglio.errors import BadOption
from taglio.flow.confirm import Ended, raced_inputs, write_plan
from taglio.flow.joining import interface, why_alone
from taglio.flow.running import in_way
from taglio.lab.work import Work
from taglio.memory import make_room
from taglio.notes import Kind, Note
from taglio.plan.result import Limits
from taglio.profile.measure import FLOAT_RUN
from taglio.run.in_process import Executor
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.way import Way
from taglio.scratch import scratch
from taglio.search.decide import Decision
from taglio.search.ledger import Entry
from taglio.ways.bench import LoadBench
from taglio.ways.choose import Bursts, Contender, Goal, Tries, choose
from taglio.ways.climb import Choice, Sides
from taglio.ways.confirm import Opening, Sized, figure, kept_rate, opening, rate_of, under_loads
from taglio.ways.replay import PERCENTILE
from taglio.ways.result import Rate

# Plans that are tried beside float, and ways that openings tell apart, at most.
_PLANS, _FINALISTS = 2, 3
# Shares of the time for confirming: openings, a rate under a real load; latencies under load get what is left.
_OPENINGS_SHARE, _RATE_SHARE = 0.4, 0.4
# Bursts of a model in an opening.
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class RatePatience:
    """How long a rate may take: `choosing` openings tell the last ways apart, and up to `openings`, but at least
    `fewest`, confirm one, all in `seconds`. `effort` is that of the search over ways."""

    effort: Bursts = field(default_factory=Bursts)
    seconds: float = 60.0
    choosing: int = 3
    openings: int = 8
    fewest: int = 3


def rated(work: Work, decision: Decision, limits: Limits, goal: Goal, patience: RatePatience) -> Ended:
    """The fastest of float and the best plans, each in the way that suits it, confirmed.

    Raises BadOption if a limit on latency is below the fastest single run, or one on memory below what any way takes,
    and MeasurementFailed for what cannot be run.
    """
    with _Field(work, decision, goal.threads) as there:
        run_s, memory_bytes = work.setup.run_s, work.setup.memory_bytes
        tries = Tries(there.bench, there.models, there.root, goal, patience.effort, run_s, memory_bytes, there.telling)
        winner, float32 = decision.winner, decision.ledger.float32
        decisions = {_label(decision, winner): decision}
        if float32.holds:
            decisions.setdefault(_label(decision, float32), decision.of(work, float32))
        finalists = []
        ranked = choose(tries)
        for choice in ranked:
            if choice.model not in decisions:
                accepted = decision.accepting(work, there.entries[choice.model], limits)
                if accepted is None:
                    there.models.pop(choice.model)
                    continue
                decisions[choice.model] = accepted
            finalists.append(choice)
            if len(finalists) == _FINALISTS:
                break
        if not finalists:
            raise _nothing_fits(tries)
        rate = _Confirmation(work, there, tries, patience).of(finalists)
    work = work.but(setup=in_way(work.setup, rate.way))
    return Ended(work, decisions[rate.model], None, rate, _notes(rate))


def _notes(rate: Rate) -> tuple[Note, ...]:
    joined = [Note(Kind.NOT_JOINED, f"requests are not joined: {rate.alone}")] if rate.alone else []
    return (*joined, *(Note(Kind.NOT_MEASURED, f"not measured: {what}") for what in rate.left_out))


def _nothing_fits(tries: Tries) -> BadOption:
    limit_s = tries.goal.max_latency_s
    if limit_s is None or all(tries.capacity(choice) > 0.0 and tries.is_too_large(choice) for choice in tries.bursts):
        return BadOption("`memory_limit` is below what any way of running the model takes: give more")
    runs = [[run for burst in bursts for run in burst.runs] for bursts in tries.bursts.values()]
    p95_s = min(float(np.percentile(times, PERCENTILE)) for times in runs)
    return BadOption(
        f"`max_latency_s` {limit_s * 1e3:.3g} ms is too short: in the fastest way, 19 of 20 runs end within "
        f"{p95_s * 1e3:.3g} ms, and 19 of 20 requests must be answered within nine tenths of the limit: give "
        f"{2e3 * p95_s:.3g} ms or more"
    )


class _Field:
    """The models that take part as they are delivered, float in every place and the fastest plans that hold, and the
    process that puts them under load. A context manager."""

    def __init__(self, work: Work, decision: Decision, threads: int | None) -> None:
        self._work, self._decision, self._threads = work, decision, min(available_cores(), threads or available_cores())
        self.alone: dict[str, str] = {}
        self.models: dict[str, Contender] = {}
        self.entries: dict[str, Entry] = {}

    def __enter__(self) -> "_Field":
        with ExitStack() as stack:
            make_room(self._work.memory_bytes)
            self.root, samples = stack.enter_context(scratch()), stack.enter_context(scratch())
            write_samples(samples, [Answered(sample, {}) for sample in raced_inputs(self._work)])
            for entry in self._entered():
                self._add(entry, *(stack.enter_context(scratch()) for _ in range(2)))
            self.bench = stack.enter_context(LoadBench(samples))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def telling(self, done: int, total: int) -> None:
        """Tell how far the search is."""
        if self._work.progress is not None:
            self._work.progress("ways", done, total)

    def _entered(self) -> list[Entry]:
        winner, holding = self._decision.winner.key, self._decision.ledger.holding
        plans = sorted((entry for entry in holding if entry.name != FLOAT_RUN), key=lambda entry: entry.key != winner)
        return [*(entry for entry in holding if entry.name == FLOAT_RUN), *plans[:_PLANS]]

    def _add(self, entry: Entry, folder: Path, components: Path) -> None:
        work, name = self._work, _label(self._decision, entry)
        self.entries[name] = entry
        manifest = write_plan(work, self._decision.of(work, entry).plan, folder, components)
        executor = Executor(components, manifest, work.setup.options())

        def run(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return dict(zip(manifest.outputs, map(np.asarray, executor.run(feed)), strict=True))

        inputs, _ = interface(components, manifest)
        self.alone[name] = why_alone(components, manifest, work.setup, inputs, run)
        sides = Sides(available_cores(), self._threads, joined=not self.alone[name], pools=entry.runtime == NAME)
        self.models[name] = Contender(name, entry.runtime, folder, sides, entry.name == FLOAT_RUN)


def _label(decision: Decision, entry: Entry) -> str:
    """The name of a plan, with its place where that is not the one of the float model that plans are compared with."""
    return entry.name if entry.runtime == decision.ledger.first else f"{entry.name}, {entry.runtime}"


@dataclass(frozen=True, slots=True)
class _Confirmation:
    """Openings of the last ways: a few choose, the others are reported."""

    work: Work
    there: _Field
    tries: Tries
    patience: RatePatience

    def of(self, finalists: Sequence[Choice]) -> Rate:
        """The rate of the fastest of some ways."""
        begun, patience, bench = time.perf_counter(), self.patience, self.there.bench
        best = self._fastest(finalists)
        way, sized = best.way, self._sized(best)
        one = self._source(1)
        models = [one, sized] if way.at_once == 1 else [one, sized, self._source(way.at_once)]
        many = len(models) - 1 if way.at_once > 1 else 0
        openings = self._openings(models, begun + _OPENINGS_SHARE * patience.seconds)
        capacity = figure([there.per_s(1, way) for there in openings])
        rate, p95_s, base, left_out = None, None, None, list[str]()
        limit_s = self.tries.goal.max_latency_s
        if limit_s is not None and (replayed := rate_of(openings, 1, way, limit_s)) is not None:
            kept = kept_rate(bench, sized.folder, replayed, limit_s, _RATE_SHARE * patience.seconds)
            rate, p95_s = kept.rate, kept.p95_s
            left_out += [kept.why] if kept.why else []
            floats = [rate_of(openings, index, models[index].way, limit_s) for index in {0, many}]
            base = max((known.value for known in floats if known is not None), default=None)
        left_s = max(0.0, begun + patience.seconds - time.perf_counter())
        loads, too_long = under_loads(bench, sized.folder, capacity.value, left_s)
        return Rate(
            model=best.model,
            runtime=self.there.models[best.model].runtime,
            way=way,
            capacity_per_s=capacity,
            over_one=figure([there.ratio((1, way), (0, one.way)) for there in openings]),
            over_many=figure([there.ratio((1, way), (many, models[many].way)) for there in openings]),
            callers=way.at_once,
            openings=len(openings),
            memory_bytes=self.tries.memory[best],
            max_latency_s=limit_s,
            rate_per_s=rate,
            p95_s=p95_s,
            base_rate_per_s=base,
            loads=loads,
            tried=tuple(self.tries.tried()),
            alone=self.there.alone[best.model],
            left_out=(*left_out, *filter(None, [too_long])),
        )

    def _fastest(self, finalists: Sequence[Choice]) -> Choice:
        if len(finalists) == 1:
            return finalists[0]
        sized, limit_s = [self._sized(choice) for choice in finalists], self.tries.goal.max_latency_s
        openings = [self._opening(sized) for _ in range(self.patience.choosing)]

        def value(index: int) -> float:
            way = finalists[index].way
            if limit_s is None:
                return fsum(log(there.ratio((index, way), (0, finalists[0].way))) for there in openings)
            rate = rate_of(openings, index, way, limit_s)
            return 0.0 if rate is None else rate.value

        return finalists[max(range(len(finalists)), key=value)]

    def _openings(self, models: Sequence[Sized], until: float) -> list[Opening]:
        found = list[Opening]()
        while len(found) < self.patience.fewest or (
            len(found) < self.patience.openings and time.perf_counter() < until
        ):
            if self.work.progress is not None:
                self.work.progress("confirm", len(found), self.patience.openings)
            found.append(self._opening(models))
        return found

    def _opening(self, models: Sequence[Sized]) -> Opening:
        return opening(self.there.bench, models, self.tries.effort.burst_of(self.work.setup.run_s), _ROUNDS)

    def _sized(self, choice: Choice) -> Sized:
        """A model in a way; with a limit on latency, which needs the time of smaller runs, also joining fewer."""
        sizes = [choice.way.joined]
        while self.tries.goal.max_latency_s is not None and sizes[-1] > 1:
            sizes.append(sizes[-1] // 2)
        ways = {items: replace(choice.way, joined=items) for items in sizes}
        return Sized(choice.way, {items: self.tries.folder(Choice(choice.model, way)) for items, way in ways.items()})

    def _source(self, callers: int) -> Sized:
        """The source model as users of ONNX Runtime run it: all cores, and so many callers of one session."""
        work, cores = self.work, available_cores()
        folder = self.there.root / f"source-{callers}"
        folder.mkdir(exist_ok=True)
        write_source(folder, work.source, [spec.name for spec in work.inputs], work.outputs, cores, callers)
        return Sized(Way(cores, callers, spinning=True, shared=True), {1: folder})
