"""Where plans are made, from what float and all-int8 did in each place."""

from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest

from taglio.embedded import digits_data
from taglio.error.loss import Metric
from taglio.error.tally import Reference
from taglio.errors import MeasurementFailed
from taglio.flow import choose_place, profile
from taglio.flow.choose_place import PlaceResult, left_for_int8, one_of_each_runtime, rank, together
from taglio.flow.choose_scheme import SchemeResult
from taglio.flow.opening import Model
from taglio.flow.settle import settle
from taglio.flow.work import Work
from taglio.profile.stopwatch import Timed
from taglio.profile.wall_time import WallTime
from taglio.quantize.scheme import AUTO_SCHEMES, Scheme
from taglio.runtimes.openvino import BF16, MIXED, NAME
from tests.models import digits_model

ORT = "onnxruntime"
CHANNEL, _, RESTRICTED, _, SYMMETRIC, _ = AUTO_SCHEMES


def place(runtime: str, float_s: float, error: float = 0.0, dropped: str = "") -> PlaceResult:
    return PlaceResult(runtime, float_s, error, float_s, False, dropped)


def tried(score_s: float, scheme: Scheme = CHANNEL, dropped: str = "") -> tuple[Scheme, tuple[SchemeResult, ...]]:
    return scheme, (SchemeResult(scheme, score_s, 0.01, score_s, dropped),)


def test_what_a_place_changes_by_itself_adds_as_squares() -> None:
    assert together(0.003, 0.004) == pytest.approx(0.005)
    assert left_for_int8(0.005, 0.004) == pytest.approx(0.003)
    assert left_for_int8(0.01, 0.0) == 0.01
    assert left_for_int8(0.01, 0.02) == 0.0


def test_plans_are_made_where_they_may_be_fastest() -> None:
    found = [place(ORT, 10.0), place(NAME, 8.0), place(BF16, 4.0, 0.005)]
    places = rank(found, {ORT: tried(6.0), BF16: tried(3.0, SYMMETRIC)}, None)
    assert (places.planned, places.scheme) == ((BF16,), SYMMETRIC)
    assert places.usable == {ORT: 0.0, NAME: 0.0, BF16: 0.005}
    assert [each.profiled for each in places.results] == [False, False, True]


def test_of_a_packages_places_that_counts_which_is_fastest_with_int8() -> None:
    found = [place(ORT, 10.0), place(NAME, 8.0), place(BF16, 4.0, 0.0099), place(MIXED, 4.2, 0.003)]
    assert [each.runtime for each in one_of_each_runtime(found, 0.01)] == [MIXED, ORT]
    assert [each.runtime for each in one_of_each_runtime(found, 0.1)] == [BF16, ORT]
    dropped = [replace(each, dropped="broken") if each.runtime in (MIXED, ORT) else each for each in found]
    assert [each.runtime for each in one_of_each_runtime(dropped, 0.01)] == [BF16]


def test_another_place_within_reach_is_planned_in_too() -> None:
    found = [place(ORT, 10.0), place(NAME, 9.0)]
    assert rank(found, {ORT: tried(6.0), NAME: tried(5.8)}, None).planned == (NAME, ORT)
    assert rank(found, {ORT: tried(7.0), NAME: tried(5.8)}, None).planned == (NAME,)
    # What counts is the scheme that the best place has.
    assert rank(found, {ORT: tried(5.9, RESTRICTED), NAME: tried(5.8)}, None).planned == (NAME,)
    # Seven bits run the same kernels.
    narrow = replace(CHANNEL, reduced_range=True)
    assert rank(found, {ORT: tried(5.9, narrow), NAME: tried(5.8)}, None).planned == (NAME, ORT)


def test_a_place_that_is_ahead_in_other_forms_is_planned_in() -> None:
    found = [place(ORT, 10.0), place(NAME, 9.0)]
    by_place = {ORT: tried(6.0), NAME: tried(8.0)}
    assert rank(found, by_place, None).planned == (ORT,)
    assert rank(found, by_place, None, {NAME: 4.0}).planned == (NAME,)
    assert rank(found, by_place, None, {NAME: 5.8}).planned == (NAME, ORT)


def test_a_place_where_no_int8_loads_comes_last() -> None:
    found = [place(ORT, 10.0), place(NAME, 5.0)]
    places = rank(found, {ORT: tried(6.0), NAME: tried(0.0, dropped="no kernel")}, None)
    assert (places.planned[0], places.scheme) == (ORT, CHANNEL)


