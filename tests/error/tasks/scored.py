"""A task's value for outputs of all samples, as a tally takes it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taglio.error.judge import TaskJudge
from taglio.error.tasks.outputs import Outputs
from taglio.error.tasks.task import parse_task


def scored(
    task: str,
    changed: Sequence[Outputs],
    reference: Sequence[Outputs],
    labels: Any = None,
    *,
    image: tuple[int, int] | None = None,
    batches: Sequence[int] = (),
    metadata: Mapping[str, str] | None = None,
) -> float:
    """What `task` says of `changed`; images have the size `image` and, by sample, a batch of `batches` (default 1)."""
    counts = batches or [1] * len(changed)
    samples = [{"image": np.zeros((count, 3, *image), np.float32)} for count in counts] if image else []
    judge = TaskJudge(parse_task(task), list(reference[0]), samples, labels, metadata)
    evidence = [
        judge.evidence(index, list(y.values()), list(z.values()))
        for index, (y, z) in enumerate(zip(reference, changed, strict=True))
    ]
    return judge.value(evidence)
