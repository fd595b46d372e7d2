"""Confirm the winner of the search by a race of its own: the delivered files beside the source model. Where it is not
clear that the plan is faster, float stays. Plans nothing."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
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

# What simplifying must gain to be told; a few openings may show less where there is nothing.
_SIMPLIFIED = 1.1
# An opening runs the model on as many inputs as take this long.
_INPUTS_S, _MOST_INPUTS = 1.0, 8


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The plan that stays, its speed-up over the source model (None: it was not raced), and notes."""

    plan: Plan
    speedup: Speedup | None
    notes: tuple[Note, ...] = ()


def confirmed(
    work: Work,
    candidates: Sequence[Plan],
    float_plan: Plan | None,
    patience: Patience | None = None,
    accepted: Callable[[Plan], bool] = lambda _: True,
) -> Confirmed:
    """The fastest of `candidates` if the race shows that it is faster than the source model, else `float_plan`; None:
    float keeps no limit, so that the candidate stays in any case. The first candidate is the winner of the search;
    others count only if they are `accepted`, which is asked of those alone that a few openings show to be faster."""
    plan, *_ = candidates
    try:
        with _Deliveries(work) as deliveries:
            if _is_source(work, plan):
                return Confirmed(plan, None, deliveries.simplified(plan, patience))
            plan = next(filter(accepted, deliveries.fastest_first(candidates, patience)))
            race = deliveries.confirm(plan, patience)
            if race.replaces_float or float_plan is None or float_plan.fingerprint() == plan.fingerprint():
                return Confirmed(plan, race, _too_noisy(race))
            text = f"the fastest plan within the limit is {race} as fast as float32, which does not replace it"
            notes = (Note(Kind.UNPROVEN_GAIN, text), *_too_noisy(race))
            if _is_source(work, float_plan):
                return Confirmed(float_plan, None, (*notes, *deliveries.simplified(float_plan, patience)))
            return Confirmed(float_plan, deliveries.confirm(float_plan, patience), notes)
    except (BadOption, MeasurementFailed) as error:
        return Confirmed(plan, None, (Note(Kind.UNCONFIRMED, f"the speed-up is not confirmed: {error}"),))


class _Deliveries:
    """Plans as they are delivered, in temporary folders, each written once, and the process that races them beside the
    source model. A context manager."""

    def __init__(self, work: Work) -> None:
        self._work, self._folders = work, dict[str, Path]()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            work = self._work
            make_room(work.memory_bytes)
            self._base = stack.enter_context(scratch())
            inputs = [spec.name for spec in work.inputs]
            write_source(self._base, work.source, inputs, work.outputs, work.setup.threads_of_source)
            self._race = stack.enter_context(work.lab.openings(raced_inputs(work)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def fastest_first(self, candidates: Sequence[Plan], patience: Patience | None) -> list[Plan]:
        """The candidates in the order of their speed over a few openings."""
        if len(candidates) == 1:
            return [*candidates]
        folders = [self._folder(plan) for plan in candidates]
        results = compared(self._race, self._base, folders, patience)
        order = sorted(range(len(candidates)), key=lambda index: -results[index].ratio)
        return [candidates[index] for index in order]

    def confirm(self, plan: Plan, patience: Patience | None) -> Speedup:
        """The speed-up of one over the source model."""
        work = self._work
        return confirm(self._race, self._base, self._folder(plan), work.setup.run_s, patience, work.progress)

    def simplified(self, plan: Plan, patience: Patience | None) -> tuple[Note, ...]:
        """A note where the float model, as it is delivered, is faster than the source, from which it differs only in
        operators that were folded or removed. That is rare, so a few openings look for it first."""
        usual = patience or USUAL
        quick = replace(usual, choosing=1 if self._work.setup.run_s > usual.slow_run_s else usual.choosing)
        (found,) = compared(self._race, self._base, [self._folder(plan)], quick)
        if found.ratio < _SIMPLIFIED:
            return ()
        speedup = self.confirm(plan, patience)
        if not speedup.replaces_float:
            return ()
        gain = f"float32 as delivered is {speedup} as fast as the model as it was given"
        return (Note(Kind.SIMPLIFIED, f"{gain}: simplifying it was enough"),)

    def _folder(self, plan: Plan) -> Path:
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
