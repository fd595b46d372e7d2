"""Memory that no placement can do without is named, beside what the devices have, without a search; pins agree."""

import time

import pytest

from taglio.cluster.file import parse
from taglio.cluster.planning.place import place
from taglio.cluster.planning.workload import Workload, parse_objective
from taglio.errors import BadOption, Infeasible
from taglio.plan.result import Limits
from taglio.search.by_hand import pinned_devices
from tests.cluster.planning.test_assemble import PAIR, chain


@pytest.mark.parametrize("pins", [(), (("conv1", "far"),)])
@pytest.mark.parametrize("objective", ["latency", "throughput", "energy"])
def test_the_device_and_the_memory_that_it_lacks_are_named_at_once(
    pins: tuple[tuple[str, str], ...], objective: str
) -> None:
    graph, profiles = chain()
    text = PAIR.replace("[device.near]", "[device.near]\nmemory_mb = 1e-5")
    cluster = parse(text.replace("[device.far]", "[device.far]\nmemory_mb = 1e-5"))
    floats = tuple(block.name for block in graph.blocks)
    work = Workload("m", graph, profiles, None, Limits(None, floats, device_pins=pins))
    begun = time.perf_counter()
    with pytest.raises(
        Infeasible, match=r"needs at least .* MB on .*far \(memory_mb = 1e-05\).*: raise memory_mb"
    ) as refusal:
        place([work], cluster, parse_objective(objective), time_limit_s=60.0)
    assert refusal.value.limits == ("memory_bytes",)
    assert time.perf_counter() - begun < 20.0


def test_a_block_is_pinned_to_one_device_that_it_is_not_kept_off() -> None:
    graph, _ = chain()
    assert pinned_devices(graph, ["near=conv0", "near=conv*"], ["far=conv0"])["conv0"] == "near"
    with pytest.raises(BadOption, match="block conv1 is pinned to near and to far: drop one of the pins"):
        pinned_devices(graph, ["near=conv1", "far=conv1"])
    with pytest.raises(BadOption, match="block conv1 is pinned to far and kept off far"):
        pinned_devices(graph, ["far=conv1"], ["far=conv*"])
