"""Joules are read from a powercap tree made here; no real counters have been read."""

from pathlib import Path

import pytest

from taglio.cluster.engine.energy import between, read


def written(folder: Path, name: str, counted: int, end: int) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{counted}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{end}\n")


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    for name, counted in (("intel-rapl:0", 9_000_000), ("intel-rapl:1", 1_000_000), ("intel-rapl:0:0", 5_000_000)):
        written(tmp_path, name, counted, 10_000_000)
    before = read(tmp_path)
    written(tmp_path, "intel-rapl:0", 500_000, 10_000_000)
    written(tmp_path, "intel-rapl:1", 3_000_000, 10_000_000)
    assert between(before, read(tmp_path)) == pytest.approx(1.5 + 2.0)


def test_without_counters_there_is_no_answer(tmp_path: Path) -> None:
    assert read(tmp_path / "nothing") is None and between(None, None) is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert read(tmp_path) is None
