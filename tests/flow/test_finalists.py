"""Who meets in the finals, and who wins: plans in places, by the clock and by what was measured there."""

from dataclasses import replace
from math import inf

import onnx
import pytest

from taglio.flow.answers import Answers
from taglio.flow.as_built import AsBuilt
from taglio.flow.finalists import everywhere, fastest_of, in_places, moved, winner_of
from taglio.flow.ledger import Measurement, Variant
from taglio.flow.search import Tried
from taglio.plan.result import Interval, Limits, Placement, Plan
from taglio.profile.stopwatch import Timed
from taglio.profile.wall_time import summarize
from taglio.quantize.precision import FLOAT32, Precision
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.openvino import BF16, NAME

ORT = "onnxruntime"
INT8 = Precision("int8", DEFAULT_SCHEME, "whole")


def tried(name: str, runtime: str, error: float = 0.001, holds: bool = True) -> Tried:
    form = FLOAT32.name if name == "float32" else "int8"
    none = Interval(1.0, 1.0, 1.0, 0.9)
    plan = Plan(
        "m", DEFAULT_SCHEME, (FLOAT32, INT8), Limits(0.01), (Placement("conv", "local", form),), "optimal", 0.0, none,
        none, runtime=runtime,
    )  # fmt: skip
    return Tried(plan, error, holds, name)


def timed(seconds: float) -> Timed:
    samples = [seconds * (1.0 + 0.001 * (index % 3)) for index in range(30)]
    return Timed(onnx.ModelProto(), summarize(samples), {}, tuple(samples))


NAMES = {"plan 1": "", "plan 2": "", "float32": "float32", "int8": "int8"}
HOME = {name: tried(short, NAME) for name, short in NAMES.items()}


def test_float_all_int8_and_the_best_plan_meet_in_every_place() -> None:
    final = everywhere({NAME: HOME}, {ORT: 0.0, NAME: 0.0, BF16: 0.004})
    assert set(final) == {
        "float32", "int8", "plan 1",
        "float32, openvino", "int8, openvino", "plan 1, openvino", "plan 2, openvino",
        "float32, openvino-bf16", "int8, openvino-bf16", "plan 1, openvino-bf16",
    }  # fmt: skip
    assert {name.partition(", ")[2] or ORT: each.plan.runtime for name, each in final.items()} == {
        ORT: ORT, NAME: NAME, BF16: BF16
    }  # fmt: skip
    # No table predicts a plan where it was not made.
    assert final["plan 1"].plan.status == "measured"


def test_at_a_small_effort_only_those_are_timed_that_may_win() -> None:
    home = HOME | {"int8": replace(HOME["int8"], holds=False), "plan 2": replace(HOME["plan 2"], holds=False)}
    final = everywhere({NAME: home}, {ORT: 0.0, NAME: 0.0}, 0.05)
    assert set(final) == {
        "float32", "int8", "plan 1", "float32, openvino", "plan 1, openvino"
    }  # fmt: skip


def test_of_a_model_that_takes_long_to_open_the_fastest_are_timed() -> None:
    def expected(each: Tried, seconds: float) -> Tried:
        return replace(each, plan=replace(each.plan, predicted_latency_s=Interval(seconds, seconds, seconds, 0.9)))

    times = {"plan 1": 2.0, "plan 2": 1.0, "float32": 5.0, "int8": 3.0}
    home = {name: expected(each, times[name]) for name, each in HOME.items()}
    always = {"float32", "int8", "float32, openvino"}
    assert set(everywhere({ORT: home}, {ORT: 0.0, NAME: 0.0}, most=3)) == {*always, "plan 1", "plan 2"}
    assert set(everywhere({NAME: home}, {ORT: 0.0, NAME: 0.0}, most=6)) == {
        *always, "plan 2, openvino", "plan 1", "plan 1, openvino"
    }  # fmt: skip


def test_the_same_plan_in_another_place_is_another_one() -> None:
    one = tried("", NAME).plan
    assert one.fingerprint() != moved(tried("", NAME), ORT, 0.0).plan.fingerprint()
    # Folders that older versions wrote keep their fingerprints.
    assert replace(one, runtime=ORT).fingerprint() == moved(tried("", NAME), ORT, 0.0).plan.fingerprint()


def test_what_moves_leaves_the_error_of_its_place_and_meets_that_of_the_other() -> None:
    """As built in bfloat16 its error may be that of bfloat16 alone: nothing of int8 could be told from it."""
    planned = AsBuilt(Limits(0.01), 0.004)
    planned.note(tried("", BF16, error=0.003), 0.004)
    home = planned.deployed(tried("", BF16, error=0.003))
    assert home.error == pytest.approx(0.004)
    there = moved(home, NAME, 0.0)
    assert there.error == there.plan.measured_error == 0.003
    assert there.holds
    # Errors of forms add like vectors.
    back = moved(there, BF16, 0.004)
    assert back.error == pytest.approx(0.005)
    assert not moved(there, BF16, 0.0099).holds


