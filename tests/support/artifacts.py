"""Artifacts whose content a test changes as a stage would write it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taglio import artifact


def rewritten(path: Path, change: Callable[[Any], object]) -> None:
    """Let `change` change the content of an artifact. A hard link elsewhere keeps its own."""
    whole = json.loads(path.read_text())
    change(whole["body"])
    artifact.save(path, whole["kind"], whole["model_sha256"], whole["body"])
