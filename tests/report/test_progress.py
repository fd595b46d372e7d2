"""Progress is drawn at a terminal, written now and then elsewhere, and silent where only an object is wanted."""

import pytest

from taglio.report import progress
from taglio.report.progress import bar


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 10.0, 31.0, 32.0, 95.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    with bar() as tell:
        assert tell is not None
        for done in range(4):
            tell("profiling devices", done, 3)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "after 31 s: profiling devices, 1 of 3",
        "after 95 s: profiling devices, 3 of 3",
    ]
    assert not printed.out


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with bar() as tell:
        assert tell is not None
        tell("profiling", 0, 2)
        tell("timing", 1, 4)
    printed = capsys.readouterr()
    assert "profiling" in printed.err
    assert "timing" in printed.err
    assert not printed.out
