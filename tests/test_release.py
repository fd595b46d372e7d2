"""What a release says about itself agrees: version, changelog, citation, supported versions, container."""

import fnmatch
import re
import tomllib
from datetime import UTC, date, datetime
from typing import Any

from tests.end_to_end.command import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_in_the_changelog_and_the_citation() -> None:
    version, citation = PROJECT["version"], dict(re.findall(r"^([a-z-]+): (.+)$", text("CITATION.cff"), re.MULTILINE))
    dated = f"{version} ({citation['date-released']})"
    assert re.findall(r"^## (.*)$", text("CHANGELOG.md"), re.MULTILINE)[0] in (dated, "Unreleased")
    assert f"\n## {dated}\n" in text("CHANGELOG.md")
    assert (citation["version"], citation["license"]) == (version, PROJECT["license"])
    assert date.fromisoformat(citation["date-released"]) <= datetime.now(tz=UTC).date()


def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments, continued lines joined."""
    joined = text("Dockerfile").replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line and not line.startswith("#")]  # type: ignore[misc]


def test_the_container_copies_all_that_the_build_reads() -> None:
    copied = [
        word
        for name, argument in steps()
        if name == "COPY" and not argument.startswith("--from")
        for word in argument.split()[:-1]
    ]
    needed = {"pyproject.toml", "constraints.txt", "src", PROJECT["readme"], *PROJECT["license-files"]}
    assert needed == set(copied)
    let_in = [line[1:] for line in text(".dockerignore").splitlines() if line.startswith("!")]
    for name in copied:
        assert (ROOT / name).exists()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in let_in)


def test_the_container_runs_the_quick_start_as_nobody_special() -> None:
    instructions = steps()
    assert ("ENTRYPOINT", '["taglio"]') in instructions
    assert ("CMD", '["quickstart"]') in instructions
    users = [argument for name, argument in instructions if name == "USER"]
    assert users and users[-1] not in ("0", "root")
    pythons = {argument.split(":")[1].split("-")[0] for name, argument in instructions if name == "FROM"}
    least = tuple(int(part) for part in re.findall(r"\d+", PROJECT["requires-python"]))
    assert all(tuple(int(part) for part in python.split(".")) >= least for python in pythons)
