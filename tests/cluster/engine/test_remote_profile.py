"""In which runtime a device profiles: the fastest that it has, where none is asked for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taglio.cluster.engine import remote_profile
from taglio.cluster.engine.remote_profile import Job, fastest
from taglio.quantize.scheme import parse_scheme
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.weights import sha256
from tests.end_to_end.command import SCHEME

GRAPH: Any = SimpleNamespace(candidates=list, blocks=())


@pytest.mark.parametrize(("int8_s", "chosen"), [(1.5, "onnxruntime"), (0.5, "openvino")])
def test_the_runtime_of_the_fastest_form_is_taken(monkeypatch: pytest.MonkeyPatch, int8_s: float, chosen: str) -> None:
    """Float is faster in ONNX Runtime; all-int8 in OpenVINO may be faster still. bfloat16 is not tried."""
    seconds = {"float32 in onnxruntime": 1.0, "float32 in openvino": 2.0, "int8 in openvino": int8_s}

    def timed(models: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        assert not any("bf16" in name for name in models) and seconds.keys() <= models.keys()
        return {name: SimpleNamespace(wall=SimpleNamespace(median_s=seconds.get(name, 3.0))) for name in models}

    monkeypatch.setattr(remote_profile, "time_models", timed)
    monkeypatch.setattr(remote_profile, "pure_assignments", lambda *_: {"int8": {}})
    monkeypatch.setattr(remote_profile, "here", lambda: ("onnxruntime", "openvino", "openvino-bf16"))
    job = Job({}, {}, GRAPH, None, parse_scheme(SCHEME), [], SessionOptions(1), 1.0, 0)  # type: ignore[arg-type]
    builder: Any = SimpleNamespace(build=dict)
    assert fastest(builder, job) == chosen
    monkeypatch.setattr(remote_profile, "here", lambda: ("onnxruntime", "openvino-bf16"))
    assert fastest(builder, job) == "onnxruntime"


def test_a_device_gets_all_files_and_inputs_of_every_shape_and_not_only_of_the_most_frequent(tmp_path: Path) -> None:
    """As `taglio profile` does: `typical` inputs are of one shape, `timed` ones of shapes as they occur."""
    options = {"options": lambda: SessionOptions(1), "runtime": "onnxruntime"}
    setup, source = SimpleNamespace(**options, shapes={}, seed=0, requantize=False), tmp_path / "m.onnx"
    onnx.save(with_weights_in_a_file(), source, save_as_external_data=True, location="m.bin", size_threshold=0)
    timed = [{"x": np.zeros((1, size), np.float32)} for size in (4, 8)]
    given = {"typical": timed[:1], "timed": timed, "graph": GRAPH, "ranges": lambda *_: None}
    work: Any = SimpleNamespace(setup=setup, source=source, **given)
    job = remote_profile._asked(work, parse_scheme(SCHEME), 1.0)
    assert [each["x"].shape for each in job.feeds] == [(1, 4), (1, 8)]
    assert job.files == {name: sha256(tmp_path / name) for name in ("m.onnx", "m.bin")}


def with_weights_in_a_file() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    x, y = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])] for name in "xy")
    return helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "m", x, y, [weight]))
