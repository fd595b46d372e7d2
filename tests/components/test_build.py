"""What is written is what is read back; a file that changed, is missing or lies elsewhere is refused."""

import hashlib
from pathlib import Path
from typing import Any

import onnx
import pytest

from taglio.components.build import MANIFEST, read
from taglio.components.cut import Component, cut
from taglio.errors import BadArtifact
from tests.components.cases import Case, tiny
from tests.models import residual
from tests.support.artifacts import rewritten


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return tiny(residual(), tmp_path_factory.mktemp("model"))


def parts_of(case: Case, first: str = "box", second: str = "server") -> list[Component]:
    names = [block.name for block in case.graph.blocks]
    devices = {name: first if i < 3 else second for i, name in enumerate(names)}
    chosen = case.all_int8()
    return cut(case.model, case.graph, case.builder.build(chosen), devices, case.wires(chosen, devices))


@pytest.fixture
def folder(case: Case, tmp_path: Path) -> Path:
    case.written(parts_of(case), tmp_path / "components")
    return tmp_path / "components"


def edited(folder: Path, **changes: Any) -> None:
    """Change the first component's entry in the manifest."""
    rewritten(folder / MANIFEST, lambda body: body["pieces"][0].update(changes))


def test_what_is_written_is_read_back(case: Case, folder: Path) -> None:
    parts = parts_of(case)
    manifest = read(folder)
    assert manifest == case.written(parts, folder)
    assert manifest.model_sha256 == case.model.sha256
    assert (manifest.inputs, manifest.outputs) == (("x",), case.model.outputs)
    assert [piece.device for piece in manifest.pieces] == ["box", "server"]
    for piece, part in zip(manifest.pieces, parts, strict=True):
        data = (folder / piece.file).read_bytes()
        assert (piece.name, piece.blocks) == (part.name, part.blocks)
        assert (piece.size_bytes, piece.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert onnx.load_from_string(data) == part.proto
        assert tuple(port.name for port in piece.inputs) == part.inputs
        assert tuple(port.name for port in piece.outputs) == part.outputs
    assert {path.name for path in folder.iterdir()} == {MANIFEST, *(piece.file for piece in manifest.pieces)}


@pytest.mark.parametrize("device", ["gateway 2", "Büro", "rack/1"])
def test_a_device_may_have_any_name(case: Case, tmp_path: Path, device: str) -> None:
    """A device's name makes its component's file name, which must not leave the folder."""
    written = case.written(parts_of(case, device), tmp_path)
    assert read(tmp_path) == written
    assert written.pieces[0].device == device
    assert all((tmp_path / piece.file).parent == tmp_path for piece in written.pieces)


@pytest.mark.parametrize("form", ["../{}", "{}/../../secret", "sub/{}", "/absolute/{}", "", ".", ".."])
def test_a_manifest_that_points_outside_the_folder_or_at_one_is_refused(folder: Path, form: str) -> None:
    """Even where the file is there and its hash is right: the manifest may have come from anywhere."""
    piece = read(folder).pieces[0]
    secret = folder.parent / piece.file
    secret.write_bytes((folder / piece.file).read_bytes())
    edited(folder, file=form.format(piece.file))
    with pytest.raises(BadArtifact, match="lies outside the directory" if "{}" in form else None):
        read(folder)


def test_the_manifest_comes_last(case: Case, tmp_path: Path) -> None:
    """Whoever finds a manifest finds complete components: one that cannot be written leaves none behind."""
    parts = parts_of(case)
    (tmp_path / f"{parts[1].name}.onnx").mkdir(parents=True)
    (tmp_path / f"{parts[1].name}.onnx" / "in the way").touch()
    with pytest.raises(BadArtifact, match="cannot be written"):
        case.written(parts, tmp_path)
    assert not (tmp_path / MANIFEST).exists()
