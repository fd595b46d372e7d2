"""Choose and confirm how a result is run for a rate: which of the plans, in which way. Plans nothing."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, log
from pathlib import Path
from statistics import median

import numpy as np

from taglio.arguments import positive
from taglio.confirm.bench import Bench
from taglio.confirm.race import USUAL
from taglio.cores import available_cores
from taglio.errors import BadOption
from taglio.flow.confirm import Deliveries, Ended, write_plan
from taglio.flow.joining import interface, why_alone
from taglio.lab.work import Work
from taglio.notes import Kind, Note
from taglio.plan.result import Plan
from taglio.profile.measure import FLOAT_RUN
from taglio.run.in_process import Executor
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.way import Way
from taglio.search.decide import Decision
from taglio.search.ledger import Entry
from taglio.ways.choose import Contender, Goal, Tries, burst_of, choose
from taglio.ways.climb import Choice, Sides
from taglio.ways.confirm import Opening, Sized, figure, kept_rate, opening, openings, rate_of, under_loads
from taglio.ways.replay import PERCENTILE
from taglio.ways.result import Rate

LATENCY, RATE = "latency", "rate"
# Plans that are tried beside float, and ways that openings tell apart, at most.
_PLANS, _FINALISTS = 2, 3
# Shares of the time for confirming: openings, a rate under a real load, and that of the source. What is left is for
# latencies under load.
_OPENINGS_SHARE, _RATE_SHARE, _BASE_SHARE = 0.35, 0.35, 0.15
# The usual times of the search over ways and of confirming one.
_SEARCH_S, _CONFIRMED_S = 20.0, 60.0


def goal_of(objective: str, max_latency_s: float | None, threads: int | None) -> Goal | None:
    """The aim of a rate; None for the shortest run. Raises BadOption for what does not fit together."""
    if objective not in (LATENCY, RATE):
        raise BadOption(f"`objective` is {objective}: give {LATENCY} or {RATE}; other aims need a cluster")
    if objective == RATE:
        return Goal(None if max_latency_s is None else positive("max_latency_s", max_latency_s), threads)
    if max_latency_s is not None:
        raise BadOption(f"`max_latency_s` limits a rate: give `objective` {RATE}, too")
    return None


def rated(work: Work, decision: Decision, goal: Goal, share: float) -> Ended:
    """The fastest of float and the best plans, each in the way that suits it, confirmed. It takes a `share` of its
    usual time.

    Raises BadOption if a limit on latency is below the fastest single run, or one on memory below what any way takes,
    and MeasurementFailed for what cannot be run.
    """
    entries = {_label(decision, entry): entry for entry in _entered(decision)}
    threads = min(available_cores(), goal.threads or available_cores())
    with Deliveries(work) as deliveries:
        folders = {name: deliveries.root / f"model-{number}" for number, name in enumerate(entries)}
        models = {
            name: _contender(work, name, entry, decision.of(work, entry).plan, folders[name], threads)
            for name, entry in entries.items()
        }
        seconds, burst_s, most_bytes = share * _SEARCH_S, burst_of(work.setup.run_s), work.setup.memory_bytes
        tries = Tries(deliveries.bench, models, deliveries.root, goal, seconds, burst_s, most_bytes, work.progress)
        winner, float32 = decision.winner, decision.ledger.float32
        decisions: dict[str, Decision | None] = {_label(decision, winner): decision}
        if float32.holds:
            decisions.setdefault(_label(decision, float32), decision.of(work, float32))
        finalists = list[Choice]()
        for choice in choose(tries):
            if len(finalists) == _FINALISTS:
                break
            if choice.model not in decisions:
                decisions[choice.model] = decision.accepting(work, entries[choice.model])
            if decisions[choice.model] is not None:
                finalists.append(choice)
        if not finalists:
            raise _nothing_fits(tries)
        rate = _confirmed(work, deliveries, tries, _fastest(tries, finalists), share * _CONFIRMED_S)
    chosen = decisions[rate.model]
    assert chosen is not None, "finalists are accepted"
    return Ended(work.but(setup=work.setup.in_way(rate.way)), chosen, rate=rate, notes=_notes(rate))


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


def _entered(decision: Decision) -> list[Entry]:
    """Float in every place and the fastest plans that hold, the winner first."""
    winner, holding = decision.winner.key, decision.ledger.holding
    plans = sorted((entry for entry in holding if entry.name != FLOAT_RUN), key=lambda entry: entry.key != winner)
    return [*(entry for entry in holding if entry.name == FLOAT_RUN), *plans[:_PLANS]]


def _contender(work: Work, name: str, entry: Entry, plan: Plan, folder: Path, threads: int) -> Contender:
    """A model as it is delivered, written to `folder`, whose runs have at most so many `threads`."""
    components = folder / "components"
    components.mkdir(parents=True)
    manifest = write_plan(work, plan, folder, components)
    executor = Executor(components, manifest, work.setup.options())

    def run(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(manifest.outputs, map(np.asarray, executor.run(feed)), strict=True))

    inputs, _ = interface(components, manifest)
    alone = why_alone(components, manifest, inputs, run, work.data.held_out.samples)
    sides = Sides(available_cores(), threads, joined=not alone, pools=entry.runtime == NAME)
    return Contender(name, entry.runtime, folder, sides, entry.name == FLOAT_RUN, alone)


def _label(decision: Decision, entry: Entry) -> str:
    """The name of a plan, with its place where that is not the one of the float model that plans are compared with."""
    return entry.name if entry.runtime == decision.ledger.first else f"{entry.name}, {entry.runtime}"


def _fastest(tries: Tries, finalists: Sequence[Choice]) -> Choice:
    """The fastest of some ways over a few openings, which select and are not reported."""
    if len(finalists) == 1:
        return finalists[0]
    sized, limit_s = [_sized(tries, choice) for choice in finalists], tries.goal.max_latency_s
    opened = [opening(tries.bench, sized, tries.burst_s) for _ in range(USUAL.choosing)]

    def value(index: int) -> float:
        if limit_s is None:
            return fsum(log(fresh.ratio(index, 0)) for fresh in opened)
        rate = rate_of(opened, index, limit_s)
        return 0.0 if rate is None else rate.value

    return finalists[max(range(len(finalists)), key=value)]


def _confirmed(work: Work, deliveries: Deliveries, tries: Tries, best: Choice, seconds: float) -> Rate:
    """The rate of a model in a way, beside the source model with one caller and with as many as the way has runs, in so
    many seconds."""
    begun, bench, way, limit_s = time.perf_counter(), deliveries.bench, best.way, tries.goal.max_latency_s
    sized = _sized(tries, best)
    models = [sized, *(_source(deliveries, callers) for callers in sorted({1, way.at_once}))]
    one, many = 1, len(models) - 1
    opened = openings(bench, models, tries.burst_s, _OPENINGS_SHARE * seconds, work.progress)
    capacity = figure([median(fresh.rates(0)) for fresh in opened])
    rate, p95_s, base, left_out = None, None, None, list[str]()
    if limit_s is not None and (replayed := rate_of(opened, 0, limit_s)) is not None:
        kept = kept_rate(bench, sized.folder, replayed, limit_s, _RATE_SHARE * seconds)
        rate, p95_s = kept.rate, kept.p95_s
        left_out += [kept.why] if kept.why else []
        base = _base_rate(bench, opened, models, limit_s, _BASE_SHARE * seconds)
    left_s = max(0.0, begun + seconds - time.perf_counter())
    loads, too_long = under_loads(bench, sized.folder, capacity.value, left_s)
    return Rate(
        model=best.model,
        runtime=tries.models[best.model].runtime,
        way=way,
        capacity_per_s=capacity,
        over_one=figure([fresh.ratio(0, one) for fresh in opened]),
        over_many=figure([fresh.ratio(0, many) for fresh in opened]),
        callers=way.at_once,
        openings=len(opened),
        memory_bytes=tries.memory[best],
        max_latency_s=limit_s,
        rate_per_s=rate,
        p95_s=p95_s,
        base_rate_per_s=base,
        loads=loads,
        tried=tuple(tries.tried()),
        alone=tries.models[best.model].alone,
        left_out=(*left_out, *filter(None, [too_long])),
    )


def _base_rate(
    bench: Bench, opened: Sequence[Opening], models: Sequence[Sized], limit_s: float, seconds: float
) -> float | None:
    """The rate of the source model in the better of its ways, which are all `models` but the first; None if it keeps
    the limit at no rate. It is judged by real loads, as the rate of the chosen way is, because replays promise more:
    spinning threads take the processor from the program that asks. One load that keeps the limit is enough, where the
    chosen way needs three. Where time is up before one does, the rate is an upper end."""
    replayed = {source: rate_of(opened, source, limit_s) for source in range(1, len(models))}
    rates = {source: rate for source, rate in replayed.items() if rate is not None}
    if not rates:
        return None
    best = max(rates, key=lambda source: rates[source].value)
    return kept_rate(bench, models[best].folder, rates[best], limit_s, seconds, loads=1).rate.value


def _sized(tries: Tries, choice: Choice) -> Sized:
    """A model in a way; with a limit on latency, which needs the time of smaller runs, also joining fewer."""
    sizes = [choice.way.joined]
    while tries.goal.max_latency_s is not None and sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    ways = {items: replace(choice.way, joined=items) for items in sizes}
    return Sized(choice.way, {items: tries.folder(Choice(choice.model, way)) for items, way in ways.items()})


def _source(deliveries: Deliveries, callers: int) -> Sized:
    """The source model on all cores, with so many callers of one session."""
    cores = available_cores()
    return Sized(Way(cores, callers, spinning=True, shared=True), {1: deliveries.source(cores, callers)})
