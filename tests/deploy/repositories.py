"""Delivered folders and workspaces to export, and the exported servers' configurations as those read them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from taglio import artifact, weights
from taglio.components.build import MANIFEST, Manifest
from taglio.deploy.export import Export, export
from taglio.deploy.folder import read
from taglio.deploy.served import Joining
from taglio.deploy.write import Answered, read_answered, write
from taglio.flow.workspace import COMPONENTS, DEPLOY, SETUP
from taglio.lab.setup import Setup
from taglio.run.in_process import Executor
from taglio.runtimes import onnxruntime
from taglio.runtimes.way import Way
from tests.built import product, workspace

ALONE = Joining("it keeps a state from step to step")


def exported(folder: Path, target: Path, layout: str, joining: Joining = ALONE) -> Export:
    model = read(folder)
    return export(model, target, layout, "net", joining, read_answered(folder))


def workspace_of(
    folder: Path,
    proto: onnx.ModelProto,
    feed: dict[str, np.ndarray],
    runtime: str = onnxruntime.NAME,
    way: Way = Way(1),  # noqa: B008 - a value
) -> Path:
    """A workspace with `proto` built and delivered in `way`, without a plan."""
    workspace(folder, proto, way=way, runtime=runtime)
    manifest = artifact.load(folder / COMPONENTS / MANIFEST, "manifest", Manifest)
    options = artifact.load(folder / f"{SETUP}.json", SETUP, Setup).options()
    values = Executor(folder / COMPONENTS, manifest, options).run(feed)
    answered = [Answered(feed, dict(zip(manifest.outputs, values, strict=True)))]
    write(folder / DEPLOY, folder / COMPONENTS, manifest, options, answered, way)
    return folder


def rows_in(folder: Path, runtime: str = onnxruntime.NAME, way: Way = Way(1)) -> Path:  # noqa: B008 - a value
    """The workspace of `product`, two rows of which were delivered."""
    return workspace_of(folder / "work", product(), {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}, runtime, way)


def rewritten(folder: Path, name: str, change: Mapping[str, Any]) -> None:
    """Change a settings file as if it had been delivered so."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    manifest = folder / "deploy.json"
    described = json.loads(manifest.read_text())
    described["sha256"][name] = weights.sha256(path)
    manifest.write_text(json.dumps(described))


def triton_configuration(folder: Path) -> Any:
    """config.pbtxt of a model's folder, read by the parser of Triton's published model_config.proto."""
    model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    from google.protobuf import text_format  # noqa: PLC0415 - a dependency of tritonclient

    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def ovms_entry(folder: Path) -> Any:
    """What config.json says of the only model."""
    (entry,) = json.loads((folder / "config.json").read_text())["model_config_list"]
    return entry["config"]
