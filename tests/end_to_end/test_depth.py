"""How many of our functions lie between the command and what it measures with, plans with and writes with."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import taglio as package
from taglio.confirm.bench import Bench
from taglio.error.measure import ErrorMeter
from taglio.flow import confirm, result
from taglio.profile.stopwatch import Stopwatch
from taglio.search import search
from tests.end_to_end.command import SCHEME, Case, taglio

# docs/design.md lists the functions; tests/test_pages.py counts that list.
MOST = 8
PACKAGE = Path(str(package.__file__)).parent
PLACES: tuple[tuple[Any, str], ...] = (
    (Stopwatch, "time"),
    (ErrorMeter, "evidence"),
    (Bench, "opening"),
    (search, "make_plan"),
    (confirm, "write"),
    (result, "write_deploy"),
)


def functions_from_command() -> list[str]:
    """Our functions, the command's first, down to the caller of what calls this."""
    frame: FrameType | None = sys._getframe(2)
    names = list[str]()
    while not names or names[-1] != "flow.optimize in cli":
        assert frame is not None, f"not below the command: {names}"
        file, function = Path(frame.f_code.co_filename), frame.f_code.co_name
        if PACKAGE in file.parents and not function.startswith("<"):
            names.append(f"{file.stem}.{function} in {file.parent.name}")
        frame = frame.f_back
    return names[::-1]


@pytest.mark.slow
def test_a_command_reaches_what_it_works_with_in_at_most_eight_functions(
    few_digits: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: dict[str, set[str]] = {}

    def watched(owner: Any, name: str) -> Callable[..., Any]:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            functions = functions_from_command()
            ways.setdefault(f"{owner.__name__}.{name}", set()).add(" > ".join(functions))
            assert len(functions) <= MOST, functions
            return real(*arguments, **options)

        return call

    for owner, name in PLACES:
        monkeypatch.setattr(owner, name, watched(owner, name))
    ran = taglio(
        "optimize", *few_digits.arguments(), "--max-error", "2%", "--runtime", "onnxruntime", "--scheme", SCHEME,
        "--effort", 0.02, "--threads", 1, "-o", tmp_path / "out",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert len(ways) == len(PLACES), ways.keys()
