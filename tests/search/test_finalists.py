"""Which plans are raced, how races of several places are put on one scale, and which plan wins."""

from dataclasses import replace

import pytest

from taglio.plan.result import Interval, Limits, Placement, Plan
from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import FLOAT32, Precision
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.openvino import NAME
from taglio.search.finalists import finalists, on_one_scale
from taglio.search.ledger import Entry, Key, Ledger, Measurement, Places

ORT = "onnxruntime"
OTHER = "another"
INT8 = Precision("int8", DEFAULT_SCHEME)


def tried(
    name: str, runtime: str = ORT, error: float = 0.001, *, holds: bool = True, seconds: float = 1.0, form: str = ""
) -> Entry:
    form = form or (FLOAT32.name if name == "float32" else "int8")
    latency = Interval(seconds, seconds, seconds)
    plan = Plan(
        "m", DEFAULT_SCHEME, (FLOAT32, INT8), Limits(0.01), (Placement(form, "local", form),), "optimal", 0.0, latency,
        latency, runtime=runtime,
    )  # fmt: skip
    return Entry(plan, error, holds, name, solved=name.startswith("plan") or not name)


def solved(number: int, seconds: float, *, holds: bool = True) -> Entry:
    plan = tried("", seconds=seconds, holds=holds)
    return replace(plan, plan=replace(plan.plan, placements=(Placement(f"conv{number}", "local", "int8"),)))


def wall(seconds: float) -> WallTime:
    return WallTime(seconds, 0.0, seconds, seconds, 30, seconds)


def timed(name: str, runtime: str, seconds: float, error: float = 0.001, *, holds: bool = True) -> Entry:
    return replace(tried(name, runtime, error, holds=holds), wall=wall(seconds))


def ledger(*entries: Entry, first: str = ORT) -> Ledger:
    return Ledger({entry.key: entry for entry in entries}, first)


def raced(runtime: str, error: float = 0.001, **seconds: float) -> Ledger:
    """A race in one place."""
    return ledger(*(timed(name, runtime, value, error) for name, value in seconds.items()), first=runtime)


def floats(errors: dict[str, float]) -> tuple[Measurement, ...]:
    """The float model with these errors by place."""
    return tuple(Measurement(place, "float32", error=error) for place, error in errors.items())


def seconds_of(race: Ledger) -> dict[tuple[str, str], float]:
    return {entry.key: entry.measured_s for entry in race.raced}


def test_the_fastest_solved_plans_meet_float_all_int8_and_those_by_rules() -> None:
    plans = [solved(index, 5.0 - index, holds=index != 4) for index in range(5)]
    rule = replace(solved(9, 2.5), name="most FLOPs")
    everything = [*plans, tried("float32"), tried("int8"), rule]
    chosen = {entry.name: entry for entry in finalists(everything)}
    assert [chosen[f"plan {index}"].plan.predicted_latency_s.value for index in (1, 2, 3)] == [2.0, 3.0, 4.0]
    assert set(chosen) == {"plan 1", "plan 2", "plan 3", "float32", "int8", "most FLOPs"}
    # Of a model that takes long to open the fastest are raced.
    assert {entry.name for entry in finalists(everything, most=4)} == {"plan 1", "most FLOPs", "float32", "int8"}
    # After a race, only what is new.
    new = finalists([*everything, solved(7, 1.0)], but=[*chosen.values()])
    assert [entry.predicted_s for entry in new] == [1.0, 5.0]
    assert not {entry.name for entry in new} & chosen.keys()


