"""A made-up workspace of the embedded model, and what a report reads from it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from taglio.flow.outcome import Outcome
from taglio.model.load import Model, load
from taglio.report import terminal
from taglio.report.material import Material, gather
from tests.models import digits_model
from tests.report.made_up import fill

Printed = Callable[..., list[str]]


@pytest.fixture(scope="session")
def model() -> Model:
    return load(digits_model())


@pytest.fixture(scope="session")
def complete(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace; who changes it takes `copy`."""
    folder = tmp_path_factory.mktemp("complete")
    fill(folder, model)
    return folder


@pytest.fixture
def copy(complete: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(complete, tmp_path / "copy"))


@pytest.fixture
def material(complete: Path) -> Material:
    return gather(complete)


@pytest.fixture
def outcome(material: Material) -> Outcome:
    assert material.outcome is not None
    return material.outcome


@pytest.fixture
def printed(material: Material, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Prints an outcome and gives the lines, with plain spaces."""

    def show(outcome: Outcome, **how: bool) -> list[str]:
        terminal.outcome(Path("out"), replace(material, outcome=outcome), **how)
        return capsys.readouterr().out.replace("\u00a0", " ").splitlines()

    return show
