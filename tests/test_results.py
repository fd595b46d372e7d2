"""docs/results.md, from the newest file of each kind of processor: short, and with a command for each claim."""

import pytest

from scripts.results_docs import CLAIMS, RESULTS
from tests.end_to_end.command import ROOT

PAGE = ROOT / "docs" / "results.md"
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution has no benchmarks")


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 1500


def test_every_claim_has_its_command() -> None:
    commands = {claim.command.split()[0] for claims in CLAIMS.values() for claim in claims}
    assert [name for name in sorted(commands) if not (ROOT / "benchmarks" / name).exists()] == []


def test_every_result_file_is_shown() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [path.name for path in sorted(RESULTS.glob("*.md")) if f"/{path.name})" not in page] == []
