"""Several requests in the simulator at once, which plays one: all wait from the beginning, and older ones go first."""

from collections.abc import Sequence
from dataclasses import replace

from taglio.cluster.planning.simulate import ComponentTask, Pipeline, Transfer, simulate


def together(pipelines: Sequence[Pipeline]) -> Pipeline:
    """Several requests as one, the oldest first."""
    tasks, transfers = list[ComponentTask](), list[Transfer]()
    for each in pipelines:
        first = len(tasks)
        tasks += each.tasks
        transfers += [
            replace(
                sent,
                source=None if sent.source is None else first + sent.source,
                targets=tuple(first + target for target in sent.targets),
            )
            for sent in each.transfers
        ]
    return Pipeline(tuple(tasks), tuple(transfers))


def stream(pipelines: Sequence[Pipeline]) -> list[float]:
    """When each of several requests ends, if all wait from the beginning and older ones go first."""
    ends_s = iter(simulate(together(pipelines)).ends_s)
    ran = [[next(ends_s) for _ in each.tasks] for each in pipelines]
    return [max([*ended, *(next(ends_s) for _ in each.transfers)]) for each, ended in zip(pipelines, ran, strict=True)]