def test_races_of_several_places_are_scaled_by_their_float_models() -> None:
    races = {
        NAME: raced(NAME, float32=4.0, int8=2.0, plan1=3.0),  # the machine was half as fast
        OTHER: raced(OTHER, float32=1.0, int8=0.5),
    }
    walls = {ORT: wall(3.0), NAME: wall(2.0), OTHER: wall(1.0)}
    race = on_one_scale(races, Places(floats({ORT: 0.0, NAME: 0.0, OTHER: 0.004}), walls, others=0.2))
    assert seconds_of(race) == {
        ("float32", ORT): 3.0, ("float32", NAME): 2.0, ("int8", NAME): 1.0, ("plan1", NAME): 1.5,
        ("float32", OTHER): 1.0, ("int8", OTHER): 0.5,
    }  # fmt: skip
    assert (race.float32.runtime, race.float32.error) == (ORT, 0.0)
    assert race.others == 0.2
    assert race.int8.key == ("int8", OTHER)


def test_float_takes_part_where_nothing_is_planned_with_the_error_of_the_place() -> None:
    walls = {ORT: wall(3.0), OTHER: wall(2.0)}
    for base, holds in ((0.004, True), (0.02, False)):
        race = on_one_scale({ORT: raced(ORT, float32=3.0, int8=2.9)}, Places(floats({ORT: 0.0, OTHER: base}), walls))
        there = race.entries["float32", OTHER]
        assert (there.error, there.holds, there.plan.status) == (base, holds, "measured")
        assert there.predicted_s == 2.0
        assert race.winner is not None and race.winner.key == (("float32", OTHER) if holds else ("int8", ORT))


FLOAT, INT8_HERE, FLOAT_THERE, PLAN = ("float32", ORT), ("int8", ORT), ("float32", NAME), ("plan 1", NAME)


@pytest.mark.parametrize(
    ("seconds", "breaks", "winner"),
    [
        ({FLOAT: 10.0, FLOAT_THERE: 8.0, PLAN: 5.0}, None, PLAN),
        ({FLOAT: 10.0, FLOAT_THERE: 8.0, PLAN: 5.0}, PLAN, FLOAT_THERE),
        # A plan that gains only noise on float of its place.
        ({FLOAT: 10.0, FLOAT_THERE: 5.02, PLAN: 5.0}, None, FLOAT_THERE),
        ({FLOAT: 5.0, FLOAT_THERE: 8.0, PLAN: 5.01}, None, FLOAT),
        # What is plain and as fast must keep the limit, too.
        ({FLOAT: 10.0, INT8_HERE: 5.0, ("plan 1", ORT): 5.01}, INT8_HERE, ("plan 1", ORT)),
        ({FLOAT: 10.0}, FLOAT, None),
    ],
)
def test_the_fastest_that_holds_wins_wherever_it_runs(
    seconds: dict[Key, float], breaks: Key | None, winner: Key | None
) -> None:
    entries = ledger(*(timed(*key, value, holds=key != breaks) for key, value in seconds.items()))
    assert (entries.winner and entries.winner.key) == winner


def test_where_all_int8_does_not_run_that_of_another_place_is_compared() -> None:
    """Without answers there is nothing to compare: it ended in a KeyError."""
    refused = replace(timed("int8", NAME, 1.0), refused="OpenVINO cannot run it")
    rows = ledger(timed("float32", ORT, 10.0), timed("int8", ORT, 6.0), timed("float32", NAME, 8.0), refused)
    assert rows.int8.key == ("int8", ORT)
    assert rows.having(replace(rows.int8, refused="nor can ONNX Runtime")).int8 is rows.float32


def test_rivals_of_the_winner_are_the_first_of_other_places_and_its_neighbours() -> None:
    here = [timed(name, ORT, seconds) for name, seconds in (("plan 1", 1.0), ("plan 2", 1.04), ("plan 3", 1.06))]
    there = [timed(name, NAME, seconds) for name, seconds in (("plan 1", 1.09), ("plan 2", 1.095), ("plan 4", 1.2))]
    race = ledger(timed("float32", ORT, 1.02), *here, *there)
    assert [entry.key for entry in race.rivals(here[0])] == [("plan 1", NAME), ("plan 2", ORT)]
    assert race.rivals(race.float32) == []
    assert race.rivals(timed("plan 5", ORT, 0.9)) == []
