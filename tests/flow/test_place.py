"""What a plan on several devices is asked for, before anything is solved."""

import pytest

from taglio.cluster.devices import Cluster, Device
from taglio.flow.place import moving_from
from taglio.plan.workload import parse_objective

CLUSTER = Cluster("a", (Device("a", active_watts=2.0), Device("b", active_watts=5.0)), ())


@pytest.mark.parametrize(
    ("objective", "cost"),
    [
        ("latency", 0.01),
        ("throughput", 0.01),
        ("sum", 0.01),
        ("energy", 0.05),
        ("latency,energy", 0.05),
        ("energy,latency", 0.01),
        ("latency=2,energy=0.5", 0.045),
    ],
)
def test_moving_a_block_costs_in_the_unit_of_the_objective(objective: str, cost: float) -> None:
    assert moving_from((), 0.01, parse_objective(objective), CLUSTER).switching_cost == pytest.approx(cost)