@pytest.mark.parametrize(
    ("seconds", "breaks", "winner"),
    [
        ({"float32": 10.0, "float32, openvino": 8.0, "plan 1, openvino": 5.0}, "", "plan 1, openvino"),
        ({"float32": 10.0, "float32, openvino": 8.0, "plan 1, openvino": 5.0}, "plan 1, openvino", "float32, openvino"),
        # A plan that gains only noise on float of its place.
        ({"float32": 10.0, "float32, openvino": 5.02, "plan 1, openvino": 5.0}, "", "float32, openvino"),
        ({"float32": 5.0, "float32, openvino": 8.0, "plan 1, openvino": 5.01}, "", "float32"),
    ],
)
def test_the_fastest_that_holds_wins_wherever_it_runs(seconds: dict[str, float], breaks: str, winner: str) -> None:
    final = {
        name: tried(name.partition(",")[0].replace("plan 1", ""), NAME if NAME in name else ORT, holds=name != breaks)
        for name in seconds
    }
    reference = timed(seconds["float32"]).samples_s
    clock = {name: replace(timed(each), reference_s=reference) for name, each in seconds.items()}
    assert winner_of(final, clock) == winner


def test_the_float_model_by_another_name_does_not_win() -> None:
    """The measured gain would be noise."""
    float32 = tried("float32", ORT)
    final = {"float32": float32, "int8": replace(float32, name="int8")}
    clock = {"float32": timed(10.0), "int8": replace(timed(6.0), reference_s=timed(10.0).samples_s)}
    assert winner_of(final, clock) == "float32"


def test_every_place_says_what_became_of_it() -> None:
    own = {"float32": tried("float32", ORT), "int8": tried("int8", ORT, 0.04, holds=False)}
    assert [*everywhere({ORT: own}, {ORT: 0.0, NAME: 0.0})] == ["float32", "int8", "float32, openvino"]
    there = {name: tried(name, NAME) for name in ("float32", "int8")}
    final = everywhere({ORT: own, NAME: there}, {ORT: 0.0, NAME: 0.0})
    final["int8, openvino"] = replace(final["int8, openvino"], refused="OpenVINO cannot load it")
    results = [
        Measurement(Variant(ORT, "float32"), 1.0, 1.0, 0.0, 1.0),
        Measurement(Variant(NAME, "float32"), 2.0, 2.0, 0.0, 2.0),
        Measurement(Variant(BF16, "float32"), refused="no bfloat16"),
    ]
    clock = {"float32": timed(2.0), "int8": timed(1.0), "float32, openvino": timed(3.0)}
    rows = in_places(final, clock, {"int8": Answers(0.05, 0.05, None)}, results)
    assert [(row.name, row.runtime) for row in rows] == [
        ("int8", ORT), ("float32", ORT), ("float32", NAME), ("int8", NAME), ("float32", BF16)
    ]  # fmt: skip
    assert (rows[0].error, rows[0].judged, rows[0].holds) == (0.05, True, False)
    assert (rows[3].latency_s, rows[3].reason) == (None, "OpenVINO cannot load it")
    assert rows[4].reason == "no bfloat16"


def test_an_error_that_is_not_finite_is_not_shown_as_one() -> None:
    final = {"int8": tried("int8", ORT, inf, holds=False)}
    (row,) = in_places(final, {"int8": timed(1.0)}, {}, [])
    assert (row.error, row.reason) == (None, "an output would lose its information")


def test_what_few_runs_do_not_prove_faster_than_float_leads_all_the_same() -> None:
    final = {"float32": tried("float32", ORT), "int8-weights": tried("int8-weights", ORT)}
    whole = timed(9.0)
    unclear = tuple(each * (0.5, 2.0)[index % 2] for index, each in enumerate(whole.samples_s))
    clock = {"float32": timed(10.0), "int8-weights": replace(whole, reference_s=unclear)}
    assert winner_of(final, clock) == "float32"
    assert fastest_of(final, clock) == "int8-weights"


def test_one_that_is_not_proven_faster_than_float_leaves_it_to_the_next() -> None:
    final = {
        name: tried(name.partition(",")[0], NAME if NAME in name else ORT) for name in ("float32", "float32, openvino")
    }
    final["plan 1, openvino"] = tried("", NAME)
    reference, best = timed(10.0).samples_s, timed(5.0)
    disturbed = tuple(each * (0.4, 2.0)[index % 2] for index, each in enumerate(best.samples_s))
    clock = {
        "float32": timed(10.0),
        "plan 1, openvino": replace(best, reference_s=disturbed),
        "float32, openvino": replace(timed(6.0), reference_s=reference),
    }
    assert winner_of(final, clock) == "float32, openvino"
