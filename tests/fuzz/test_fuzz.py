"""A few damages of each target; that a damage is found. For minutes: make test-suite."""

import json
import random
import shutil
from itertools import product
from pathlib import Path

import onnx
import pytest

from taglio.cli import main
from tests.conftest import Staged
from tests.fuzz import targets
from tests.fuzz.drive import gather, known, signature
from tests.fuzz.mutate import damage_bytes, damage_json, damage_model, damage_text
from tests.fuzz.targets import TARGETS, Attempt, attempt, make_models
from tests.models import pyramid

ATTEMPTS = 8


@pytest.fixture(scope="module")
def base(tiny_staged: Staged, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    make_models(folder)
    shutil.copytree(tiny_staged.folder, folder / "out")
    return folder


def test_a_few_damages(base: Path) -> None:
    items = (Attempt(target, seed, str(base)) for seed, target in product(range(ATTEMPTS), TARGETS))
    result = gather(items, workers=2)
    assert set(result.attempts.values()) == {ATTEMPTS}
    assert [str(each) for each in result.findings if each.what not in known()] == []


def test_known_faults_are_still_there(base: Path) -> None:
    """One that is mended must leave known.toml."""
    examples = {what: entry.split() for what, entry in known().items() if entry}
    items = [Attempt(target, int(seed), str(base)) for target, seed in examples.values()]
    found = {each.what for each in gather(iter(items), workers=2).findings}
    assert [f"{what}: mended: remove it" for what in examples if what not in found] == []


@pytest.mark.parametrize("seed", range(20))
def test_damages_are_repeated_by_their_seed(seed: int) -> None:
    model = pyramid().SerializeToString()
    text = json.dumps({"a": [1, 2.5, {"b": "c"}], "d": None}).encode()
    for damage, data in (
        (damage_bytes, model),
        (damage_model, model),
        (damage_json, text),
        (damage_text, b"a = 1\n[b]"),
    ):
        assert damage(random.Random(seed), data) == damage(random.Random(seed), data)


def test_most_damaged_models_are_still_models() -> None:
    whole = pyramid().SerializeToString()
    damaged = [damage_model(random.Random(seed), whole) for seed in range(50)]
    assert sum(each != whole for each in damaged) > 35
    for each in damaged:
        onnx.load_model_from_string(each)


@pytest.mark.parametrize(
    ("misdeed", "words"),
    [
        ("raise KeyError('x')", "traceback: KeyError"),
        ("sys.stderr.write('one\\ntwo\\n'); code = 2", "not one line"),
        ("code = 1", "exit code 1"),
        ("numpy.ones(300_000_000)", "memory: "),
    ],
)
def test_a_misdeed_is_found(misdeed: str, words: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(_: object) -> int:
        scope: dict[str, object] = {"code": 0}
        exec(f"import numpy, sys\n{misdeed}", scope)
        return int(scope["code"])  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(targets, "main", bad)
    assert words in attempt(Attempt("models", 0, str(base))).what
    monkeypatch.setattr(targets, "main", main)


def test_a_signature_leaves_names_out() -> None:
    assert signature("models", "traceback: KeyError in a/b.py, f: 'x7'") == "models: KeyError in a/b.py, f"
    assert signature("models", "memory: 2.3 GiB") == signature("models", "memory: 4.1 GiB")
