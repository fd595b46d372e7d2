"""Confirm the winner of the search by a race of its own: the delivered files beside the source model. Where it is not
clear that the plan is faster, float stays. Plans nothing."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from taglio.components.build import Manifest
from taglio.confirm.race import USUAL, Patience, compared, confirm
from taglio.confirm.speedup import Speedup
from taglio.data.dataset import Sample, chosen, spread
from taglio.deploy.write import write, write_source
from taglio.errors import BadOption, MeasurementFailed
from taglio.lab.build import assemble
from taglio.lab.work import Work
from taglio.memory import make_room
from taglio.notes import Kind, Note
from taglio.plan.result import Plan
from taglio.runtimes.onnxruntime import NAME, Optimization
from taglio.scratch import scratch
from taglio.search.decide import Decision
from taglio.search.ledger import Entry
from taglio.ways.result import Rate

# An opening runs the model on as many inputs as take this long.
_INPUTS_S, _MOST_INPUTS = 1.0, 8


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """What is delivered: the decision after the race or the search over ways, its speed-up over the source model (None:
    it was not raced) or its rate, and notes."""

    work: Work
    decision: Decision
    speedup: Speedup | None = None
    rate: Rate | None = None
    notes: tuple[Note, ...] = ()


def confirmed(work: Work, decision: Decision, patience: Patience, also: Sequence[Entry] = ()) -> Ended:
    """What the race leaves of a decision: its winner, or a rival that a few openings show to be faster and that is
    accepted; float where it keeps all limits and no gain is shown. Entries in `also` take part beside the rivals of the
    winner. A slow model has no rivals: each would be run on all held-out inputs."""
    float32 = decision.ledger.float32
    is_slow = work.setup.run_s * len(work.data.all_held_out.samples) > work.budget.plans_s
    rivals = {} if is_slow else {entry.key: entry for entry in (*also, *decision.ledger.rivals(decision.winner))}
    if _is_source(work, decision.plan):
        return Ended(work, decision)
    try:
        with Deliveries(work) as deliveries:
            candidates = [decision, *(decision.of(work, entry) for entry in rivals.values())]
            ranked = deliveries.fastest_first(candidates, patience)
            accepted = (end if end is decision else decision.accepting(work, end.winner) for end in ranked)
            end = next(filter(None, accepted))
            race = deliveries.confirm(end.plan, patience)
            may_float_stay = float32.holds and work.replaced is None and end.winner.key != float32.key
            if race.replaces_float or not may_float_stay:
                return Ended(work, end, race, notes=_too_noisy(race))
            text = f"the fastest plan within the limit is {race} as fast as float32, which does not replace it"
            notes = (Note(Kind.UNPROVEN_GAIN, text), *_too_noisy(race))
            end = decision.of(work, float32)
            race_of_float = None if _is_source(work, end.plan) else deliveries.confirm(end.plan, patience)
            return Ended(work, end, race_of_float, notes=notes)
    except (BadOption, MeasurementFailed) as error:
        return Ended(work, decision, notes=(Note(Kind.UNCONFIRMED, f"the speed-up is not confirmed: {error}"),))


class Deliveries:
    """Plans as they are delivered and the source model, in temporary folders below `root`, each written once, and the
    process that runs them (`bench`). A context manager."""

    def __init__(self, work: Work) -> None:
        self._work, self._folders = work, dict[str, Path]()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            work = self._work
            make_room(work.memory_bytes)
            self.root = stack.enter_context(scratch())
            self.bench = stack.enter_context(work.lab.openings(raced_inputs(work)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def source(self, threads: int, callers: int = 1) -> Path:
        """The source model as users of ONNX Runtime run it, with so many threads for all callers."""
        work, folder = self._work, self.root / f"source-{threads}-{callers}"
        if not folder.exists():
            folder.mkdir()
            inputs = [spec.name for spec in work.inputs]
            write_source(folder, work.source, inputs, work.outputs, threads, callers)
        return folder

    def fastest_first(self, candidates: Sequence[Decision], patience: Patience) -> list[Decision]:
        """The candidates in the order of their speed over a few openings."""
        if len(candidates) == 1:
            return [*candidates]
        folders = [self.folder(candidate.plan) for candidate in candidates]
        results = compared(self.bench, self.source(self._work.setup.threads_of_source), folders, patience)
        order = sorted(range(len(candidates)), key=lambda index: -results[index].ratio)
        return [candidates[index] for index in order]

    def confirm(self, plan: Plan, patience: Patience) -> Speedup:
        """The speed-up of one over the source model."""
        work, base = self._work, self.source(self._work.setup.threads_of_source)
        return confirm(self.bench, base, self.folder(plan), work.setup.run_s, patience, work.progress)

    def folder(self, plan: Plan) -> Path:
        """A plan as it is delivered, one run at a time."""
        key = f"{plan.fingerprint()} {plan.runtime}"
        if key not in self._folders:
            folder = self._stack.enter_context(scratch())
            with scratch() as components:
                write_plan(self._work, plan, folder, components)
            self._folders[key] = folder
        return self._folders[key]


def write_plan(work: Work, plan: Plan, folder: Path, components: Path) -> Manifest:
    """Write a plan as it is delivered to `folder`, one run at a time, from its `components`."""
    manifest = assemble(work, plan).write(components)
    write(folder, components, manifest, work.setup.options(plan.runtime), ())
    return manifest


def raced_inputs(work: Work) -> Sequence[Sample]:
    """The held-out inputs that openings run; their shapes are as frequent as among all."""
    samples = work.data.held_out.samples
    return chosen(samples, spread(samples, work.within(_INPUTS_S).runs(_MOST_INPUTS)))


def _is_source(work: Work, plan: Plan) -> bool:
    """Whether a plan is the source model, which may be simplified, in ONNX Runtime with default options."""
    default = plan.runtime == NAME and work.setup.optimization == Optimization.ALL
    return default and not plan.assignment() and work.replaced is None


def _too_noisy(race: Speedup) -> tuple[Note, ...]:
    """A note where the interval contains 1 because it is wide."""
    if race.half_width <= USUAL.half_width or not race.low < 1.0 < race.high:
        return ()
    text = "this machine is too noisy to tell whether the plan is faster: run it again with nothing else running"
    return (Note(Kind.NOISY_MACHINE, text),)
