"""What is decided before anything is profiled: the places to plan in, the scheme, the forms. Plans nothing."""

from dataclasses import dataclass

from taglio.error.loss import Metric
from taglio.flow.choose_forms import FormResult, choose_forms
from taglio.flow.choose_place import Places, choose_places, divided
from taglio.flow.choose_scheme import float_where_none_loads
from taglio.flow.work import Work
from taglio.profile.stopwatch import Progress
from taglio.quantize.scheme import Scheme


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """`work` with every block that cannot be int8 kept in float, the scheme and the places of plans, and the forms
    without calibration that were tried."""

    work: Work
    scheme: Scheme
    places: Places
    forms: tuple[FormResult, ...]


def settle(
    work: Work,
    scheme: Scheme | None,
    max_loss: float,
    metric: Metric,
    progress: Progress | None = None,
    *,
    effort: float = 1.0,
) -> Settled:
    """The places and forms to plan with. A `scheme` that was requested is taken as it is, with the forms that
    it names."""
    places = choose_places(work, max_loss, metric, scheme, progress, effort=effort)
    work = divided(work, places.stretches)
    if scheme is None:
        work = float_where_none_loads(work, places.schemes)
        work.kept.forget("builder", but=places.scheme)  # each holds a copy of the weights
    work = work.settled(places.scheme, progress)
    if scheme is not None:
        return Settled(work, scheme, places, ())
    chosen, forms = choose_forms(work, places, max_loss, metric, progress, effort=effort)
    return Settled(work, chosen, places, forms)
