"""Export a delivered folder as a server's model repository, or as it is. All or nothing, and proven before it appears.

A repository holds a model for each component; a plan for several devices becomes a repository for each device, in a
folder of its name, and README.md says which tensors cross. What a server would answer is proven as the delivered folder
is (prove.py): in a process of its own, with the settings that the server can express and no others.
"""

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from taglio import artifact, weights
from taglio.deploy import ovms, triton, verify
from taglio.deploy.folder import DeliveredModel, DeliveredPart
from taglio.deploy.prove import prove
from taglio.deploy.served import Joining, ServedComponent
from taglio.deploy.write import README, VERIFY, Answered, template, write_manifest
from taglio.errors import BadOption, MeasurementFailed
from taglio.runtimes.way import Way
from taglio.scratch import scratch

PLAIN, TRITON, OVMS = "plain", "triton", "ovms"
_SERVERS: Mapping[str, Callable[[DeliveredModel, DeliveredPart, str, Joining, Path], ServedComponent]] = {
    TRITON: triton.served,
    OVMS: ovms.served,
}
LAYOUTS = (PLAIN, *_SERVERS)
_TITLES = {TRITON: triton.SERVER, OVMS: ovms.SERVER}


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A model of a repository: its device, name and folder, the most rows that the server joins, and what differs from
    the delivered settings."""

    device: str
    name: str
    path: str
    rows: int
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """What was exported: the layout, the folder, the models (none if plain), and the largest distance of an answer from
    the delivered one over `samples` inputs."""

    layout: str
    folder: str
    models: tuple[ExportedModel, ...]
    samples: int
    distance: float

    @property
    def agreement(self) -> str:
        """How near the answers are to the delivered ones, as words before them."""
        return f"within {self.distance:.0e} (relative L2) of" if self.distance else "identical to"


def check_layout(layout: str) -> None:
    """Raise BadOption for an unknown layout."""
    if layout not in LAYOUTS:
        raise BadOption(f"`layout` {layout}: use {', '.join(LAYOUTS[:-1])} or {LAYOUTS[-1]}")


def export(
    model: DeliveredModel,
    target: Path,
    layout: str,
    name: str,
    joining: Joining,
    answered: Sequence[Answered],
) -> Export:
    """Write `model` to the new folder `target` under `name`. `joining` says whether requests may be joined. `answered`
    are inputs with the delivered answers, by which a repository is proven.

    Raises BadOption if `target` is not empty, or a server cannot give the delivered answers.
    """
    check_layout(layout)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise BadOption(f"{target} exists and is not an empty directory: give a new one, or remove it")
    if layout == PLAIN:
        with _appearing(target) as draft:
            for path in sorted(model.folder.rglob("*")):  # shutil.copytree lists every file that a full disk refuses
                copied = draft / path.relative_to(model.folder)
                if path.is_dir():
                    copied.mkdir()
                else:
                    shutil.copy2(path, copied)
        return Export(layout, str(target), (), 0, 0.0)
    with scratch() as folder:
        served = _served(model, layout, name, joining, folder)
        distance = _proven(model, layout, served, answered)
        several = len(model.devices) > 1
        models = tuple(
            ExportedModel(
                component.part.device,
                component.model_name,
                f"{_file_name(component.part.device)}/{component.model_name}" if several else component.model_name,
                component.rows,
                component.remarks,
            )
            for component in served
        )
        exported = Export(layout, str(target), models, len(answered), distance)
        with _appearing(target) as draft:
            for device in model.devices:
                of_device = [component for component in served if component.part.device == device]
                _write_repository(draft / _file_name(device) if several else draft, layout, of_device)
            artifact.write_bytes(draft / README, _readme(model, served, exported).encode())
    return exported


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `target` at the end, or vanishes if an error ends the export."""
    draft = target.with_name(f".{target.name}.taglio-{secrets.token_hex(4)}")
    try:
        draft.mkdir(parents=True)
        yield draft
        draft.replace(target)  # also over an empty folder
    except OSError as error:
        raise artifact.refusal(target, error) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _served(model: DeliveredModel, layout: str, name: str, joining: Joining, folder: Path) -> list[ServedComponent]:
    """The components as the server opens them."""
    served = []
    for part in model.components:
        converted = folder / _file_name(part.name)
        converted.mkdir()
        of_part = name if len(model.components) == 1 else f"{name}-{part.name}"
        served.append(_SERVERS[layout](model, part, _file_name(of_part), joining, converted))
    return served


def _proven(
    model: DeliveredModel, layout: str, served: Sequence[ServedComponent], answered: Sequence[Answered]
) -> float:
    """The largest distance of the server's answers from the delivered ones. Raises BadOption if they differ."""
    if not answered:
        raise BadOption(
            f"{model.folder}: holds no samples, which prove an export for {_TITLES[layout]}: build it again with "
            "samples, or use `layout` plain"
        )
    with scratch() as folder:
        parts = []
        for component in served:
            for file in component.files:
                weights.link(file, folder / file.name)
            settings = f"{_file_name(component.part.name)}.json"
            (folder / settings).write_text(json.dumps(component.settings))
            parts.append(replace(component.part, model=component.files[0].name, settings=settings))
        hashes = {file.name: weights.sha256(file) for file in sorted(folder.iterdir())}
        # Answers do not depend on the way.
        write_manifest(folder, replace(model, components=tuple(parts), sha256=hashes, way=Way(1)))
        shutil.copyfile(verify.__file__, folder / VERIFY)
        try:
            return prove(folder, answered).distance
        except MeasurementFailed as error:
            reason = str(error).replace(f"{folder}: ", "")
            raise BadOption(
                f"{model.folder} cannot be exported for {_TITLES[layout]}: opened with the settings that it can "
                f"express, {reason}: use `layout` plain"
            ) from None


def _write_repository(folder: Path, layout: str, served: Sequence[ServedComponent]) -> None:
    """Write the repository of one device: NAME/1/ with the files of each model, and the server's configuration."""
    for component in served:
        version = folder / component.model_name / "1"
        version.mkdir(parents=True)
        for file in component.files:
            shutil.copy2(file, version / file.name)
        if layout == TRITON:
            (folder / component.model_name / "config.pbtxt").write_text(component.configuration)
    if layout == OVMS:
        entries = [{"config": component.configuration} for component in served]
        (folder / "config.json").write_text(json.dumps({"model_config_list": entries}, indent=2) + "\n")


def _readme(model: DeliveredModel, served: Sequence[ServedComponent], exported: Export) -> str:
    names = {component.part.name: component.model_name for component in served}
    return template("export.md.j2").render(
        server=_TITLES[exported.layout],
        layout=exported.layout,
        exported=exported,
        served=served,
        several=len(model.devices) > 1,
        folders={device: _file_name(device) for device in model.devices},
        crossing=[(name, names[sender.name], names[reader.name]) for name, sender, reader in model.crossing()],
        inputs=model.inputs,
        outputs=model.outputs,
        way=model.way,
    )


def _file_name(text: str) -> str:
    """`text` with characters that file names and servers take."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).lstrip(".") or "model"
