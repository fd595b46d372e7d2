"""Quotas as they are written, in folders that look like either version's; and where a hierarchy is found."""

from math import inf
from pathlib import Path

import pytest

from taglio.cluster.emulate import quota


@pytest.mark.parametrize(("cpus", "written"), [(0.5, "5000 10000"), (0.05, "1000 20000"), (inf, "max 10000")])
def test_version_2_takes_both_in_one_file(tmp_path: Path, cpus: float, written: str) -> None:
    (tmp_path / "cpu.max").write_text("")
    quota.limit(tmp_path, cpus)
    assert (tmp_path / "cpu.max").read_text() == written


def test_the_hierarchy_is_the_one_with_the_cpu_controller(tmp_path: Path) -> None:
    for name in ("memory", "cpu", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("memory\n")
    mounts = tmp_path / "mounts"
    lines = [f"cgroup {tmp_path}/memory cgroup rw,memory 0 0", f"cgroup2 {tmp_path}/unified cgroup2 rw 0 0"]
    mounts.write_text("\n".join(lines))
    assert quota.hierarchy(mounts) is None
    mounts.write_text("\n".join([*lines, f"cgroup {tmp_path}/cpu cgroup rw,cpu,cpuacct 0 0"]))
    assert quota.hierarchy(mounts) == tmp_path / "cpu"
    (tmp_path / "unified" / "cgroup.controllers").write_text("cpu memory\n")
    mounts.write_text("\n".join(lines))
    assert quota.hierarchy(mounts) == tmp_path / "unified"


def test_version_2_hands_the_controller_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    (tmp_path / "taglio-1").mkdir()
    (tmp_path / "taglio-1" / "cgroup.subtree_control").write_text("")
    quota.create(tmp_path, tmp_path / "taglio-1" / "camera")
    assert (tmp_path / "taglio-1" / "camera").is_dir()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "taglio-1" / "cgroup.subtree_control").read_text() == "+cpu"
