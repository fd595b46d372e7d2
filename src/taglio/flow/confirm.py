"""Confirm the winner of the search by a race of its own: the delivered files beside the source model. Where it is not
clear that the plan is faster, float stays. Plans nothing."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import onnx
from google.protobuf.message import DecodeError

from taglio.components.build import Manifest
from taglio.confirm.race import USUAL, Patience, compared, confirm
from taglio.confirm.speedup import WORTH, Speedup
from taglio.data.dataset import Sample, chosen, spread
from taglio.deploy.write import write, write_source
from taglio.errors import BadOption, MeasurementFailed
from taglio.lab.build import assemble
from taglio.lab.work import Work
from taglio.memory import make_room
from taglio.notes import Kind, Note
from taglio.plan.result import Plan
from taglio.scratch import scratch
from taglio.search.decide import Decision
from taglio.search.ledger import Entry
from taglio.ways.result import Rate

# An opening runs the model on as many inputs as take this long.
_INPUTS_S, _MOST_INPUTS = 1.0, 8
# Runs of a few openings of a winner, float and the source.
_FEW_RUNS = 30
# The least gain by simplifying the graph that is reported: a few openings cannot show a smaller one.
_REPORTED = 1.05


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """What is delivered: the decision after the race or the search over ways, its speed-up over the source model (None:
    it was not raced) or its rate, and notes. The float model as it is delivered is about `simplified` times as fast as
    the source (1: not measured)."""

    work: Work
    decision: Decision
    speedup: Speedup | None = None
    rate: Rate | None = None
    simplified: float = 1.0
    notes: tuple[Note, ...] = ()


def confirmed(work: Work, decision: Decision, patience: Patience, also: Sequence[Entry] = ()) -> Ended:
    """What the race leaves of a decision: its winner, or a rival that a few openings show to be faster and that is
    accepted; float where it keeps all limits and no gain is shown. Entries in `also` take part beside the rivals of the
    winner and float, which is delivered without what slows the source down."""
    float32 = decision.ledger.float32
    may_float_stay = float32.holds and work.replaced is None
    has_float = may_float_stay and _may_be_faster(work, patience)
    rivals = [*_rivals(work, decision, also), *([float32] if has_float else [])]
    entries = {entry.key: entry for entry in (decision.winner, *rivals)}
    try:
        with Deliveries(work) as deliveries:
            gain_of = dict.fromkeys(entries, 1.0)
            if len(entries) > 1 or has_float:
                plans = [decision.of(work, entry).plan for entry in entries.values()]
                gain_of = dict(zip(entries, deliveries.gains(plans, patience), strict=True))
            simplified, notes = gain_of.get(float32.key, 1.0), tuple[Note, ...]()
            end = _fastest(work, decision, sorted(entries.values(), key=lambda entry: -gain_of[entry.key]))
            if end.winner.key != float32.key:
                race = deliveries.confirm(end.plan, patience)
                if race.replaces_float or not may_float_stay:
                    notes = (*_by_simplifying(simplified), *_too_noisy(race))
                    return Ended(work, end, race, simplified=simplified, notes=notes)
                notes = (_unproven(str(race)), *_too_noisy(race))
            elif decision.winner.key != float32.key:
                notes = (_unproven(f"about {gain_of[decision.winner.key] / simplified:.2f} ×"),)
            end = decision.of(work, float32)
            if simplified >= WORTH and (race := deliveries.confirm(end.plan, patience)).replaces_float:
                notes = (*_by_simplifying(simplified), *notes)
                return Ended(work, end, race, simplified=simplified, notes=notes)
            return Ended(work, end, notes=notes)
    except (BadOption, MeasurementFailed) as error:
        return Ended(work, decision, notes=(Note(Kind.UNCONFIRMED, f"the speed-up is not confirmed: {error}"),))


def _rivals(work: Work, decision: Decision, also: Sequence[Entry]) -> Sequence[Entry]:
    """The plans that a few openings compare the winner with. A slow model has none: each would be run on all held-out
    inputs."""
    is_slow = work.setup.run_s * len(work.data.all_held_out.samples) > work.budget.plans_s
    return () if is_slow else (*also, *decision.ledger.rivals(decision.winner))


def _may_be_faster(work: Work, patience: Patience) -> bool:
    """Whether the float model as it is delivered may be faster than the source, and a few openings of both take less
    time than a race. With the same operators it is not, and noise would tell otherwise now and then."""
    if _FEW_RUNS * work.setup.run_s > patience.seconds:
        return False
    source = work.source
    if not isinstance(source, onnx.ModelProto):
        try:
            source = onnx.load(source, load_external_data=False)
        except (OSError, DecodeError):  # the race says what is wrong with it
            return True
    overridable = {tensor.name for tensor in source.graph.initializer} & {port.name for port in source.graph.input}
    return bool(overridable) or _operators(source) != _operators(work.model.proto)


def _operators(proto: onnx.ModelProto) -> Counter[str]:
    """How often a graph has each operator, but for those that no runtime runs."""
    return Counter(node.op_type for node in proto.graph.node if node.op_type not in ("Constant", "Identity"))


def _fastest(work: Work, decision: Decision, ranked: Sequence[Entry]) -> Decision:
    """The decision for the first entry that is accepted; its own winner is."""
    accepted = (decision if entry.key == decision.winner.key else decision.accepting(work, entry) for entry in ranked)
    return next(filter(None, accepted))


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

    def gains(self, plans: Sequence[Plan], patience: Patience) -> list[float]:
        """The speed-up of each plan over the source model in a few openings."""
        base = self.source(self._work.setup.threads_of_source)
        results = compared(self.bench, base, [self.folder(plan) for plan in plans], patience)
        return [result.ratio for result in results]

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


def _unproven(gain: str) -> Note:
    text = f"the fastest plan within the limit is {gain} as fast as float32, which does not replace it"
    return Note(Kind.UNPROVEN_GAIN, text)


def _by_simplifying(gain: float) -> tuple[Note, ...]:
    """A note where a part of the speed-up has nothing to do with forms."""
    if gain < _REPORTED:
        return ()
    text = f"about {gain:.2f} × of the speed-up comes from simplifying the graph, which changes no answer"
    return (Note(Kind.SIMPLIFIED, text),)


def _too_noisy(race: Speedup) -> tuple[Note, ...]:
    """A note where the interval contains 1 because it is wide."""
    if race.half_width <= USUAL.half_width or not race.low < 1.0 < race.high:
        return ()
    text = "this machine is too noisy to tell whether the plan is faster: run it again with nothing else running"
    return (Note(Kind.NOISY_MACHINE, text),)
