"""The profile stage: choose a scheme, then measure seconds by block and form. Times nothing itself."""

from collections.abc import Sequence
from dataclasses import replace

from taglio.arguments import number
from taglio.error.loss import RELATIVE
from taglio.errors import BadModel, BadOption, MeasurementFailed
from taglio.lab.work import Work, require_own
from taglio.profile.effort import MOST_MIXES
from taglio.profile.measure import profile as measure
from taglio.profile.result import Profile
from taglio.profile.waking import with_waking
from taglio.progress import Progress
from taglio.quantize.scheme import Scheme, parse_scheme
from taglio.runtimes.onnxruntime import NAME
from taglio.search.screen import screen

AUTO = "auto"
# Relative L2 limit for which scheme "auto" is chosen when a profile is taken before any limit is known.
DEFAULT_BOUND = 0.01


def profile_model(
    work: Work,
    *,
    scheme: str | Scheme = AUTO,
    max_error: float = DEFAULT_BOUND,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Profile:
    """Measure seconds per block and form, inside the whole model.

    `scheme` is the int8 form, such as "qdq-u8s8-asym-pc"; "auto" measures several and takes the best for a relative L2
    error of `max_error`. `effort` scales the time given to measuring; `progress` is called with what is done, how
    much of it is done, and the total.

    >>> profile = taglio.profile_model(model, scheme="qdq-u8s8-asym-pc", effort=0.02)
    >>> str(profile.scheme), [run.name for run in profile.runs][:2]
    ('qdq-u8s8-asym-pc', ['float32', 'int8'])
    """
    require_own(work)
    wanted, bound = read_scheme(scheme), number("max_error", max_error)
    screened = screen(work.telling(progress).at(effort), wanted, RELATIVE.bound("max_error", bound), RELATIVE)
    return with_waking(next(iter(profiles(screened.work, [screened.home], screened.scheme).values())))


def profiles(work: Work, planned: Sequence[str], scheme: Scheme, mixes: int = MOST_MIXES) -> dict[str, Profile]:
    """The profile in each place that is planned in. OpenVINO may fail on a mix though it runs float and all int8: then
    the other places are planned in, or ONNX Runtime, where every block was tried."""
    profiles_by_place: dict[str, Profile] = {}
    for place in planned:
        try:
            profiles_by_place[place] = profile_as(work.in_place(place), scheme, mixes)
        except (BadModel, MeasurementFailed):
            if place == NAME or work.setup.runtime != AUTO:
                raise
    return profiles_by_place or {NAME: profile_as(work.in_place(NAME), scheme, mixes)}


def profile_as(work: Work, scheme: Scheme, mixes: int = MOST_MIXES) -> Profile:
    """The profile under a scheme that was already chosen and tried, from at most so many random `mixes`."""
    effort = replace(work.within(work.budget.profile_s), mixes=mixes)
    return measure(work.builder(scheme), work.graph, scheme, work.stopwatch, effort, seed=work.setup.seed)


def read_scheme(scheme: str | Scheme) -> Scheme | None:
    """The requested scheme; None for "auto". Raises BadOption."""
    if isinstance(scheme, Scheme):
        return scheme
    if not isinstance(scheme, str):
        raise BadOption(
            f'`scheme` has the type {type(scheme).__name__}: give "auto" or a name such as "qdq-u8s8-asym-pc"'
        )
    return None if scheme == AUTO else parse_scheme(scheme)
