"""Whether the blocks that save time can keep the limit, by the error of each alone, the most saving first. Chooses
nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from taglio.error.loss import Metric
from taglio.lab.work import Work
from taglio.notes import Kind, Note
from taglio.progress import reported
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME
from taglio.search.bound import most_saved

# The number of inputs on which blocks alone are measured, and the factor by which errors on other inputs may be
# smaller.
_INPUTS, _LENIENT = 2, 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What forms could save in one place: `saved_s` has the seconds by block and form, and `other_s` is the seconds
    that everything else could save. To be faster than the fastest float model by the least gain, a plan there must save
    `needed_s`."""

    saved_s: Mapping[str, Mapping[str, float]]
    other_s: float
    needed_s: float


def why_errors_forbid(work: Work, scheme: Scheme, room: Room, limit: float, metric: Metric) -> Note | None:
    """Why no plan with the forms of `scheme` can be faster than float within `limit`; None if one may be. Blocks are
    measured until the others cannot change the answer."""
    if not metric.smooth or limit <= 0.0:
        return None
    work = work.in_place(NAME)
    forms = {form.name: form for form in precisions(scheme)}
    meter = work.meter(work.switchable(scheme), _INPUTS)
    able, free_s = dict[str, dict[str, float]](), room.other_s
    for block, saved_s in room.saved_s.items():
        fits = {form: saved_s[form] for form in saved_s if form in forms and forms[form].fits(work.graph.block(block))}
        fastest = max(saved_s, key=saved_s.__getitem__)
        if fastest in fits:
            able[block] = fits
        else:  # it is faster because of its neighbours' forms: such a saving costs no error of its own
            free_s += saved_s[fastest]
    errors, measured_s = dict[tuple[str, str], float](), dict[str, dict[str, float]]()
    pairs = [(block, form) for block, saved_s in able.items() for form in saved_s]
    by_saving = sorted(pairs, key=lambda pair: able[pair[0]][pair[1]], reverse=True)
    for block, form in reported(by_saving, "each block alone", work.progress):
        errors[block, form] = meter.error({block: forms[form]})
        measured_s.setdefault(block, {})[form] = able[block][form]
        if most_saved(measured_s, errors, limit) >= room.needed_s:
            return None
        if free_s + most_saved(able, errors, _LENIENT * limit) < room.needed_s:
            return Note(
                Kind.LIMIT_TOO_LOW,
                f"no plan can be faster than float32 here with the {metric.title} {metric.limit(limit, 2)}: the blocks "
                "that save time change the answers too much",
            )
    return None
