"""The notes of an optimisation: on its plan, and on the model, the data and the search. Decides nothing."""

from taglio.deploy.processor_needs import unsafe_processors
from taglio.errors import BadOption
from taglio.lab.work import Work
from taglio.model.quantized import already_quantized
from taglio.notes import Kind, Note
from taglio.plan.result import Plan
from taglio.quantize.precision import BFLOAT16, UNCALIBRATED
from taglio.runtimes.session import runtime_version
from taglio.search.answers import of_answers, of_unseen
from taglio.search.decide import Decision
from taglio.search.ledger import INT8_RUN, Places
from taglio.search.screen import Screened

# A model of which only so many sessions may be opened in a stage is large; another is slow.
_FEW = 10


def of_plan(work: Work, decision: Decision) -> tuple[Note, ...]:
    """Notes on the plan that was decided on, as it was built."""
    answered, int8, limits = decision.answers, decision.ledger.int8, decision.plan.limits
    all_int8 = int8.answers if int8.name == INT8_RUN else None
    instructions = decision.profile.conditions.machine.instructions
    return (
        *of_answers(answered, all_int8, limits, work.data.held_out.labels),
        *of_unseen(work, answered, decision.rejected, decision.candidates, limits),
        *_of_rows(work, decision.plan),
        *unsafe_processors(decision.plan.assignment().values(), instructions),
    )


def of_search(screened: Screened, work: Work, *, wants_scheme: bool) -> tuple[Note, ...]:
    """Notes on the model, opened as `work`, and on what was compared before any plan was made."""
    return (
        *filter(None, [screened.note]),
        *(() if wants_scheme else _left_out(work, screened)),
        *already_quantized(screened.work.model.proto, work.setup.requantize),
        *_not_installed(screened.places),
    )


def _not_installed(places: Places) -> list[Note]:
    """The runtimes that were not tried because they are not installed, with the command that installs them."""
    refusals = {place.runtime: place.refused for place in places.rows if place.refused}
    notes = []
    for runtime, refusal in refusals.items():
        try:
            runtime_version(runtime)
        except BadOption:
            notes.append(Note(Kind.NOT_INSTALLED, f"{runtime}: {refusal}"))
    return notes


def _left_out(work: Work, screened: Screened) -> tuple[Note, ...]:
    """What was not compared because the model is slow or large."""
    forms = [form for form in UNCALIBRATED.values() if form != BFLOAT16]
    able = any(form.fits(block) for form in forms for block in work.graph.blocks)
    if screened.forms or not screened.planned:
        return ()
    left = ["schemes"] if work.graph.candidates() else []
    left += ["forms without calibration"] if able else []
    large = f"{len(work.model.proto.graph.node):,} operators take long to open"
    why = f"a run takes {work.setup.run_s:.2g} s" if work.within(0.0).sessions > _FEW else large
    line = f"{why}: {' and '.join(left)} were not compared"
    return (Note(Kind.NOT_COMPARED, f"{line}; a higher effort compares them"),) if left else ()


def _of_rows(work: Work, plan: Plan) -> tuple[Note, ...]:
    """What int8-dynamic does to rows that share a batch, if the plan has blocks in it and batches may have any size."""
    is_open = any(spec.shape and not isinstance(spec.shape[0], int) for spec in work.inputs)
    if not is_open or not any(form.name == "int8-dynamic" for form in plan.assignment().values()):
        return ()
    text = "int8-dynamic has one scale for all rows of a batch: the error holds for batches like those of the data"
    return (Note(Kind.SHARED_SCALE, text),)
