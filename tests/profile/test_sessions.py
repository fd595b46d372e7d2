"""Which models are open side by side under a memory limit, and which are left out."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.memory import trim, used_bytes
from taglio.profile import rounds, sessions, stopwatch
from taglio.profile.effort import Effort
from taglio.profile.sessions import ModelFile
from taglio.profile.stopwatch import Stopwatch
from taglio.runtimes import onnxruntime
from taglio.runtimes.onnxruntime import SessionOptions
from tests.models import Sketch, conv_relu_chain

EFFORT = Effort(0.1, minimum=2, maximum=2)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that are timed side by side, by group."""
    names: list[str] = []
    interleave: Callable[..., object] = rounds.interleave

    def watched(open_sessions: dict[str, object], *rest: object, **named: object) -> object:
        names.append("".join(open_sessions))
        return interleave(open_sessions, *rest, **named)

    monkeypatch.setattr(stopwatch, "interleave", watched)
    return names


@pytest.mark.whole
@pytest.mark.parametrize(
    ("limit_bytes", "wanted"), [(None, ["abcde"]), (7_400_000, ["abc", "ade"]), (4_900_000, [*"abcde"])]
)
def test_sessions_are_timed_in_groups_beside_the_first_as_a_limit_allows(
    limit_bytes: int | None, wanted: list[str], groups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session takes a megabyte."""
    opened_for: list[int] = []
    real: Callable[..., object] = onnxruntime.open_session

    def counting(model: object, *rest: object, **named: object) -> object:
        opened_for.extend([len(groups)] * isinstance(model, Path))
        return real(model, *rest, **named)

    monkeypatch.setattr(sessions, "open_session", counting)
    monkeypatch.setattr(sessions, "used_bytes", lambda: 3_500_000 + 1_000_000 * opened_for.count(len(groups)))
    feed = {"x": np.zeros((1, 3, 8, 8), np.float32)}
    watch = Stopwatch([feed], SessionOptions(1), limit_bytes)
    timed = watch.time(dict.fromkeys("abcde", conv_relu_chain), EFFORT).all()
    assert [*timed] == [*"abcde"] and groups == wanted
    assert all(model.wall.runs > 0 and model.wall.median_s > 0.0 for model in timed.values())


@pytest.mark.whole
def test_a_model_that_does_not_fit_lets_a_smaller_one_pass(groups: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(count: int) -> onnx.ModelProto:
        g = Sketch(3)
        x = g.input("x", 1, 64)
        for _ in range(count):
            x = g.op("Relu", x)
        return g.model(x)

    monkeypatch.setattr(sessions, "used_bytes", lambda: 0)
    monkeypatch.setattr(sessions, "session_bytes", lambda proto, _: 1e6 * len(proto.graph.node))
    models = {name: partial(chain, count) for name, count in (("a", 2), ("b", 18), ("c", 4))}
    timed = Stopwatch([{"x": np.zeros((1, 64), np.float32)}], SessionOptions(1), 10_000_000).time(models, EFFORT).all()
    assert groups == ["ac", "b"]
    assert [*timed] == ["a", "b", "c"]


@pytest.mark.whole
def test_what_does_not_fit_outside_onnx_runtime_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO takes twice the weights: a model of 300 MB exceeded a limit of 1 GB, opened beside ONNX Runtime's."""
    pytest.importorskip("openvino")
    g = Sketch(3)
    model = g.model(g.op("MatMul", g.input("x", 1, 512), g.weight(512, 512)))
    feed = {"x": np.zeros((1, 512), np.float32)}
    monkeypatch.setattr(sessions, "used_bytes", lambda: 1_000_000)
    places = {name: SessionOptions(1, runtime=name) for name in ("onnxruntime", "openvino")}
    timed_within: dict[int, list[str]] = {}
    for limit_bytes in (2_500_000, 4_000_000):
        watch = Stopwatch([feed], SessionOptions(1), limit_bytes)
        timings = watch.time(dict.fromkeys(places, lambda: model), EFFORT, places=places)
        timed_within[limit_bytes] = [*timings.timed]
        if timings.refused:
            assert timings.refused == {
                "openvino": "it needs an estimated 3 MB there, and the memory limit leaves 2 MB for sessions"
            }
    assert timed_within == {2_500_000: ["onnxruntime"], 4_000_000: ["onnxruntime", "openvino"]}


@pytest.mark.whole
def test_graphs_that_ran_are_kept_without_their_weights(tmp_path: Path) -> None:
    """Those of 14 variants of a network of 35 MB held half a gigabyte: deleting from a message frees nothing."""
    g = Sketch(0)
    onnx.save(g.model(g.op("MatMul", g.input("x", 1, 4096), g.constant(np.zeros((4096, 4096))))), tmp_path / "m.onnx")
    before = used_bytes()
    file = ModelFile(tmp_path / "m.onnx", SessionOptions(1), 0.0)
    kept = [file.graph() for _ in range(4)]
    trim()
    assert [len(graph_proto.graph.node) for graph_proto in kept] == [1] * 4
    assert used_bytes() - before < 100e6
