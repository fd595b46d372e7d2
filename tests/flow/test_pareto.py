"""A front has only plans that no other beats."""

import msgspec
import pytest

from taglio.cluster.file import parse
from taglio.cluster.planning.place import place
from taglio.cluster.planning.workload import Workload
from taglio.flow.pareto import front
from taglio.plan.result import Limits
from taglio.profile.result import scaled
from tests.cluster.planning.test_assemble import PAIR, chain

CLUSTER = parse(PAIR.replace("bandwidth_mbit_s = 8\n", "bandwidth_mbit_s = 80\n"))


@pytest.mark.parametrize("axis", ["energy", "throughput"])
@pytest.mark.parametrize("models", [1, 2])
def test_a_front_has_only_plans_that_no_other_beats(axis: str, models: int) -> None:
    graph, profiles = chain()
    profiles = {"near": profiles["near"], "far": scaled(profiles["far"], 2.0)}
    works = [Workload(f"m{each}", graph, profiles, None, Limits(None)) for each in range(models)]
    found = front(
        works,
        axis,  # type: ignore[arg-type]
        lambda w, objective: place(w, CLUSTER, objective, time_limit_s=1.0),
        points=4,
    )
    assert all(len(each.others) == models - 1 for each in found.points)
    assert found.points and found.tried >= len(found.points)
    assert msgspec.json.encode(found)  # is written to a file
    sign = -1.0 if axis == "throughput" else 1.0
    for one in found.points:
        for other in found.points:
            if one is not other:
                assert one.latency_s < other.latency_s or sign * one.other < sign * other.other
