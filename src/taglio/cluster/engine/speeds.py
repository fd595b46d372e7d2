"""Time a fixed computation on the devices of a run, beside its times in their profiles. Corrects no prediction."""

from contextlib import suppress
from pathlib import Path

from taglio import artifact
from taglio.cluster.devices import Cluster
from taglio.cluster.engine.deploy import Deployment
from taglio.cluster.engine.result import DeviceSpeed
from taglio.flow.place import source
from taglio.flow.workspace import PROFILE
from taglio.profile.result import Profile
from taglio.profile.speed import reference_seconds

# Checks before the requests, and again after them: other tenants of a machine come and go within seconds.
_CHECKS, _CHECK_S = 3, 0.1


class DeviceSpeeds:
    """Seconds of the reference computation on each device, by name."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.seconds: dict[str, list[float]] = {}

    def check(self, deployment: Deployment) -> None:
        """Time the reference on one device after another, since they may share a machine."""
        for name, host in deployment.hosts().items():
            with suppress(Exception):  # a lost device is reported elsewhere
                for _ in range(_CHECKS):
                    seconds = host.call(reference_seconds, self._cluster.device(name).threads, _CHECK_S)
                    self.seconds.setdefault(name, []).append(seconds)

    def beside_profiles(self, folder: Path) -> tuple[DeviceSpeed, ...]:
        """All checks, beside the speeds in the profiles of the workspace `folder`."""
        speeds = []
        for name, seconds in self.seconds.items():
            device, profiled_s, half_s = self._cluster.device(name), None, None
            file, _ = source(self._cluster, device)
            if not device.assumed and (folder / file).exists():
                conditions = artifact.load(folder / file, PROFILE, Profile).conditions
                profiled_s, half_s = conditions.reference_s, conditions.reference_half_s
            speeds.append(DeviceSpeed(name, profiled_s, half_s, tuple(seconds)))
        return tuple(speeds)
