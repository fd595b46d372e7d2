"""Whether schemes are compared, and what other forms add to the score of a place."""

import numpy as np
import pytest

from taglio.error.loss import Metric
from taglio.flow.choose_forms import FormResult
from taglio.flow.opening import Model
from taglio.flow.settle import other_scores, settle
from taglio.quantize.scheme import DEFAULT_SCHEME
from tests.models import Sketch


def test_no_schemes_are_compared_where_no_block_can_be_int8() -> None:
    g = Sketch()
    proto = g.model(g.rename(g.op("Softmax", g.input("x", 1, 8)), "y"))
    rows = np.random.default_rng(0).standard_normal((16, 1, 8)).astype(np.float32)
    found = settle(Model(proto, {"x": rows}).at(0.01), None, 0.01, Metric())
    assert (found.scheme, found.places.schemes) == (DEFAULT_SCHEME, ())


def test_an_lstms_form_gains_beside_int8_and_a_products_form_instead_of_it() -> None:
    form = FormResult("int8-dynamic", "onnxruntime", 2, float_s=10.0, latency_s=5.0, error=0.01, score_s=6.0, kept=True)
    for recurrent, best_s in ((0.0, 6.0), (0.75, 5.0), (1.0, 4.0)):
        assert other_scores([form], {"onnxruntime": 8.0}, recurrent) == pytest.approx({"onnxruntime": best_s})


def test_forms_that_are_not_kept_or_need_no_lstm_have_their_own_score_alone() -> None:
    weights = FormResult("int8-weights", "openvino", 2, float_s=10.0, latency_s=5.0, error=0.01, score_s=7.0, kept=True)
    slow = FormResult(
        "int8-dynamic", "onnxruntime", 2, float_s=10.0, latency_s=9.9, error=0.01, score_s=9.9, kept=False
    )
    int8_s = {"openvino": 8.0, "onnxruntime": 8.0}
    assert other_scores([weights, slow], int8_s, 1.0) == {"openvino": 7.0}
