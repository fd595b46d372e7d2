"""The examples in the docstrings of public names, in the order in which a reader would run them."""

import doctest
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

import taglio
from taglio.compare import measure
from taglio.flow import error, opening, optimize, place, profile, result, run
from taglio.lab import build
from taglio.runtimes.places import refusal
from taglio.search import decide
from tests.conftest import TWO_DEVICES

ORDER = (
    opening.Model, profile.profile_model, error.error_model, decide.plan_model, build.build, run.run_model, place.place,
    optimize.optimize, result.Result, measure.compare_backends,
)  # fmt: skip


@pytest.mark.whole
def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ONNX Runtime alone, whichever others this machine has; what two pages show is run once."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    refusal.cache_clear()
    (tmp_path / "cluster.toml").write_text(TWO_DEVICES)
    names: dict[str, object] = {"taglio": taglio, "numpy": np, "cluster": tmp_path / "cluster.toml"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said, seen = list[str](), set[str]()
    for public in (*ORDER, taglio):
        parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(public) or "", names, public.__name__, None, 0)
        assert parsed.examples, f"{public.__name__} has no example"
        parsed.examples = [example for example in parsed.examples if example.source not in seen]
        seen.update(example.source for example in parsed.examples)
        runner.run(parsed, out=said.append, clear_globs=False)
        names.update(parsed.globs)
    refusal.cache_clear()
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
