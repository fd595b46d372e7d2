"""What is decided before anything is profiled: the places to plan in, the scheme, the forms. Plans nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from taglio.error.loss import Metric
from taglio.flow.choose_forms import FormResult, try_forms, with_forms
from taglio.flow.choose_place import PROFILED, Places, float_everywhere, left_for_int8, one_of_each_runtime, rank
from taglio.flow.choose_scheme import SchemeResult, choose, float_where_none_loads
from taglio.flow.work import Work
from taglio.model.graph import Graph
from taglio.profile.sessions import sessions_within
from taglio.quantize.precision import UNCALIBRATED
from taglio.quantize.scheme import AUTO_SCHEMES, DEFAULT_SCHEME, Scheme
from taglio.runtimes.onnxruntime import NAME

_DYNAMIC = UNCALIBRATED["dyn"]
# In OpenVINO a scale per channel is as fast as one per tensor.
_IN_OPENVINO = tuple(each for each in AUTO_SCHEMES if each.per_channel)

# A slow model, which runs PROFILED times in longer than this, is profiled in fewer places.
_PROFILED_S = 2.0
# A large one, of which so few sessions may be opened in these seconds at effort 1, is profiled in ONNX Runtime alone:
# OpenVINO compiles 5,000 operators in int8 for 25 s. The finals take its plan to the other places.
_SESSIONS, _OPENING_S = 5, 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """`work` with every block that cannot be int8 kept in float, the scheme and the places of plans, and the forms
    without calibration that were tried."""

    work: Work
    scheme: Scheme
    places: Places
    forms: tuple[FormResult, ...] = ()


def settle(work: Work, scheme: Scheme | None, max_loss: float, metric: Metric) -> Settled:
    """The places and forms to plan with. A `scheme` that was requested is taken as it is, with the forms that
    it names."""
    found, bfloat16 = float_everywhere(work, max_loss, metric)
    if bfloat16 is not None:
        work = work.but(setup=replace(work.setup, bfloat16=bfloat16))
    bases = {each.runtime: each.error for each in one_of_each_runtime(found, max_loss)}
    if NAME in bases and sessions_within(work.effort * _OPENING_S, work.model.proto) <= _SESSIONS:
        bases = {NAME: bases[NAME]}
    by_place: dict[str, tuple[Scheme, tuple[SchemeResult, ...]]] = {}
    for place, base in bases.items():
        if not work.graph.candidates() or (scheme is not None and len(bases) == 1):  # there is no choice
            by_place[place] = scheme or DEFAULT_SCHEME, ()
            continue
        asked = (scheme,) if scheme else AUTO_SCHEMES if place == NAME else _IN_OPENVINO
        left = left_for_int8(max_loss, base)
        by_place[place] = choose(work.in_place(place).at(min(1.0, work.effort)), left, metric, asked)
    most = work.affordable(_PROFILED_S, PROFILED)
    places = rank(found, by_place, scheme, most=most)
    if scheme is not None:
        return Settled(work.settled(scheme), scheme, places)

    def settled(places: Places) -> Work:
        usable = float_where_none_loads(work, places.schemes)
        usable.kept.forget("builder", but=places.scheme)  # each holds a copy of the weights
        return usable.settled(places.scheme)

    forms = try_forms(settled(places), places.scheme, bases, max_loss, metric)
    int8_s = {
        place: min((each.score_s for each in results if not each.dropped), default=inf)
        for place, (_, results) in by_place.items()
    }
    places = rank(found, by_place, None, other_scores(forms, int8_s, _recurrent_share(work.graph)), most)
    chosen, forms = with_forms(places.scheme, places.planned, forms)
    return Settled(settled(places), chosen, places, forms)


def other_scores(forms: Sequence[FormResult], int8_s: Mapping[str, float], recurrent: float) -> dict[str, float]:
    """The best score by place of the forms that are kept, alone or beside int8, whose best scores are `int8_s`.

    An LSTM has no int8 form. So the `recurrent` share of what int8-dynamic gains comes on top of what int8 gains.
    """
    best: dict[str, float] = {}
    for each in forms:
        if each.kept:
            beside = recurrent * (each.float_s - each.score_s) if each.precision == _DYNAMIC.name else 0.0
            best[each.runtime] = min(best.get(each.runtime, inf), each.score_s, int8_s[each.runtime] - beside)
    return best


def _recurrent_share(graph: Graph) -> float:
    """The share of the operations in int8-dynamic that are an LSTM's."""
    fitting = [block for block in graph.blocks if _DYNAMIC.fits(block)]
    return sum(block.flops for block in fitting if block.recurrent) / max(1, sum(block.flops for block in fitting))
