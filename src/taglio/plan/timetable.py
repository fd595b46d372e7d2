"""What one model's blocks, and the tensors between them, take in time, by label: arrays for many placements at once.

A tensor's way from who writes it to who reads it has four parts, in seconds: `before` it leaves (quantising it for the
way), `busy` on the link, `delay`, and `after` it has arrived (quantising or dequantising it there; on one device that
is all there is). A fifth number is its bytes. It goes as float or as int8; what may not be takes `NEVER`. See
schedule.py, which this agrees with.
"""

from dataclasses import dataclass

import numpy as np

from taglio.plan.assemble import Assembled
from taglio.plan.problem import CALLER, SOURCE, Kind

NEVER = 1e9
PARTS = BEFORE, BUSY, DELAY, AFTER, BYTES = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """An edge: `producer` among the model's nodes, None for an input. Arrays over (label of who writes, label of who
    reads), with one row for an input and one column for the caller: `floats` and `ints` have the five numbers as a
    last axis, `far` says whether it leaves the device, `noise` what reading in int8 what is written in float adds to
    each bound; where it `restores`, a float reader of what is written in float may get an int8 copy, which adds `wire`
    (bounds). `shared` is where a float value is quantised on its device for all who read it there in int8, `share` the
    edge's part of its value."""

    value: int
    producer: int | None
    far: np.ndarray
    floats: np.ndarray
    ints: np.ndarray
    noise: np.ndarray
    restores: np.ndarray
    wire: np.ndarray
    shared: np.ndarray
    share: float


class Timetable:
    """One model of a problem."""

    def __init__(self, assembled: Assembled, model: int) -> None:
        problem, values = assembled.problem, assembled.problem.values
        self.problem, self.nodes = problem, assembled.nodes(model)
        first, count = self.nodes.start, len(self.nodes)
        self.devices, forms, self.labels = len(problem.devices), len(problem.forms), problem.labels
        self.device = np.arange(self.labels) // forms
        self.form = np.arange(self.labels) % forms
        self.overhead_s = assembled.overhead_s[model]
        self.send_s = np.array([device.send_s for device in assembled.cluster.devices])
        self.send_byte_s = np.array([device.send_byte_s for device in assembled.cluster.devices])
        self.home = problem.devices.index(assembled.cluster.start)
        # By device: the one whose processor it uses.
        self.processor = np.array([problem.devices.index(assembled.cluster.processor(d)) for d in problem.devices])
        mine = slice(first, first + count)
        self.seconds = problem.seconds.reshape(len(problem.nodes), -1)[mine]
        self.allowed = problem.allowed.reshape(len(problem.nodes), -1)[mine]
        own = [bound.own[mine][:, self.form] for bound in problem.noises]
        self.own = np.stack(own, axis=2) if own else np.zeros((count, self.labels, 0))
        self._reads = np.array([int(form.reads) for form in problem.forms])[self.form]
        self._writes = np.array([int(form.writes) for form in problem.forms])[self.form]
        links = [[assembled.cluster.link(a, b) for b in problem.devices] for a in problem.devices]
        self._gap = np.array([[each.gap_s if each else 0.0 for each in row] for row in links])
        self.delay_s = np.array([[each.latency_s - each.gap_s if each else NEVER for each in row] for row in links])
        self.links = [(a, b) for a, b in np.argwhere(self.delay_s < NEVER).tolist() if a != b]
        self._byte = np.array([[1.0 / each.bandwidth_bytes_per_s if each else 0.0 for each in row] for row in links])
        self.reads: list[list[Way]] = [[] for _ in self.nodes]
        self.answers: list[list[Way]] = [[] for _ in self.nodes]
        for value in np.flatnonzero(values.model == model).tolist():
            producer = None if values.producer[value] == SOURCE else int(values.producer[value]) - first
            for edge in range(int(values.start[value]), int(values.start[value + 1])):
                way = self._way(value, edge, producer)
                if values.readers[edge] != CALLER:
                    self.reads[int(values.readers[edge]) - first].append(way)
                elif producer is not None:
                    self.answers[producer].append(way)

    def _way(self, value: int, edge: int, producer: int | None) -> Way:
        values, problem, home = self.problem.values, self.problem, self.home
        answer = values.readers[edge] == CALLER
        here = np.full((1, 1), home) if producer is None else self.device[:, None]
        kind = np.full((1, 1), int(Kind.FLOAT)) if producer is None else self._writes[:, None]
        there = np.full((1, 1), home) if answer else self.device[None]
        wanted = np.full((1, 1), int(Kind.FLOAT)) if answer else self._reads[None]
        here, kind, there, wanted = np.broadcast_arrays(here, kind, there, wanted)
        far, written8, read8 = here != there, kind == Kind.INT8, wanted == Kind.INT8
        quantize = values.quantize_s[value][np.minimum(kind, 1), here]
        dequantize = values.dequantize_s[value][there]
        wire = np.array([bound.wire[edge] for bound in problem.noises])
        forbidden = values.strict[edge] & (kind != wanted)
        delay = np.where(forbidden, NEVER, np.where(far, self.delay_s[here, there], 0.0))
        byte, gap = np.where(far, self._byte[here, there], 0.0), np.where(far, self._gap[here, there], 0.0)
        floats, ints = np.zeros((*far.shape, len(PARTS))), np.zeros((*far.shape, len(PARTS)))
        # In a component quantised as it is written, between two of one device from float.
        nearer = np.minimum(quantize, values.quantize_s[value][0][here])
        stays = np.where(written8, np.where(read8, 0.0, dequantize), np.where(read8, nearer, 0.0))
        floats[..., BUSY] = gap + byte * values.float_bytes[value]
        floats[..., BYTES] = np.where(far, values.float_bytes[value], 0.0)
        floats[..., DELAY] = np.where(far & written8, NEVER, delay)
        floats[..., AFTER] = np.where(far, np.where(read8, values.quantize_s[value][0][there], 0.0), stays)
        first = self.overhead_s[home] if producer is None else 0.0  # an input is quantised by a component of its own
        last = self.overhead_s[home] if answer else 0.0
        ints[..., BEFORE] = np.where(far & ~written8, quantize + first, 0.0)
        ints[..., BUSY] = gap + byte * values.int8_bytes[value]
        ints[..., BYTES] = np.where(far, values.int8_bytes[value], 0.0)
        shared = ~far & ~written8 & read8
        restores = far & ~written8 & ~read8
        unwanted = restores & (not problem.wire_only or bool((wire > 1.0).any()))
        ints[..., DELAY] = np.where(unwanted, NEVER, delay)
        ints[..., AFTER] = np.where(far, np.where(read8, 0.0, dequantize + last), stays)
        change = np.array([bound.edge[edge] for bound in problem.noises])
        noise = np.where((read8 & ~written8)[..., None], change, 0.0)
        share = 1.0 / float(values.start[value + 1] - values.start[value])
        return Way(value, producer, far, floats, ints, noise, restores, wire, shared, share)
