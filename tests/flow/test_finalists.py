"""Which plans are raced, how races of several places are put on one scale, and which plan wins."""

from dataclasses import replace

import pytest

from taglio.flow.finalists import Raced, finalists, int8_of, on_one_scale, winner_of
from taglio.flow.ledger import NOT_RACED, Floats
from taglio.flow.search import Tried
from taglio.plan.result import Interval, Limits, Placement, Plan
from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import FLOAT32, Precision
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.cuda import TF32 as GPU
from taglio.runtimes.openvino import NAME

ORT = "onnxruntime"
INT8 = Precision("int8", DEFAULT_SCHEME, "whole")


def tried(
    name: str, runtime: str = ORT, error: float = 0.001, *, holds: bool = True, seconds: float = 1.0, form: str = ""
) -> Tried:
    form = form or (FLOAT32.name if name == "float32" else "int8")
    latency = Interval(seconds, seconds, seconds, 0.9)
    plan = Plan(
        "m", DEFAULT_SCHEME, (FLOAT32, INT8), Limits(0.01), (Placement(form, "local", form),), "optimal", 0.0, latency,
        latency, runtime=runtime,
    )  # fmt: skip
    return Tried(plan, error, holds, name)


def solved(number: int, seconds: float, *, holds: bool = True) -> Tried:
    plan = tried("", seconds=seconds, holds=holds)
    return replace(plan, plan=replace(plan.plan, placements=(Placement(f"conv{number}", "local", "int8"),)))


def wall(seconds: float) -> WallTime:
    return WallTime(seconds, 0.0, seconds, seconds, 30, seconds)


def raced(runtime: str, error: float = 0.001, **seconds: float) -> Raced:
    """A race in one place; plans are `plan1` and so on."""
    named = {name: name if name in ("float32", "int8") else "" for name in seconds}
    return Raced(
        {name: tried(short, runtime, error) for name, short in named.items()},
        {name: wall(each) for name, each in seconds.items()},
    )


def test_the_fastest_solved_plans_meet_float_all_int8_and_those_by_rules() -> None:
    plans = [solved(index, 5.0 - index, holds=index != 4) for index in range(5)]
    rule = replace(solved(9, 2.5), name="most FLOPs")
    everything = [*plans, plans[0], tried("float32"), tried("int8"), rule]
    chosen = finalists(everything)
    assert [chosen[f"plan {index}"].plan.predicted_latency_s.value for index in (1, 2, 3)] == [2.0, 3.0, 4.0]
    assert set(chosen) == {"plan 1", "plan 2", "plan 3", "float32", "int8", "most FLOPs"}
    # Of a model that takes long to open the fastest are raced.
    assert set(finalists(everything, most=4)) == {"plan 1", "most FLOPs", "float32", "int8"}
    # After a race, only what is new.
    new = finalists([*everything, solved(7, 1.0)], but=[*chosen.values()])
    assert [plan.plan.predicted_latency_s.value for plan in new.values()] == [1.0, 5.0]
    assert not new.keys() & chosen.keys()


def test_races_of_several_places_are_scaled_by_their_float_models() -> None:
    races = {
        NAME: raced(NAME, float32=4.0, int8=2.0, plan1=3.0),  # the machine was half as fast
        GPU: raced(GPU, float32=1.0, int8=0.5),
    }
    floats = Floats({ORT: wall(3.0), NAME: wall(2.0), GPU: wall(1.0)}, others=0.2)
    race = on_one_scale(races, floats, {ORT: 0.0, NAME: 0.0, GPU: 0.004})
    assert {name: time.median_s for name, time in race.times.items()} == {
        "float32": 3.0, "float32, openvino": 2.0, "int8, openvino": 1.0, "plan1, openvino": 1.5,
        "float32, onnxruntime-cuda-tf32": 1.0, "int8, onnxruntime-cuda-tf32": 0.5,
    }  # fmt: skip
    assert (race.finalists["float32"].plan.runtime, race.finalists["float32"].error) == (ORT, 0.0)
    assert race.others == 0.2
    assert int8_of(race.finalists, race.times) == "int8, onnxruntime-cuda-tf32"


def test_float_takes_part_where_nothing_is_planned_with_the_error_of_the_place() -> None:
    floats = Floats({ORT: wall(3.0), GPU: wall(2.0)})
    for base, holds in ((0.004, True), (0.02, False)):
        race = on_one_scale({ORT: raced(ORT, float32=3.0, int8=2.9)}, floats, {ORT: 0.0, GPU: base})
        there = race.finalists["float32, onnxruntime-cuda-tf32"]
        assert (there.error, there.holds, there.plan.status) == (base, holds, "measured")
        assert there.plan.predicted_latency_s.value == 2.0
        assert winner_of(race.finalists, race.times) == ("float32, onnxruntime-cuda-tf32" if holds else "int8")


def test_with_one_place_its_own_race_counts() -> None:
    race = on_one_scale({ORT: raced(ORT, float32=3.0, int8=2.0)}, NOT_RACED, {ORT: 0.0})
    assert {name: time.median_s for name, time in race.times.items()} == {"float32": 3.0, "int8": 2.0}


@pytest.mark.parametrize(
    ("seconds", "breaks", "winner"),
    [
        ({"float32": 10.0, "float32, openvino": 8.0, "plan 1, openvino": 5.0}, "", "plan 1, openvino"),
        ({"float32": 10.0, "float32, openvino": 8.0, "plan 1, openvino": 5.0}, "plan 1, openvino", "float32, openvino"),
        # A plan that gains only noise on float of its place.
        ({"float32": 10.0, "float32, openvino": 5.02, "plan 1, openvino": 5.0}, "", "float32, openvino"),
        ({"float32": 5.0, "float32, openvino": 8.0, "plan 1, openvino": 5.01}, "", "float32"),
        # What is plain and as fast must keep the limit, too.
        ({"float32": 10.0, "int8": 5.0, "plan 1": 5.01}, "int8", "plan 1"),
    ],
)
def test_the_fastest_that_holds_wins_wherever_it_runs(seconds: dict[str, float], breaks: str, winner: str) -> None:
    final = {
        name: tried(name.partition(",")[0].replace("plan 1", ""), NAME if NAME in name else ORT, holds=name != breaks)
        for name in seconds
    }
    assert winner_of(final, {name: wall(each) for name, each in seconds.items()}) == winner


def test_the_float_model_by_another_name_does_not_win() -> None:
    """All int8 of a model without candidates: the measured gain would be noise."""
    float32 = tried("float32", ORT)
    final = {"float32": float32, "int8": replace(float32, name="int8")}
    assert winner_of(final, {"float32": wall(10.0), "int8": wall(6.0)}) == "float32"
