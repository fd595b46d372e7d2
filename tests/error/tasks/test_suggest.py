"""The task that suits a model, as its metadata names it."""

from pathlib import Path

import pytest

from taglio.error.tasks.suggest import Suggestion, suggest
from tests.models import loaded, parsed

DETECTION = Suggestion("detection", 'the metadata names the task "segment"')


@pytest.mark.parametrize(
    ("metadata", "shape", "suggestion"),
    [
        ({"character": "a\nb\nc"}, "1, 40, 5", Suggestion("ctc", "the metadata names 3 characters")),
        ({"character": "a\nb\nc"}, "batch, steps, 5", Suggestion("ctc", "the metadata names 3 characters")),
        ({"character": "text\ntable\nx"}, "1, 64, 20, 5", None),  # classes
        ({"task": "segment", "names": "{0: 'car'}"}, "1, 0, 9", DETECTION),
        ({"task": "segment"}, "1, 84, 8400", None),
        ({}, "1, 1000", None),
    ],
)
def test_the_metadata_name_the_task(
    metadata: dict[str, str], shape: str, suggestion: Suggestion | None, tmp_path: Path
) -> None:
    proto = parsed(f"(float[{shape}] x) => (float[{shape}] y) {{ y = Relu (x) }}")
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    assert suggest(loaded(proto, tmp_path)) == suggestion
