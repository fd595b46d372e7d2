"""A sample of the suite; that the suite sees what it is for. All of it: make test-suite."""

import numpy as np
import pytest

from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.processor import listed
from tests.backend_suite import exporters
from tests.backend_suite.case import Case
from tests.backend_suite.check import (
    PASSED,
    RIGHTLY,
    WRONG,
    check,
)
from tests.backend_suite.compose import compose
from tests.backend_suite.drive import outcomes, sample
from tests.backend_suite.known import problems
from tests.models import conv_relu_chain

SAMPLE, GRAPHS = 30, 12


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


def test_a_block_left_float_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built lacks a block of the assignment; the switchable graph has it."""
    whole = QdqBuilder.build

    def careless(self: QdqBuilder, assignment: dict[str, object], *arguments: object) -> object:
        return whole(self, dict(list(assignment.items())[1:]), *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(QdqBuilder, "build", careless)
    assert check(chain()).status == WRONG
