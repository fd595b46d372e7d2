"""Whether blocks that would save time keep the limit: measured alone, those first that save most. Chooses nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from taglio.error.loss import Metric
from taglio.lab.work import Work
from taglio.progress import reported
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME
from taglio.search.bound import most_saved

# Inputs on which blocks alone are measured, and the factor by which errors on others may be smaller.
_INPUTS, _LENIENT = 2, 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What forms could save in one place: by block the form and its seconds, and by all else `other_s`. To be faster
    than the fastest float model by the least gain, a plan there must save `needed_s`."""

    place: str
    saved: Mapping[str, tuple[str, float]]
    other_s: float
    needed_s: float


def why_errors_forbid(work: Work, scheme: Scheme, room: Room, limit: float, metric: Metric) -> str:
    """Why no plan with the forms of `scheme` can be faster than float within `limit`; "" if one may be. Blocks are
    measured until the rest cannot matter, or enough is within the limit."""
    if not metric.smooth or limit <= 0.0:
        return ""
    work = work.in_place(NAME)
    forms = {form.name: form for form in precisions(scheme)}
    meter = work.meter(work.switchable(scheme), _INPUTS)
    # A block may also be faster because of its neighbours' forms: such a saving costs no error of its own.
    able = {
        block: form
        for block, (form, _) in room.saved.items()
        if form in forms and forms[form].fits(work.graph.block(block))
    }
    saved_s = {block: room.saved[block][1] for block in able}
    free_s = room.other_s + sum(seconds for block, (_, seconds) in room.saved.items() if block not in able)
    errors: dict[str, float] = {}
    by_saving = sorted(saved_s, key=saved_s.__getitem__, reverse=True)
    for block in reported(by_saving, "each block alone", work.progress):
        errors[block] = meter.error({block: forms[able[block]]})
        if most_saved({name: saved_s[name] for name in errors}, errors, limit) >= room.needed_s:
            return ""
        if free_s + most_saved(saved_s, errors, _LENIENT * limit) < room.needed_s:
            return (
                f"within {metric.limit(limit, 2)} no plan can be faster than float32 here: "
                "the blocks that save time change the answers too much"
            )
    return ""
