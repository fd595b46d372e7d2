"""`--runtime auto`: what is found in every place of this machine, and what is built opens where it was timed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from taglio.runtimes.places import refusal
from tests.end_to_end.command import Case, quick, refused, taglio

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="needs openvino: pip install 'taglio[openvino]'"
)


@needs_openvino
def test_every_place_is_timed_and_the_manifest_names_the_one_that_won(tiny: Case, tmp_path: Path) -> None:
    printed = quick(tiny, tmp_path / "out", "--max-error", 0.05, "--runtime", "auto", "--json").json()
    timed = {(each["name"], each["runtime"]) for each in printed["places"] if each["latency_s"] is not None}
    assert {("float32", "onnxruntime"), ("float32", "openvino"), ("int8", "onnxruntime")} <= timed
    out = [each for each in printed["places"] if each["latency_s"] is None]
    assert all(each["reason"] for each in out)
    manifest = json.loads((tmp_path / "out" / "components" / "manifest.json").read_text())["body"]
    assert {each["runtime"] for each in manifest["pieces"]} == {printed["plan"]["runtime"]}
    # Later stages agree, also where the profile is of another place than the one that won.
    assert taglio("build", tmp_path / "out", "--json").json()["manifest"]["pieces"] == manifest["pieces"]
    assert taglio("run", tmp_path / "out", "--runs", 2, "--json").json()["runtime"] == printed["plan"]["runtime"]


@needs_openvino
def test_what_was_built_for_openvino_says_so_where_it_is_missing(
    tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(tiny, tmp_path / "out", "--max-error", 0.05, "--runtime", "openvino", "--json").json()
    manifest = json.loads((tmp_path / "out" / "components" / "manifest.json").read_text())["body"]
    (piece,) = manifest["pieces"]
    assert piece["runtime"] == "openvino"
    assert piece["runtime_version"]
    assert piece["properties"]["INFERENCE_PRECISION_HINT"] in ("f32", "bf16")
    monkeypatch.setitem(sys.modules, "openvino", None)
    refusal.cache_clear()
    refused(taglio("run", tmp_path / "out", "--runs", 2), "model.onnx runs in openvino", "taglio[openvino]")
    assert taglio("run", tmp_path / "out", "--runs", 2, "--runtime", "onnxruntime", "--json").code == 0
    refusal.cache_clear()


def test_without_openvino_a_line_says_what_it_takes(
    tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    refusal.cache_clear()
    ran = quick(tiny, tmp_path / "out", "--max-error", 0.05, "--runtime", "auto")
    refusal.cache_clear()
    assert ran.code == 0
    assert ran.out.count("pip install 'taglio[openvino]'") == 1
