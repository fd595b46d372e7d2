"""Ranks and reasons, from a finished optimisation of the embedded model and by hand."""

from taglio import artifact
from taglio.error.model import ErrorModel
from taglio.flow.sensitivity import Sensitivity, ranks, sensitivity
from taglio.model.graph import build
from taglio.model.load import load
from taglio.profile.result import Profile
from tests.conftest import Optimized


def row(name: str, damage: float, float_s: float, int8_s: float) -> Sensitivity:
    return Sensitivity(name, "Conv", damage, 0.1, float_s, int8_s, "")


def test_ranks_are_by_damage_by_time_saved_and_by_both() -> None:
    rows = (row("a", 0.04, 3e-3, 1e-3), row("b", 0.01, 2e-3, 1e-3), row("c", 0.02, 1e-3, 2e-3))
    found = ranks(rows)
    assert found["damage"] == {"a": 1, "c": 2, "b": 3}
    assert found["saved"] == {"a": 1, "b": 2, "c": 3}
    assert found["worth"] == {"b": 1, "a": 2, "c": 3}


def test_every_block_of_a_real_network_is_judged_with_a_reason(optimized: Optimized) -> None:
    graph = build(load(optimized.folder / "float32.onnx"))
    profile = artifact.load(optimized.folder / "profile.json", "profile", Profile)
    model = artifact.load(optimized.folder / "error.json", "error", ErrorModel)
    rows = sensitivity(graph, profile, model)
    assert {each.block for each in rows} == {b.name for b in graph.candidates() if not b.movement}
    assert abs(sum(each.noise_share for each in rows) - 1.0) < 1e-6
    assert [each.damage for each in rows] == sorted((each.damage for each in rows), key=lambda d: -(d or 0.0))
    for each in rows:
        assert (each.saved_s <= 0.0) == each.leave_out.startswith("slower in int8")
