"""Models of other frameworks: what they are, when they are converted, and when a conversion is refused."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.compare import convert, environments, supervise
from taglio.compare.environments import FoundEnvironment
from taglio.compare.request import Request
from taglio.embedded import digits_data
from taglio.errors import BadModel
from taglio.flow.opening import Model
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session
from tests.models import digits_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "cache", lambda: tmp_path / "cache" / "converted")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every job that a worker would get; the embedded model stands for what it makes, and answers as the original."""
    jobs: list[Request] = []
    monkeypatch.setattr(environments, "find", lambda name: FoundEnvironment(name, Path("python"), "", {"tool": "1"}))

    def answer(_: Any, request: Request, __: Any) -> tuple[Any, str]:
        jobs.append(request)
        if request.task == "convert":
            return {"path": str(digits_model()), "tool": "a tool 1.0"}, ""
        session = open_session(digits_model(), SessionOptions(1), label="x")
        outputs = [run_session(session, ["logits"], {"image": image}, "x")[0] for (image,) in request.held_out]
        return [[output * (1.0 if len(jobs) < 9 else 1.02)] for output in outputs], ""

    monkeypatch.setattr(supervise, "answer", answer)
    return jobs


def foreign(folder: Path, name: str = "net.tflite", content: bytes = b"x") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.H5", "keras"),
        ("a.tflite", "tflite"),
        ("a.pt2", "torch"),
        ("saved/saved_model.pb", "savedmodel"),
        ("bert/config.json", "huggingface"),
        ("a.bin", ""),
    ],
)
def test_what_a_model_is(tmp_path: Path, name: str, expected: str) -> None:
    path = foreign(tmp_path, name)
    model = path.parent if "/" in name else path
    assert convert.kind(model) == expected
    assert convert.foreign(model) == (expected not in ("", "onnx"))
    assert convert.kind(tmp_path / "nets:build") == "torch"


def test_a_conversion_is_made_once_told_and_held_against_the_original(tmp_path: Path, made: list[Request]) -> None:
    model = foreign(tmp_path)
    with np.load(digits_data()) as arrays:
        images = arrays["image"][:8]
    for _ in range(2):
        opened = Model(model, {"image": images}, threads=1)
        assert (opened.name, opened.outputs) == ("net", ("logits",))
        assert len(opened.notes) == 1
        assert opened.notes[0].text.startswith("net.tflite (TFLite) was converted to ONNX by a tool 1.0; its answers")
    assert [job.task for job in made] == ["convert", "reference"]
    foreign(tmp_path, content=b"y")  # another model
    Model(model, {"image": images}, threads=1)
    assert [job.task for job in made[2:]] == ["convert", "reference"]


@pytest.mark.usefixtures("made")
def test_conversions_used_longest_ago_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "CACHE_BYTES", int(2.5 * digits_model().stat().st_size))
    models = [foreign(tmp_path, f"{name}.tflite", name.encode()) for name in "abc"]
    first, second = (convert.as_onnx(model, {}, 1).path for model in models[:2])
    for age_s, path in ((200, first), (100, second)):
        os.utime(path.parent, (time.time() - age_s,) * 2)
    assert convert.as_onnx(models[0], {}, 1).path == first  # used again
    third = convert.as_onnx(models[2], {}, 1).path
    assert (first.exists(), second.exists(), third.exists()) == (True, False, True)
    assert convert.as_onnx(models[1], {}, 1).path == second
    assert second.exists() and not first.exists()


def test_a_module_is_converted_anew_since_nothing_says_what_it_reads(tmp_path: Path, made: list[Request]) -> None:
    path = tmp_path / "nets.py:build"
    for _ in range(2):
        found = convert.as_onnx(path, {}, 1, {"x": ((1, 3), "int64")})
        assert (found.kind, found.path.name) == ("torch", "build.onnx")
    assert [(job.inputs, job.shapes, job.dtypes) for job in made] == [(("x",), ((1, 3),), ("int64",))] * 2
    assert made[0].model == str(path)


def test_a_conversion_that_answers_otherwise_is_refused(tmp_path: Path, made: list[Request]) -> None:
    made += [Request("convert", "")] * 9
    with np.load(digits_data()) as arrays:
        images = arrays["image"][:8]
    with pytest.raises(BadModel, match=r"net.tflite: its ONNX form, made by a tool 1.0, differs from it by 1.96% on"):
        Model(foreign(tmp_path), {"image": images}, threads=1)


def test_a_tool_that_fails_is_named(tmp_path: Path, made: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    assert made == []
    monkeypatch.setattr(supervise, "answer", lambda *_: (None, "no conversion for Foo"))
    with pytest.raises(BadModel, match=r"net.keras: cannot be converted to ONNX: no conversion for Foo"):
        convert.as_onnx(foreign(tmp_path, "net.keras"), {}, 1)
    with pytest.raises(BadModel, match="no such file: give the path of a model"):
        convert.as_onnx(tmp_path / "none.keras", {}, 1)


def test_examples_come_from_arrays_on_the_disk_and_in_memory(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((5, 3, 4), np.float32), label=np.zeros(5))
    assert convert.examples_of(tmp_path / "d.npz") == {"x": ((1, 3, 4), "float32")}
    assert convert.examples_of({"ids": [[1, 2], [3, 4]], "labels": [1, 2]}) == {"ids": ((1, 2), "int64")}
    assert convert.examples_of(tmp_path) == {}
