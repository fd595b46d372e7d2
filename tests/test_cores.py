"""Cores that a process may use. Control groups are laid out as the kernel does, both versions, in temporary folders."""

from math import inf
from pathlib import Path

import pytest

from taglio.cores import Quota, available_cores, quota


def laid_out(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, "proc/mounts": mounts, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = "5:memory:/elsewhere\n1:cpu,cpuacct:/outer/inner\n0::/\n"
V1_MOUNTS = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
V2_MOUNTS = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"


def test_the_quota_of_least_share_counts(tmp_path: Path) -> None:
    place = "sys/fs/cgroup/cpu"
    files = {
        f"{place}/cpu.cfs_quota_us": "-1\n", f"{place}/cpu.cfs_period_us": "100000\n",
        f"{place}/outer/cpu.cfs_quota_us": "5000\n", f"{place}/outer/cpu.cfs_period_us": "10000\n",
        f"{place}/outer/inner/cpu.cfs_quota_us": "80000\n", f"{place}/outer/inner/cpu.cfs_period_us": "100000\n",
    }  # fmt: skip
    assert quota(laid_out(tmp_path, V1, V1_MOUNTS, files)) == Quota(5e-3, 10e-3)


@pytest.mark.parametrize(("said", "wanted"), [("50000 100000\n", 0.5), ("max 100000\n", inf)])
def test_in_a_container_the_mount_is_the_group(tmp_path: Path, said: str, wanted: float) -> None:
    root = laid_out(tmp_path, "0::/\n", V2_MOUNTS, {"sys/fs/cgroup/cpu.max": said})
    assert quota(root).share == pytest.approx(wanted)
    # Docker on version 2 without a namespace of its own: the path is the host's, and not to be seen.
    (root / "proc/self/cgroup").write_text("0::/docker/0123\n")
    assert quota(root).share == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("used", "cores"), [("100000", 1), ("150000", 1), ("250000", 2), ("300000", 3), ("20000", 1), ("-1", 8)]
)
def test_cores_are_those_of_the_affinity_within_the_quota(
    used: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "sys/fs/cgroup/cpu/outer/inner"
    files = {f"{place}/cpu.cfs_quota_us": f"{used}\n", f"{place}/cpu.cfs_period_us": "100000\n"}
    laid_out(tmp_path, V1, V1_MOUNTS, files)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert available_cores(tmp_path) == cores


def test_the_affinity_counts_where_it_has_less_than_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(tmp_path, "0::/\n", V2_MOUNTS, {"sys/fs/cgroup/cpu.max": "400000 100000\n"})
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert available_cores(tmp_path) == 2


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert quota(tmp_path).share == inf
    assert quota(laid_out(tmp_path, "what is this\n", "", {})).share == inf
