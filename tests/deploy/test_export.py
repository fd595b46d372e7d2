"""Exported repositories hold what was delivered, and only where the answers are the same."""

import json
import shutil
from pathlib import Path

import pytest

from taglio import weights
from taglio.deploy.export import OVMS, PLAIN, TRITON, export
from taglio.deploy.folder import read
from taglio.deploy.verify import HOLDS
from taglio.deploy.write import Answered, read_answered
from taglio.errors import BadArtifact, BadOption
from taglio.runtimes import onnxruntime, openvino
from tests.deploy.repositories import ALONE, exported, rewritten, rows_in
from tests.deploy.test_delivery import Delivery, delivered
from tests.end_to_end.command import refused, taglio

pytest.importorskip("openvino")


@pytest.fixture(params=[onnxruntime.NAME, openvino.NAME])
def delivery(request: pytest.FixtureRequest, tmp_path: Path) -> Delivery:
    return delivered(tmp_path, request.param)


def test_plain_is_the_delivered_folder(delivery: Delivery, tmp_path: Path) -> None:
    exported(delivery.folder, tmp_path / "out", PLAIN)
    copied, original = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "out", delivery.folder)
    )
    assert copied == original
    assert Delivery(tmp_path / "out", delivery.components, delivery.manifest, []).verify().returncode == HOLDS


def test_a_folder_with_files_is_refused_and_an_empty_one_is_filled(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME)
    target = tmp_path / "deep" / "out"
    target.mkdir(parents=True)
    (target / "mine.txt").write_text("")
    with pytest.raises(BadOption, match="out exists and is not an empty directory: give a new one, or remove it"):
        exported(delivery.folder, target, TRITON)
    (target / "mine.txt").unlink()
    exported(delivery.folder, target, TRITON)
    assert (target / "README.md").is_file()
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_nothing_appears_where_an_export_is_refused(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, onnxruntime.NAME)
    rewritten(delivery.folder, "session.json", {"config_entries": {"session.x64quantprecision": "1"}})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadOption, match=r"answers may depend on session\.x64quantprecision, which it cannot set"):
        exported(delivery.folder, tmp_path / "deep" / "out", TRITON)
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_outside_the_folder_is_exported(delivery: Delivery) -> None:
    manifest = delivery.folder / "deploy.json"
    (delivery.folder.parent / "secret").write_text("secret")
    described = json.loads(manifest.read_text())
    described["sha256"]["../secret"] = weights.sha256(delivery.folder.parent / "secret")
    manifest.write_text(json.dumps(described))
    with pytest.raises(BadArtifact, match=r"file \.\./secret lies outside the directory"):
        read(delivery.folder)


def test_without_samples_only_the_folder_itself_is_exported(delivery: Delivery, tmp_path: Path) -> None:
    shutil.rmtree(delivery.folder / "samples")
    with pytest.raises(BadOption, match="holds no samples, which prove an export for Triton"):
        exported(delivery.folder, tmp_path / "out", TRITON)
    assert exported(delivery.folder, tmp_path / "out", PLAIN).models == ()


def test_answers_that_differ_as_the_server_opens_the_files_are_refused(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, onnxruntime.NAME)
    model = read(delivery.folder)
    wrong = [Answered(sample.inputs, {"y": 1.01 * sample.outputs["y"]}) for sample in read_answered(delivery.folder)]
    with pytest.raises(
        BadOption,
        match=r"cannot be exported for Triton: opened with the settings that it can express, run without taglio",
    ):
        export(model, tmp_path / "out", TRITON, "net", ALONE, wrong)


@pytest.mark.parametrize("layout", [TRITON, OVMS])
def test_each_device_gets_a_repository(layout: str, tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME, devices=2)
    result = exported(delivery.folder, tmp_path / "out", layout)
    parts = read(delivery.folder).components
    assert [model.name for model in result.models] == [f"net-{part.name}" for part in parts]
    for model, part in zip(result.models, parts, strict=True):
        folder = tmp_path / "out" / part.device / f"net-{part.name}"
        assert model.path == f"{part.device}/net-{part.name}"
        assert (folder / "1" / part.model).is_file()
    readme = (tmp_path / "out" / "README.md").read_text()
    crossing = read(delivery.folder).crossing()
    assert crossing
    for name, sender, reader in crossing:
        assert f"| {name} | net-{sender.name} | net-{reader.name} |" in readme
    if layout == OVMS:
        names = [
            entry["config"]["name"]
            for device in ("box0", "box1")
            for entry in json.loads((tmp_path / "out" / device / "config.json").read_text())["model_config_list"]
        ]
        assert sorted(names) == sorted(model.name for model in result.models)


def test_the_command_line_exports_and_refuses_in_one_line(tmp_path: Path) -> None:
    folder = rows_in(tmp_path)
    ran = taglio("export", folder, "--layout", "triton", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    line = " ".join(ran.out.split())
    assert "1 model for triton; opened as the server opens it, its answers to 1 input are identical to" in line
    refused(taglio("export", folder, tmp_path / "out"), "out exists and is not an empty directory: give a new one")
    ran = taglio("export", folder, tmp_path / "copy", "--json")
    assert ran.json()["layout"] == "plain"
