"""A built model answers with what its outputs are, and refuses what its runtime cannot run in one line."""

from typing import Any, cast

import numpy as np
import pytest

from taglio.data.spec import InputSpec
from taglio.errors import BadData
from taglio.lab.build import Deployed
from taglio.run.in_process import Executor

INPUTS = (InputSpec("x", (1, 2), "float32"),)


class Answering:
    """In place of an executor: gives its answer, or raises it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def run(self, _feed: object) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def deployed(answer: Any) -> Deployed:
    return Deployed(cast("Executor", Answering(answer)), INPUTS, ("parts", "scores"))


def test_a_sequence_of_several_shapes_stays_a_list() -> None:
    parts, scores = [np.zeros((1, 4)), np.zeros((1, 8))], [{0: 0.25, 1: 0.75}]
    found = deployed([parts, scores]).run(np.zeros((1, 2)))
    assert found["parts"] is parts
    assert found["scores"] is scores


def test_what_the_runtime_cannot_run_is_one_line() -> None:
    with pytest.raises(BadData, match="`sample` cannot be run: indices out of bounds, idx=9"):
        deployed(RuntimeError("indices out of bounds,\n idx=9")).run(np.zeros((1, 2)))
