"""Suggest the task that a model's metadata names. Runs no model."""

from dataclasses import dataclass

from taglio.error.tasks.detection import CLASS_NAMES
from taglio.error.tasks.text import CHARACTERS
from taglio.model.load import Model
from taglio.model.observe import tensor_shapes

# Ultralytics' metadata, which names classes too.
_ULTRALYTICS = dict.fromkeys(("detect", "segment", "pose", "obb"), "detection") | {"classify": "top1"}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A metric that suits the model, and the reason."""

    metric: str
    why: str


def suggest(model: Model) -> Suggestion | None:
    """The metric of the task that the metadata of `model` names; None if they name none.

    A recogniser of text has classes for each of several steps: characters, a blank, and perhaps a space. Classifiers
    name their classes under the same key.
    """
    metadata = {entry.key: entry.value for entry in model.proto.metadata_props}
    if metric := _ULTRALYTICS.get(metadata.get("task", "") if CLASS_NAMES in metadata else ""):
        return Suggestion(metric, f'the metadata names the task "{metadata["task"]}"')
    characters = metadata.get(CHARACTERS, "").split("\n")
    shapes = tensor_shapes(model.proto, dynamic=0)
    steps = [shapes[name] for name in model.outputs if len(shapes.get(name, ())) == 3]
    if CHARACTERS in metadata and any(shape[2] == 0 or shape[2] - len(characters) in (0, 1, 2) for shape in steps):
        return Suggestion("ctc", f"the metadata names {len(characters)} characters")
    return None
