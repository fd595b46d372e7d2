"""Which models are open side by side under a memory limit, and which are left out."""

from collections.abc import Callable
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


def chain(count: int) -> onnx.ModelProto:
    """Of two operators each."""
    g = Sketch(3)
    x = g.input("x", 1, 64)
    for _ in range(count):
        x = g.op("Relu", g.op("MatMul", x, g.weight(64, 64, gain=1.4)))
    return g.model(x)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("limit_bytes", "wanted"), [(None, ["abcde"]), (7_400_000, ["abc", "ade"]), (4_900_000, [*"abcde"])]
)
def test_sessions_are_timed_in_groups_beside_the_first_as_a_limit_allows(
    limit_bytes: int | None, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session takes a megabyte."""
    groups: list[list[str]] = []
    opened_bytes = [0]
    opened = onnxruntime.open_session
    interleave: Callable[..., object] = rounds.interleave

    def watched(open_sessions: dict[str, object], *rest: object, **named: object) -> object:
        groups.append([*open_sessions])
        samples = interleave(open_sessions, *rest, **named)
        opened_bytes[0] = 0
        return samples

    def counting(model: object, *rest: object, **named: object) -> object:
        opened_bytes[0] += 1_000_000 if isinstance(model, Path) else 0
        return opened(model, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "open_session", counting)
    monkeypatch.setattr(sessions, "used_bytes", lambda: 3_500_000 + opened_bytes[0])
    monkeypatch.setattr(stopwatch, "interleave", watched)
    model = conv_relu_chain()
    feed = {"x": np.zeros([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim], np.float32)}
    models = {name: lambda: model for name in "abcde"}
    timed = Stopwatch([feed], SessionOptions(1), limit_bytes).time(models, EFFORT).all()
    assert [*timed] == [*"abcde"]
    assert all(model.wall.runs > 0 and model.wall.median_s > 0.0 for model in timed.values())
    assert groups == [[*group] for group in wanted]


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
def test_a_model_that_does_not_fit_lets_a_smaller_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[str]] = []
    interleave: Callable[..., object] = rounds.interleave

    def watched(open_sessions: dict[str, object], *rest: object, **named: object) -> object:
        groups.append([*open_sessions])
        return interleave(open_sessions, *rest, **named)

    monkeypatch.setattr(stopwatch, "interleave", watched)
    monkeypatch.setattr(sessions, "used_bytes", lambda: 0)
    monkeypatch.setattr(sessions, "session_bytes", lambda proto, _: 1e6 * len(proto.graph.node))
    models = {str(count): lambda count=count: chain(count) for count in (1, 9, 2)}  # two operators each
    feed = {"x": np.zeros((1, 64), np.float32)}
    timed = Stopwatch([feed], SessionOptions(1), 10_000_000).time(models, EFFORT).all()
    assert groups == [["1", "2"], ["9"]]
    assert [*timed] == ["1", "9", "2"]


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
