"""The time that a device takes longer after waiting is a term of its own, with which a latency can be recomputed."""

from dataclasses import replace
from pathlib import Path

import pytest

from taglio import artifact
from taglio.cluster.file import parse
from taglio.cluster.planning.place import place
from taglio.cluster.planning.workload import Workload, parse_objective
from taglio.plan.result import Interval, Limits, Plan
from taglio.profile.result import scaled
from taglio.report.placement import decisions
from tests.cluster.planning.test_assemble import PAIR, chain

WAKING_S = 6e-4


def test_a_latency_is_the_sum_of_its_terms(tmp_path: Path) -> None:
    """A chain on two devices: nothing runs in parallel."""
    graph, profiles = chain()
    names = [block.name for block in graph.blocks]
    far = replace(profiles["far"], conditions=replace(profiles["far"].conditions, waking_s=WAKING_S))
    far = replace(far, overhead_s=far.overhead_s + WAKING_S)
    work = Workload(
        "m", graph, {**profiles, "far": far}, None, Limits(None, tuple(names), device_pins=((names[1], "far"),))
    )
    cluster = parse(PAIR.replace("[device.near]", "[device.near]\nrequest_ms = 0.2"))
    (plan,) = place([work], cluster, parse_objective("latency")).plans
    away = [piece for piece in plan.pieces if piece.device == "far"]
    assert away and all(piece.waking_s == pytest.approx(WAKING_S) for piece in away)
    assert all(piece.waking_s == 0.0 for piece in plan.pieces if piece.device == "near")
    blocks_s = sum(work.profiles[each.device].block_times()[each.block, "float32"] for each in plan.placements)
    overhead_s = sum(work.profiles[piece.device].overhead_s - piece.waking_s for piece in plan.pieces)
    floats_s = sum(glue.float_s for glue in profiles["near"].glue)
    waking_s = sum(piece.waking_s for piece in plan.pieces)
    glue = {flow.flow: flow for flow in profiles["near"].glue}
    changed = [glue[sent.tensor] for sent in plan.crossings if sent.precision == "int8"]
    changes_s = sum(flow.quantize_s + flow.dequantize_s for flow in changed)
    sent_s = sum(sent.predicted_s for sent in plan.crossings)
    assert plan.predicted_latency_s.value == pytest.approx(
        blocks_s + floats_s + changes_s + overhead_s + waking_s + sent_s + 2e-4, rel=1e-6
    )
    assert "waking" in str(decisions(plan)) and "0.6" in str(decisions(plan))
    plan = replace(plan, predicted_error=Interval(0.0, 0.0, 0.0, 0.0))
    artifact.save(tmp_path / "plan.json", "plan", graph.model_sha256, plan)
    assert artifact.load(tmp_path / "plan.json", "plan", Plan).pieces == plan.pieces


def test_an_assumed_device_wakes_as_much_slower_as_it_runs() -> None:
    _, profiles = chain()
    known = replace(profiles["far"], conditions=replace(profiles["far"].conditions, waking_s=WAKING_S))
    assert scaled(known, 3.0).conditions.waking_s == pytest.approx(3 * WAKING_S)