def test_a_place_where_the_scheme_does_not_run_is_not_planned_in() -> None:
    found = [place(ORT, 10.0), place(NAME, 5.9)]
    places = rank(found, {ORT: tried(6.0), NAME: tried(0.0, dropped="no kernel")}, None)
    assert places.planned == (ORT,)
    assert set(places.usable) == {ORT, NAME}


def test_a_place_that_fails_while_it_is_profiled_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Model(digits_model(), digits_data())

    def fail_in_openvino(work: Work, *_: object) -> str:
        if work.setup.runtime == NAME:
            raise MeasurementFailed("mix3: failed while being timed: no kernel")
        return f"profile of {work.setup.runtime}"

    monkeypatch.setattr(profile, "profile_as", fail_in_openvino)
    found: dict[str, object] = {**profile.profiles(work, (NAME, BF16), CHANNEL)}
    assert found == {BF16: f"profile of {BF16}"}
    found = {**profile.profiles(work, (NAME,), CHANNEL)}
    assert found == {ORT: f"profile of {ORT}"}
    with pytest.raises(MeasurementFailed):
        profile.profiles(work.in_place(NAME), (NAME,), CHANNEL)


def test_a_place_that_is_out_is_not_usable() -> None:
    found = [place(ORT, 10.0), place(BF16, 4.0, 0.05, "the float model alone uses up the limit there")]
    places = rank(found, {ORT: tried(6.0)}, None)
    assert places.usable == {ORT: 0.0}
    assert places.results[1].dropped


def test_with_one_runtime_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the places that are missing say why."""
    work = Model(digits_model(), digits_data(), threads=1)
    assert work.setup.runtime == "auto"
    monkeypatch.setattr(choose_place, "refusal", lambda name: "" if name == ORT else "it is not installed here")
    monkeypatch.setattr(Work, "time", None)
    places = settle(work, CHANNEL, 0.01, Metric()).places
    assert (places.planned, places.scheme, places.schemes) == ((ORT,), CHANNEL, ())
    assert places.usable == {ORT: 0.0}
    assert {each.runtime: each.dropped for each in places.results if each.dropped} == dict.fromkeys(
        (NAME, BF16), "it is not installed here"
    )


@pytest.mark.whole
def test_a_model_that_openvino_cannot_mark_is_planned_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such port")

    timed_bfloat16(monkeypatch, 0.001, fail)
    found, bfloat16 = choose_place.float_everywhere(Model(digits_model(), digits_data()), 0.01, Metric())
    assert bfloat16 is None
    assert [each.dropped for each in found if each.runtime == MIXED] == ["no such port"]
    assert {each.runtime for each in found if not each.dropped} == {ORT, NAME}


def test_a_mix_is_judged_on_more_inputs_than_places_are(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []

    def mix(_: Model, reference: Reference, *__: object) -> str:
        judged.append(len(reference.samples))
        return "none"

    timed_bfloat16(monkeypatch, 0.001, mix)
    work = Model(digits_model(), digits_data())
    for effort in (1.0, 0.01):
        choose_place.float_everywhere(work.at(effort), 0.01, Metric())
    assert judged == [len(work.data.held_out.samples), len(work.quick_reference(0.001).samples)]
    assert judged[0] > judged[1]


def test_no_mix_is_tried_where_bfloat16_is_slower_than_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all else on a small model."""
    timed_bfloat16(monkeypatch, 0.002, lambda *_: pytest.fail("was tried"))
    found, bfloat16 = choose_place.float_everywhere(Model(digits_model(), digits_data()), 0.01, Metric())
    assert bfloat16 is None and MIXED not in {each.runtime for each in found}


def timed_bfloat16(monkeypatch: pytest.MonkeyPatch, seconds: float, mix: Callable[..., object]) -> None:
    """In bfloat16 the float model takes `seconds` and breaks the limit, elsewhere it takes a millisecond; `mix` chooses
    what computes in it."""

    def timed(place: str) -> Timed:
        took = seconds if place == BF16 else 0.001
        return Timed(onnx.ModelProto(), WallTime(took, took, took, took, 1, took), {})

    monkeypatch.setattr(choose_place, "refusal", lambda _: "")
    monkeypatch.setattr(Work, "time", lambda _, models, *__, **___: {name: timed(name) for name in models})
    monkeypatch.setattr(choose_place, "base_errors", lambda *_: ({NAME: 0.0, BF16: 0.5}, {}))
    monkeypatch.setattr(choose_place, "choose_bfloat16", mix)
