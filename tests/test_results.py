"""docs/results.md, from the newest file of each kind of processor: short, and with a command for each claim."""

from pathlib import Path

import pytest

from scripts import results_docs
from scripts.result_files import AVX2, NEW, UNKNOWN, ResultFile, kind, load
from scripts.results_docs import CLAIMS, RESULTS, Claim, columns, section
from tests.end_to_end.command import ROOT

PAGE = ROOT / "docs" / "results.md"
KINDS = (NEW, AVX2)
SETS = {NEW: ["avx2", "avx512_vnni", "avx512_bf16"], AVX2: ["avx2"]}
SPEED = Claim("Speed", "×.", "speed", "speed.py", "network", columns("network", "limit", "×"), "{0}: {1}", means=True)
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no benchmarks")


def result(folder: Path, moment: str, processor: str, *rows: str) -> ResultFile:
    """A file as benchmarks/cases.py writes it; `rows` are a network, a limit and a speed-up."""
    path = folder / f"speed_{moment.replace(' ', '_')}_{processor.replace(' ', '-')}.md"
    table = "\n".join(["| network | limit | × |", "| --- | --- | --- |", *(f"| {row} |" for row in rows)])
    sets = str(SETS[processor]).replace("'", '"')
    raw = f'```json\n{{"machine": {{"instructions": {sets}}}}}\n```'
    path.write_text(f"# speed\n\nEPYC, {moment}.\nCommand: `python benchmarks/speed.py`\n\n{table}\n\n{raw}\n")
    return load(path)


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 1500


def test_every_claim_has_its_command() -> None:
    commands = {claim.command.split()[0] for claims in CLAIMS.values() for claim in claims}
    assert [name for name in sorted(commands) if not (ROOT / "benchmarks" / name).exists()] == []


def test_every_result_file_is_shown() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [path.name for path in sorted(RESULTS.glob("*.md")) if f"/{path.name})" not in page] == []


def test_the_newest_file_of_each_kind_gives_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_docs, "ROOT", tmp_path)
    old = result(tmp_path, "2026-11-21", NEW, "a | 1% | 2.0", "b | 1% | 8.0")
    new = result(tmp_path, "2026-11-29 01:30, commit abc", NEW, "a | 1% | 2.0", "a | 3% | 3.0")
    other = result(tmp_path, "2026-11-28", AVX2, "a | 1% | 1.5")
    lines = section(SPEED, sorted([new, other, old], key=lambda file: file.order), KINDS).splitlines()
    assert "|a|1%: 2.0; 3%: 3.0<sup>1</sup>|1%: 1.5<sup>2</sup>|" in lines
    assert "|b|1%: 8.0<sup>3</sup>|open|" in lines
    assert "|geometric mean|1%: 4.00; 3%: 3.00; of 2|1%: 1.50; of 1|" in lines
    assert "1 [2026-11-29 01:30, commit abc]" in lines[-2]


def test_a_claim_without_files_is_open() -> None:
    assert "|–|open|open|" in section(SPEED, [], KINDS).splitlines()


def test_a_benchmark_of_two_runtimes_makes_two_claims(tmp_path: Path) -> None:
    file = result(tmp_path, "2026-11-29", NEW, "a | 1% | 2.0")
    assert SPEED.uses(file)
    latency = [claim for claim in CLAIMS["One machine"] if claim.benchmark == "prediction"]
    assert [claim.openvino for claim in latency] == [False, True]


def test_kinds_follow_from_instruction_sets() -> None:
    assert [kind(sets) for sets in SETS.values()] == [NEW, AVX2]
    assert kind(["avx2", "avx512_vnni"]) == "VNNI without bfloat16"
    assert kind(["avx2", "amx_int8", "amx_bf16"]) == NEW
    assert kind(None) == UNKNOWN


def test_a_file_without_a_date_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "speed.md"
    path.write_text("# speed\n\nEPYC.\n")
    with pytest.raises(ValueError, match=r"speed\.md: a result file begins with a title"):
        load(path)
