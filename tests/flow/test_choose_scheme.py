"""Which scheme is picked from what was measured."""

from dataclasses import replace

import onnx
import pytest
from onnxruntime import InferenceSession

from taglio.error.loss import Metric
from taglio.errors import BadModel
from taglio.flow import choose_scheme
from taglio.flow.choose_scheme import SchemeResult, choose, float_where_none_loads, pick
from taglio.flow.opening import Model
from taglio.flow.work import Work
from taglio.profile.measure import FLOAT_RUN
from taglio.quantize.scheme import AUTO_SCHEMES, DEFAULT_SCHEME, Scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, sums_saturate
from tests.end_to_end.command import Case

CHANNEL, TENSOR, RESTRICTED = AUTO_SCHEMES[:3]
LITTLE = 0.02


def test_the_fastest_wins_and_among_equally_fast_ones_the_most_accurate() -> None:
    exact = SchemeResult(CHANNEL, 0.0101, 0.01, 0.0101)
    rough = SchemeResult(TENSOR, 0.0100, 0.02, 0.0100)
    slow = SchemeResult(RESTRICTED, 0.0150, 0.001, 0.0150)
    assert pick([rough, exact, slow]) == exact
    assert pick([rough, slow]) == rough
    assert pick([slow]) == slow


def test_no_schemes_are_compared_where_no_block_can_be_int8(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Work, "time", lambda *_, **__: pytest.fail("was timed"))
    floats = work.but(graph=work.graph.without_int8({block.name: "none" for block in work.graph.blocks}))
    assert choose(floats, 1.0, Metric()) == (CHANNEL, ())


@pytest.fixture(scope="module")
def work(few_digits: Case) -> Work:
    return Model(few_digits.model, few_digits.data, threads=1)


def tried(work: Work, saturates: bool, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> list[Scheme]:
    monkeypatch.setattr(choose_scheme, "sums_saturate", lambda: saturates)
    chosen, results = choose(work.at(LITTLE), 1.0, Metric(), [DEFAULT_SCHEME], saturating_elsewhere=elsewhere)
    assert chosen in {each.scheme for each in results}
    return [each.scheme for each in results]


@pytest.mark.whole
def test_weights_of_seven_bits_are_tried_where_sums_saturate(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = replace(DEFAULT_SCHEME, reduced_range=True)
    assert tried(work, False, False, monkeypatch) == [DEFAULT_SCHEME]
    assert tried(work, True, False, monkeypatch) == [DEFAULT_SCHEME, narrow]
    # What another device loses cannot be seen here.
    assert tried(work, False, True, monkeypatch) == [narrow]
    assert tried(work, True, True, monkeypatch) == [DEFAULT_SCHEME, narrow]


def test_a_bit_less_is_worth_it_where_sums_saturate_and_only_there(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    here = sums_saturate()
    monkeypatch.setattr(choose_scheme, "sums_saturate", lambda: True)
    _, (wide, narrow) = choose(work.at(LITTLE), 1.0, Metric(), [DEFAULT_SCHEME])
    assert (narrow.error < 0.5 * wide.error) == here
    assert 1.0 < narrow.error / wide.error < 3.0 or here


def breaking(monkeypatch: pytest.MonkeyPatch, broken: set[str]) -> None:
    """ONNX Runtime that loads no model of the schemes in `broken`."""
    real = Work.time

    def timed(work, models, *rest, **options):  # type: ignore[no-untyped-def]
        if hit := broken.intersection(models):
            raise BadModel(f"{min(hit)}: ONNX Runtime cannot load it: no kernel")
        return real(work, models, *rest, **options)

    monkeypatch.setattr(Work, "time", timed)


def test_a_scheme_that_does_not_load_drops_out(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, {str(TENSOR)})
    chosen, results = choose(work.at(LITTLE), 1.0, Metric(), [TENSOR, CHANNEL])
    reasons = {each.scheme: each.dropped for each in results}
    assert chosen != TENSOR and not reasons[CHANNEL]
    assert "no kernel" in reasons[TENSOR]
    assert float_where_none_loads(work, results) is work


def test_a_scheme_that_only_openvino_loads_drops_out(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors could not be measured."""
    real = open_session

    def opened(model: onnx.ModelProto, options: SessionOptions) -> InferenceSession:
        if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
            raise BadModel("the model: ONNX Runtime cannot load it: no kernel")
        return real(model, options)

    monkeypatch.setattr(choose_scheme, "open_session", opened)
    _, results = choose(work.at(LITTLE), 1.0, Metric(), [CHANNEL])
    assert [each.dropped for each in results] == ["the model: ONNX Runtime cannot load it: no kernel"]


def test_where_no_scheme_loads_everything_stays_float(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, {str(TENSOR), str(CHANNEL)})
    _, results = choose(work.at(LITTLE), 1.0, Metric(), [TENSOR, CHANNEL])
    assert [each.scheme for each in results] == [TENSOR, CHANNEL]
    graph = float_where_none_loads(work, results).graph
    assert not graph.candidates()
    assert any("no kernel" in block.refusal for block in graph.blocks)


def test_a_model_that_does_not_load_in_float_is_no_schemes_fault(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, {FLOAT_RUN})
    with pytest.raises(BadModel, match="no kernel"):
        choose(work.at(LITTLE), 1.0, Metric(), [CHANNEL])
