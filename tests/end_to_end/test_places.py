"""`--runtime auto`: what is found in every place of this machine, and what is built opens where it was timed."""

import json
from pathlib import Path

from tests.end_to_end.command import Case, quick, taglio
from tests.processor import needs_openvino


@needs_openvino
def test_every_place_is_timed_and_the_manifest_names_the_one_that_won(tiny: Case, tmp_path: Path) -> None:
    printed = quick(tiny, tmp_path / "out", "--max-error", 0.05, "--runtime", "auto", "--json").json()
    timed = {(each["name"], each["runtime"]) for each in printed["places"] if each["latency_s"] is not None}
    # In which places plans are made, and int8 is timed, depends on how fast they are.
    assert {("float32", "onnxruntime"), ("float32", "openvino")} <= timed
    out = [each for each in printed["places"] if each["latency_s"] is None]
    assert all(each["reason"] for each in out)
    manifest = json.loads((tmp_path / "out" / "components" / "manifest.json").read_text())["body"]
    assert {each["runtime"] for each in manifest["pieces"]} == {printed["plan"]["runtime"]}
    # Later stages agree, also where the profile is of another place than the one that won.
    assert taglio("build", tmp_path / "out", "--json").json()["manifest"]["pieces"] == manifest["pieces"]
    assert taglio("run", tmp_path / "out", "--runs", 2, "--json").json()["runtime"] == printed["plan"]["runtime"]
