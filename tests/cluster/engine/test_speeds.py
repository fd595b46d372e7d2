"""How fast a run's devices compute, beside their profiles."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from taglio.cluster.engine.result import DeviceSpeed
from taglio.cluster.engine.speeds import DeviceSpeeds
from taglio.cluster.file import parse
from taglio.profile.speed import reference_seconds
from tests.cluster.engine.devices import CLUSTER


@dataclass
class Host:
    """A device that answers with the given seconds, then is lost."""

    answers_s: list[float]
    threads: list[int] = field(default_factory=list)

    def call(self, function: object, threads: int, least_s: float) -> float:
        assert function is reference_seconds and least_s > 0.0
        self.threads.append(threads)
        return self.answers_s.pop(0)


def test_every_check_is_kept_and_a_lost_device_ends_only_its_own(tmp_path: Path) -> None:
    hosts = {"server": Host([3.0]), "camera": Host([1.0, 2.0, 4.0, 1.0, 2.0, 4.0])}
    deployment: Any = SimpleNamespace(hosts=lambda: hosts)
    speeds = DeviceSpeeds(parse(CLUSTER.replace("active_watts = 60", "threads = 2")))
    speeds.check(deployment)
    speeds.check(deployment)
    assert speeds.seconds == {"server": [3.0], "camera": [1.0, 2.0, 4.0] * 2}
    assert hosts["server"].threads == [2, 2, 2]
    assert speeds.beside_profiles(tmp_path) == (
        DeviceSpeed("server", None, None, (3.0,)),
        DeviceSpeed("camera", None, None, (1.0, 2.0, 4.0) * 2),
    )


def test_how_much_slower_a_device_is_than_in_its_profile_is_told_from_the_median_of_all_looks() -> None:
    assert DeviceSpeed("camera", 2.0, (1.9, 2.2), (3.0, 100.0, 2.8)).slower == 1.5
    assert DeviceSpeed("camera", 2.0, (1.9, 2.2), (1.0, 1.0, 1.1)).slower == 0.5
    assert DeviceSpeed("camera", None, None, (3.0,)).slower is None


def test_a_device_is_not_told_to_be_slower_by_what_looks_at_it_scatter_by() -> None:
    assert DeviceSpeed("camera", 2.0, (1.9, 2.2), (3.0, 1.9, 2.4)).slower is None
    assert DeviceSpeed("camera", 2.0, (1.6, 2.9), (2.5, 2.6)).slower is None
