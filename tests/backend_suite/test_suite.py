"""A sample of the suite; that the suite sees what it is for. All of it: make test-suite."""

import signal

import numpy as np
import pytest

from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.processor import listed
from tests.backend_suite import exporters
from tests.backend_suite.case import Case
from tests.backend_suite.check import (
    CRASH,
    EXCEPTION,
    PASSED,
    REFUSED,
    RIGHTLY,
    SKIPPED,
    TIMEOUT,
    WRONG,
    Outcome,
    check,
)
from tests.backend_suite.compose import compose
from tests.backend_suite.drive import outcomes, sample
from tests.backend_suite.known import problems, rounding_decides, rounds
from tests.backend_suite.misbehave import misbehave
from tests.backend_suite.pool import Died, run_all
from tests.models import conv_relu_chain, parsed

SAMPLE, GRAPHS = 60, 12


# One of each reason for which a refusal is right.
REFUSED_RIGHTLY = ("test_constant", "test_isinf", "test_reduce_max_empty_set")


@pytest.mark.whole
def test_a_sample_of_the_suite() -> None:
    found = outcomes(sample(SAMPLE, REFUSED_RIGHTLY))
    assert len(found) >= SAMPLE
    assert sum(each.status == PASSED for each in found.values()) > SAMPLE / 4
    assert {found[name].status for name in REFUSED_RIGHTLY} == {RIGHTLY}
    assert problems(found, listed()) == []


@pytest.mark.whole
def test_graphs_as_exporters_make_them() -> None:
    assert {name for name, each in outcomes(exporters.cases()).items() if each.status != PASSED} == set()


@pytest.mark.whole
def test_random_graphs() -> None:
    found = outcomes(map(compose, range(GRAPHS)))
    assert sum(each.status == PASSED for each in found.values()) > GRAPHS / 4
    assert problems(found, listed()) == []


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


def test_only_what_passes_is_skipped_or_is_refused_rightly_is_as_it_must_be() -> None:
    rounding = Outcome(WRONG, "mix2: output y is 0.31% off the switchable graph (limit 0.20%)")
    found = {
        "good": Outcome(PASSED), "none": Outcome(SKIPPED, "ONNX Runtime cannot"), "empty": Outcome(RIGHTLY, ""),
        "new": Outcome(REFUSED, "no reason"), "dead": Outcome(CRASH, "exit code -11"), "late": Outcome(TIMEOUT),
        "far": rounding,
    }  # fmt: skip
    lines = ["new: refused: no reason", "dead: crash: exit code -11", "late: timeout: "]
    assert problems(found, ("asimd",)) == lines
    assert problems(found, ("avx2", "avx512_vnni")) == [*lines, f"far: wrong: {rounding.detail}"]


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
