"""Networks for the benchmarks of the error model, and their measured evaluations kept on disk. Judges nothing.

Photographs are few, and the outputs of a detector are nearly zero but for a handful of cells: measured on five
pictures, the error of one output jumps by 20 % when any early block is rounded differently. So the held-out photographs
(never the calibration ones) are also shown in parts, each enlarged to the input's size: VIEWS inputs a photograph.
"""

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from cases import CACHE, open_case
from taglio.data.dataset import Dataset, Split
from taglio.error.loss import Metric
from taglio.error.measure import ErrorMeter, Reading
from taglio.error.switchable import Switchable
from taglio.error.tally import Measure
from taglio.flow.work import Work
from taglio.model.graph import Graph
from taglio.profile.measure import pure_assignments
from taglio.quantize.precision import Assignment, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme

NETWORKS = ("ultraface-rfb-320", "yunet-n-640", "digits")
# Where a part begins, as a share of height and width; each is 0.6 of both.
PARTS = ((0.0, 0.0), (0.4, 0.4), (0.0, 0.4), (0.4, 0.0))
PART_SIZE = 0.6
VIEWS = 3
DIGITS = 64
# Readings in one file: what an interrupted run loses at most.
TOGETHER = 100


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A network ready to be measured."""

    work: Work
    builder: QdqBuilder
    switchable: Switchable
    meter: ErrorMeter


def open_network(
    name: str, views: int = VIEWS, metric: Metric | None = None, scheme: Scheme = DEFAULT_SCHEME
) -> Network:
    """The network `name`, its switchable graph and a meter on its held-out inputs."""
    work = open_case(name)
    builder = work.builder(scheme)
    if name == "digits":
        samples = work.data.held_out.samples[:DIGITS]
    else:
        samples = tuple(seen for sample in work.data.held_out.samples for seen in views_of(sample, views))
    held_out = replace(work.data.held_out, samples=samples)
    work = work.but(data=Split(work.data.calibration, held_out, work.data.seed))
    switchable = work.switchable(scheme)
    measure = None if metric is None else Measure(metric)
    return Network(work, builder, switchable, ErrorMeter(switchable, samples, work.model.outputs, measure))


def views_of(sample: Mapping[str, np.ndarray], count: int) -> list[Mapping[str, np.ndarray]]:
    """A picture whole and in parts, `count` in all."""
    ((name, picture),) = sample.items()
    height, width = picture.shape[2:]
    result: list[Mapping[str, np.ndarray]] = [sample]
    for top, left in PARTS[: count - 1]:
        rows = slice(int(top * height), int((top + PART_SIZE) * height))
        columns = slice(int(left * width), int((left + PART_SIZE) * width))
        channels = [
            np.asarray(Image.fromarray(channel[rows, columns]).resize((width, height), Image.Resampling.BILINEAR))
            for channel in picture[0]
        ]
        result.append({name: np.stack(channels)[None].astype(picture.dtype)})
    return result


def readings(
    network: Network, kind: str, assignments: Sequence[Assignment], wires: Sequence[str | None], *, sketch: bool
) -> list[Reading]:
    """A reading of each assignment, with the tensor of `wires` travelling as int8 besides; from disk where it is known.

    What decides a reading is in the file's name: the data, the assignments, and the network in int8 as it is built.
    """
    result: list[Reading] = []
    for first in range(0, len(assignments), TOGETHER):
        part = slice(first, first + TOGETHER)
        result += _part(network, kind, assignments[part], wires[part], sketch)
        if len(result) % TOGETHER == 0:
            print(f"  {kind}: {len(result)} of {len(assignments)}", flush=True)
    return result


def _part(
    network: Network, kind: str, assignments: Sequence[Assignment], wires: Sequence[str | None], sketch: bool
) -> list[Reading]:
    path = _path(network, kind, assignments, wires)
    if path.exists():
        with path.open("rb") as file:
            known: list[Reading] = pickle.load(file)
        return known
    read = network.meter.read
    pairs = zip(assignments, wires, strict=True)
    result = [read(assignment, [wire] if wire else (), sketch=sketch) for assignment, wire in pairs]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        pickle.dump(result, file)
    temporary.rename(path)
    return result


def _path(network: Network, kind: str, assignments: Sequence[Assignment], wires: Sequence[str | None]) -> Path:
    work, digest = network.work, hashlib.sha256()
    everything = pure_assignments(work.graph, precisions(DEFAULT_SCHEME))["int8"]
    digest.update(work.model.sha256.encode() + network.builder.build(everything).SerializeToString(deterministic=True))
    for sample in work.data.held_out.samples:
        for name, values in sample.items():
            digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
    for assignment, wire in zip(assignments, wires, strict=True):
        digest.update(repr([(b, p.name, str(p.scheme)) for b, p in assignment.items()] + [wire]).encode())
    return CACHE / work.model.name.removesuffix(".onnx") / "evaluations" / f"{kind}-{digest.hexdigest()[:16]}.pickle"


def top_flops(graph: Graph, count: int) -> list[str]:
    """The `count` blocks with most FLOPs, as the notes choose them."""
    able = [block for block in graph.candidates() if not block.movement]
    return [block.name for block in sorted(able, key=lambda block: -block.flops)[:count]]


def inputs_of(dataset: Dataset) -> int:
    """How many inputs an error is measured on."""
    return len(dataset.samples)
