"""The float model in every place, and the order in which places are profiled."""

from dataclasses import replace

import pytest

from taglio.embedded import digits_data
from taglio.error.loss import Metric
from taglio.errors import MeasurementFailed
from taglio.flow import profile
from taglio.flow.opening import Model
from taglio.lab.lab import Lab
from taglio.lab.work import Work
from taglio.profile.measure import FLOAT_RUN
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.openvino import NAME
from taglio.search import places
from taglio.search.ledger import Measurement
from taglio.search.places import float_everywhere, profiled
from tests.models import digits_model

ORT = "onnxruntime"


def place(runtime: str, float_s: float, error: float = 0.0, refused: str = "") -> Measurement:
    return Measurement(runtime, FLOAT_RUN, float_s, float_s, error, float_s, refused)


def test_the_place_with_the_fastest_float_model_is_profiled_first() -> None:
    found = [place(ORT, 10.0), place(NAME, 8.0)]
    assert [each.runtime for each in profiled(found)] == [NAME, ORT]
    refused = [replace(each, refused="broken") if each.runtime == NAME else each for each in found]
    assert [each.runtime for each in profiled(refused)] == [ORT]


def test_a_place_that_fails_while_it_is_profiled_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Model(digits_model(), digits_data())

    def fail_in_openvino(work: Work, *_: object) -> str:
        if work.setup.runtime == NAME:
            raise MeasurementFailed("mix3: failed while being timed: no kernel")
        return f"profile of {work.setup.runtime}"

    monkeypatch.setattr(profile, "profile_as", fail_in_openvino)
    found: dict[str, object] = {**profile.profiles(work, (NAME, ORT), DEFAULT_SCHEME)}
    assert found == {ORT: f"profile of {ORT}"}
    found = {**profile.profiles(work, (NAME,), DEFAULT_SCHEME)}
    assert found == {ORT: f"profile of {ORT}"}
    with pytest.raises(MeasurementFailed):
        profile.profiles(work.in_place(NAME), (NAME,), DEFAULT_SCHEME)


def test_with_one_runtime_nothing_is_timed_and_the_missing_places_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Model(digits_model(), digits_data(), threads=1).but(lab=Lab(stopwatch=pytest.fail))
    assert work.setup.runtime == "auto"
    monkeypatch.setattr(places, "refusal", lambda name: "" if name == ORT else "it is not installed here")
    found = float_everywhere(work, 0.01, Metric())
    assert found.errors == {ORT: 0.0}
    refused = {row.runtime: row.refused for row in found.rows if row.refused}
    assert refused == dict.fromkeys((NAME,), "it is not installed here")
