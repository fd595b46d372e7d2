"""Export a built model for a server. Decides which requests the server may join."""

from collections.abc import Sequence
from pathlib import Path

from taglio import artifact
from taglio.components.build import Manifest
from taglio.components.build import read as read_components
from taglio.data.dataset import Sample
from taglio.deploy import export as layouts
from taglio.deploy.export import PLAIN, TRITON, Export, check_layout
from taglio.deploy.folder import read
from taglio.deploy.served import Joining
from taglio.deploy.write import read_answered
from taglio.flow.joining import interface, most_rows, why_alone
from taglio.flow.workspace import COMPONENTS, DEPLOY, SETUP
from taglio.lab.setup import Setup
from taglio.run.in_process import Executor
from taglio.transaction import held


def export(folder: Path, target: Path, layout: str = PLAIN) -> Export:
    """Export what is delivered in the workspace `folder` to the new folder `target`.

    Raises BadOption if the target is not empty or the server cannot give the same answers, BadArtifact if nothing was
    delivered or a file was changed, Busy if another command is using the workspace.
    """
    check_layout(layout)
    with held(folder):
        model = read(folder / DEPLOY)
        setup = artifact.load(folder / f"{SETUP}.json", SETUP, Setup)
        manifest = read_components(folder / COMPONENTS)
        joining, answered = Joining(""), read_answered(model.folder)
        if layout == TRITON:
            samples = [sample.inputs for sample in answered]
            joining = _joining(folder / COMPONENTS, manifest, setup, most_rows(model.way), samples)
        name = Path(setup.model).stem or folder.resolve().name
        return layouts.export(model, target, layout, name, joining, answered)


def _joining(components: Path, manifest: Manifest, setup: Setup, rows: int, samples: Sequence[Sample]) -> Joining:
    """Whether requests may be joined, to so many `rows`, as serving decides; of several components, tensors that cross
    must hold the rows as outputs do."""
    alone = "one item in a run was the fastest way"
    if rows > 1:
        run = Executor(components, manifest, setup.options()).tensors
        alone = why_alone(components, manifest, interface(components, manifest)[0], run, samples)
    return Joining(alone, rows)
