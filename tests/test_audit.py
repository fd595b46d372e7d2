"""`make lint` fails for a known vulnerability that nobody has explained, and only for that."""

import importlib.util
import json
import subprocess
import sys
from subprocess import CompletedProcess, TimeoutExpired

import pytest

from scripts import audit

FOUND = {
    "dependencies": [{"name": "sound", "vulns": []}, {"name": "leaky", "version": "1.0", "vulns": [{"id": "V-1"}]}]
}


@pytest.mark.parametrize(
    ("answer", "explained", "code", "said"),
    [
        (json.dumps(FOUND), {}, 1, "leaky 1.0 has V-1: update it"),
        (json.dumps(FOUND), {"V-1": "only in its server, which taglio does not start"}, 0, ""),
        ("", {}, 0, "skipped: the index of vulnerabilities does not answer"),
        (None, {}, 0, "skipped: the index of vulnerabilities does not answer"),
    ],
    ids=["found", "explained", "unreachable", "slow"],
)
def test_what_is_found_needs_an_explanation(
    answer: str | None,
    explained: dict[str, str],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def asked(command: list[str], **_: object) -> "CompletedProcess[str]":
        assert command[:3] == [sys.executable, "-m", "pip_audit"]
        if answer is None:
            raise TimeoutExpired(command, audit.PATIENCE_S)
        return CompletedProcess(command, 1, answer, "")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(subprocess, "run", asked)
    monkeypatch.setattr(audit, "EXPLAINED", explained)
    assert audit.main() == code
    told = capsys.readouterr().out
    assert said in told and bool(told) == bool(said)
