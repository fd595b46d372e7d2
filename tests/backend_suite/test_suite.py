"""A sample of the suite; that the suite sees what it is for. All of it: make test-suite."""

import signal
from pathlib import Path

import numpy as np
import pytest

from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.processor import listed
from tests.backend_suite import exporters
from tests.backend_suite.case import Case
from tests.backend_suite.check import CRASH, EXCEPTION, PASSED, REFUSED, SKIPPED, TIMEOUT, WRONG, Outcome, check
from tests.backend_suite.compose import compose
from tests.backend_suite.drive import outcomes, sample
from tests.backend_suite.known import FILE, REASONS, judge, load, rounding_decides, rounds, save, updated
from tests.backend_suite.misbehave import misbehave
from tests.backend_suite.pool import Died, run_all
from tests.models import conv_relu_chain, parsed

SAMPLE, GRAPHS = 60, 12


def news(found: dict[str, Outcome]) -> list[str]:
    """What the list does not know of. What is mended, or fails in another way by now, `python -m tests.backend_suite`
    says."""
    if not rounding_decides(listed()):
        found = {name: outcome for name, outcome in found.items() if not rounds(outcome)}
    return [line for line in judge(found, load(FILE)) if "remove it" not in line and "(known as" not in line]


@pytest.mark.whole
def test_a_sample_of_the_suite() -> None:
    of_each_reason = {case for cases in load(FILE).values() for case in cases[:1] if not case.startswith("graph-")}
    found = outcomes(sample(SAMPLE, of_each_reason))
    assert len(found) >= SAMPLE
    assert sum(each.status == PASSED for each in found.values()) > SAMPLE / 4
    assert news(found) == []


@pytest.mark.whole
def test_graphs_as_exporters_make_them() -> None:
    assert {name for name, each in outcomes(exporters.cases()).items() if each.status != PASSED} == set()


@pytest.mark.whole
def test_random_graphs() -> None:
    found = outcomes(map(compose, range(GRAPHS)))
    assert sum(each.status == PASSED for each in found.values()) > GRAPHS / 4
    assert news(found) == []


def chain() -> Case:
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    return Case("chain", conv_relu_chain().SerializeToString(), (feed,))


def test_a_good_model_passes() -> None:
    assert check(chain()) == Outcome(PASSED)


def test_a_block_left_float_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built lacks a block of the assignment; the switchable graph has it."""
    whole = QdqBuilder.build

    def careless(self: QdqBuilder, assignment: dict[str, object], *arguments: object) -> object:
        return whole(self, dict(list(assignment.items())[1:]), *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(QdqBuilder, "build", careless)
    assert check(chain()).status == WRONG


def test_a_traceback_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(*_: object) -> None:
        raise KeyError("missing")

    monkeypatch.setattr(QdqBuilder, "build", careless)
    assert check(chain()).status == EXCEPTION


def test_what_onnx_runtime_refuses_is_skipped() -> None:
    model = parsed("(float[1] x) => (float[1] y) { y = NoSuch (x) }")
    assert check(Case("none", model.SerializeToString(), ({"x": np.zeros(1, np.float32)},))).status == SKIPPED


def test_a_seed_is_one_graph() -> None:
    assert compose(7) is not compose(7)
    assert compose(7).model == compose(7).model
    assert len({compose(seed).model for seed in range(50)}) == 50


def test_a_crash_or_a_hang_costs_its_item_alone() -> None:
    found = dict(run_all(misbehave, ["a", "die", "b", "hang", "c"], workers=1, timeout_s=2))
    assert found == {
        "a": "A", "b": "B", "c": "C", "die": Died(timeout=False, exit_code=-signal.SIGSEGV), "hang": Died(timeout=True)
    }  # fmt: skip


NO_INPUTS = next(iter(REASONS))
LISTED = {NO_INPUTS: ["empty", "mended"]}


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("new", Outcome(REFUSED, "no reason"), "no reason"),
        ("new", Outcome(REFUSED, "the model has no inputs"), "no inputs"),
        ("new", Outcome(CRASH, "exit code -11"), "exit code -11"),
        ("new", Outcome(TIMEOUT), "timeout"),
        ("mended", Outcome(PASSED), "remove it"),
        ("empty", Outcome(EXCEPTION, "KeyError"), "known as refused"),
        ("empty", Outcome(REFUSED, "another reason"), "another reason"),
    ],
)
def test_what_is_not_as_the_list_says(name: str, outcome: Outcome, words: str) -> None:
    (line,) = judge({name: outcome}, LISTED)
    assert line.startswith(f"{name}: ") and words in line


def test_what_is_as_the_list_says() -> None:
    found = {
        "empty": Outcome(REFUSED, "the model has no inputs"),
        "other": Outcome(PASSED),
        "none": Outcome(SKIPPED, "ONNX Runtime cannot"),
    }
    assert judge(found, LISTED) == []


def test_a_list_written_again_has_the_refusals_that_are_right(tmp_path: Path) -> None:
    found = {
        "mended": Outcome(PASSED),
        "new": Outcome(REFUSED, "BadData: the model has no inputs, so no data can be fed to it"),
        "odd": Outcome(REFUSED, "CannotQuantize: tensor w0 of 3 has no {range}: calibrate with data"),
    }
    save(tmp_path / "expected.toml", updated(LISTED, found))
    listed_again = load(tmp_path / "expected.toml")
    assert listed_again[NO_INPUTS] == ["empty", "new"]
    assert [line.partition(":")[0] for line in judge(found, listed_again)] == ["odd"]


@pytest.mark.parametrize(
    ("instructions", "decides"),
    [
        (("avx2", "avx512f"), True),
        (("avx2", "avx_vnni"), False),
        (("avx2", "avx_vnni", "avx512_vnni", "amx_int8"), True),
        (("asimd", "i8mm"), False),
    ],
)
def test_rounding_decides_on_processors_that_the_suite_has_run_on(instructions: tuple[str, ...], decides: bool) -> None:
    assert rounding_decides(instructions) == decides


def test_another_shape_is_no_rounding() -> None:
    assert rounds(Outcome(WRONG, "mix2: output y is 0.31% off the switchable graph (limit 0.20%)"))
    assert not rounds(Outcome(WRONG, "float: output y is float32[2], the original's float32[3]"))
    assert not rounds(Outcome(EXCEPTION, "KeyError"))
