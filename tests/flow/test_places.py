"""The float model in every place, and which place of a runtime counts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import onnx
import pytest

from taglio.embedded import digits_data
from taglio.error.loss import Metric
from taglio.error.tally import Reference
from taglio.errors import MeasurementFailed
from taglio.flow import places, profile
from taglio.flow.lab import Raced
from taglio.flow.ledger import Measurement, Variant
from taglio.flow.opening import Model
from taglio.flow.places import float_everywhere, one_of_each_runtime, usable
from taglio.flow.work import Work
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.stopwatch import Timed
from taglio.profile.wall_time import WallTime
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.openvino import BF16, MIXED, NAME
from tests.models import digits_model

ORT = "onnxruntime"


def place(runtime: str, float_s: float, error: float = 0.0, refused: str = "") -> Measurement:
    return Measurement(Variant(runtime, FLOAT_RUN), float_s, float_s, error, float_s, refused)


def test_of_a_packages_places_that_counts_which_is_fastest_with_int8() -> None:
    found = [place(ORT, 10.0), place(NAME, 8.0), place(BF16, 4.0, 0.0099), place(MIXED, 4.2, 0.003)]
    assert [each.variant.runtime for each in one_of_each_runtime(found, 0.01)] == [MIXED, ORT]
    assert [each.variant.runtime for each in one_of_each_runtime(found, 0.1)] == [BF16, ORT]
    refused = [replace(each, refused="broken") if each.variant.runtime in (MIXED, ORT) else each for each in found]
    assert [each.variant.runtime for each in one_of_each_runtime(refused, 0.01)] == [BF16]


def test_a_place_that_is_out_is_not_usable() -> None:
    beyond = "the float model alone uses up the limit there"
    assert usable([place(ORT, 10.0), place(BF16, 4.0, 0.05, beyond)]) == {ORT: 0.0}


def test_a_place_that_fails_while_it_is_profiled_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Model(digits_model(), digits_data())

    def fail_in_openvino(work: Work, *_: object) -> str:
        if work.setup.runtime == NAME:
            raise MeasurementFailed("mix3: failed while being timed: no kernel")
        return f"profile of {work.setup.runtime}"

    monkeypatch.setattr(profile, "profile_as", fail_in_openvino)
    found: dict[str, object] = {**profile.profiles(work, (NAME, BF16), DEFAULT_SCHEME)}
    assert found == {BF16: f"profile of {BF16}"}
    found = {**profile.profiles(work, (NAME,), DEFAULT_SCHEME)}
    assert found == {ORT: f"profile of {ORT}"}
    with pytest.raises(MeasurementFailed):
        profile.profiles(work.in_place(NAME), (NAME,), DEFAULT_SCHEME)


def test_with_one_runtime_nothing_is_timed_and_the_missing_places_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Model(digits_model(), digits_data(), threads=1)
    assert work.setup.runtime == "auto"
    monkeypatch.setattr(places, "refusal", lambda name: "" if name == ORT else "it is not installed here")
    monkeypatch.setattr(Work, "time", None)
    found = float_everywhere(work, 0.01, Metric())
    assert usable(found.rows) == {ORT: 0.0} and found.bfloat16 is None
    refused = {row.variant.runtime: row.refused for row in found.rows if row.refused}
    assert refused == dict.fromkeys((NAME, BF16), "it is not installed here")


def test_a_model_that_openvino_cannot_mark_is_planned_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such port")

    timed_bfloat16(monkeypatch, 0.001, fail)
    found = float_everywhere(Model(digits_model(), digits_data()), 0.01, Metric())
    assert found.bfloat16 is None
    assert [row.refused for row in found.rows if row.variant.runtime == MIXED] == ["no such port"]
    assert {row.variant.runtime for row in found.rows if not row.refused} == {ORT, NAME}


def test_a_mix_is_judged_on_more_inputs_than_places_are(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []

    def mix(_: Model, reference: Reference, *__: object) -> str:
        judged.append(len(reference.samples))
        return "none"

    timed_bfloat16(monkeypatch, 0.001, mix)
    work = Model(digits_model(), digits_data())
    for effort in (1.0, 0.001):
        float_everywhere(work.at(effort), 0.01, Metric())
    assert judged[0] == len(work.data.held_out.samples)
    assert judged[0] >= judged[1]


def test_no_mix_is_tried_where_bfloat16_is_slower_than_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all else on a small model."""
    timed_bfloat16(monkeypatch, 0.002, lambda *_: pytest.fail("was tried"))
    found = float_everywhere(Model(digits_model(), digits_data()), 0.01, Metric())
    assert found.bfloat16 is None and MIXED not in {row.variant.runtime for row in found.rows}
    assert found.floats.times[BF16].median_s == 0.002


def timed_bfloat16(monkeypatch: pytest.MonkeyPatch, seconds: float, mix: Callable[..., object]) -> None:
    """In bfloat16 the float model takes `seconds` and breaks the limit, elsewhere it takes a millisecond; `mix` chooses
    what computes in it."""

    def raced(_: Work, models: Mapping[str, Any], *__: object, **___: object) -> dict[str, Raced]:
        def result(name: str) -> Raced:
            took = seconds if name == BF16 else 0.001
            wall = WallTime(took, took, took, took, 1, took)
            return Raced(Timed(onnx.ModelProto(), wall, {}), 0.5 if name == BF16 else 0.0)

        return {name: result(name) for name in models}

    monkeypatch.setattr(places, "refusal", lambda _: "")
    monkeypatch.setattr(places, "require_here", lambda *_: None)
    monkeypatch.setattr(places, "race", raced)
    monkeypatch.setattr(places, "choose_bfloat16", mix)
