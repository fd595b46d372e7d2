"""From labels and copies to the components, transfers and times of one request. Chooses nothing; see simulate.py.

What a change of type costs is paid where it happens: a float value is quantised once by the component that writes it if
anybody takes its int8 copy, and by each component that takes the float copy and reads int8; each float reader of an
int8 copy dequantises for itself. An input that travels as int8 is quantised by a component of its own on the start
device, an output that arrives as int8 dequantised by another. On one device a value passes as int8 between components
where it is written so, or where all its readers there read int8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.plan.assemble import Assembled
from taglio.plan.partition import levels
from taglio.plan.problem import CALLER, SOURCE, Copies, Kind, Wires
from taglio.plan.simulate import Pipeline, Task, Transfer

INPUT, OUTPUT = "input", "output"


@dataclass(frozen=True, slots=True)
class Piece:
    """One component of a request: its device, its node numbers (none for a pair at an input or output), its seconds,
    and those that its messages then take of the device."""

    name: str
    device: int
    nodes: tuple[int, ...]
    seconds: float
    sending_s: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A copy of a value on its way: from one piece (None: the caller) to those on one device that read it."""

    value: int
    source: int | None
    targets: tuple[int, ...]
    ends: tuple[int, int]
    int8: bool
    bytes: float
    busy_s: float
    delay_s: float
    answers: bool
    receiving_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """The pieces of one model in running order, and what is sent between them."""

    pieces: tuple[Piece, ...]
    sent: tuple[Sent, ...]
    devices: tuple[str, ...]
    names: tuple[str, ...]
    processors: tuple[tuple[str, str], ...] = ()

    def pipeline(self) -> Pipeline:
        """What the simulator plays."""
        names = self.devices
        return Pipeline(
            tuple(Task(piece.name, names[piece.device], piece.seconds, piece.sending_s) for piece in self.pieces),
            tuple(
                Transfer(
                    f"{self.names[each.value]} ({'int8' if each.int8 else 'float32'})",
                    each.source,
                    each.targets,
                    (names[each.ends[0]], names[each.ends[1]]),
                    each.busy_s,
                    each.delay_s,
                    each.bytes,
                    each.answers,
                    each.receiving_s,
                )
                for each in self.sent
            ),
            self.processors,
        )


# Stand for the two pieces that hold no block, until all pieces are counted.
_AT_INPUT, _AT_OUTPUT = -1, -2


class Scheduler:
    """Makes schedules of one model of a problem, many times."""

    def __init__(self, assembled: Assembled, model: int) -> None:
        problem, cluster = assembled.problem, assembled.cluster
        values = problem.values
        self.problem, self.nodes = problem, assembled.nodes(model)
        self.edges: dict[int, list[int]] = {}
        self.sources: list[list[int]] = [[] for _ in self.nodes]
        for value in np.flatnonzero(values.model == model).tolist():
            self.edges[value] = list(range(int(values.start[value]), int(values.start[value + 1])))
            for edge in self.edges[value]:
                if values.readers[edge] != CALLER and values.producer[value] != SOURCE:
                    reader = int(values.readers[edge]) - self.nodes.start
                    self.sources[reader].append(int(values.producer[value]) - self.nodes.start)
        self.names = tuple(device.name for device in cluster.devices)
        self.processors = tuple((each.name, each.processor) for each in cluster.devices if each.processor)
        self.home = self.names.index(cluster.start)
        links = [[cluster.link(a, b) for b in self.names] for a in self.names]
        self.gap_s = [[each.gap_s if each else 0.0 for each in row] for row in links]
        self.delay_s = [[each.latency_s - each.gap_s if each else inf for each in row] for row in links]
        self.byte_s = [[1.0 / each.bandwidth_bytes_per_s if each else inf for each in row] for row in links]
        self.overhead_s = [float(each) for each in assembled.overhead_s[model]]
        self.devices = cluster.devices
        self.readers = [int(each) for each in values.readers]
        self.producer = [int(each) for each in values.producer]
        self.seconds = problem.seconds.reshape(len(problem.nodes), -1)

    def schedule(self, labels: Sequence[int], wires: Wires, stages: Sequence[int] = ()) -> Schedule:
        """The schedule of `labels` (of all nodes) with the copies `wires`; `stages` are all nodes', or none."""
        draft = _Draft(self, labels, stages)
        for value in self.edges:
            draft.pass_on(value, wires[value])
        return draft.finish()


class _Draft:
    """One schedule in the making."""

    def __init__(self, scheduler: Scheduler, labels: Sequence[int], stages: Sequence[int]) -> None:
        self._s, nodes = scheduler, scheduler.nodes
        split = {node: scheduler.problem.split(int(labels[node])) for node in nodes}
        self._form = {node: scheduler.problem.forms[form] for node, (_, form) in split.items()}
        places = [(scheduler.names[split[node][0]], stages[node] if stages else 0, split[node][0]) for node in nodes]
        key = dict(zip(nodes, zip(levels(scheduler.sources, places), places, strict=True), strict=True))
        order = {each: index for index, each in enumerate(sorted(set(key.values())))}
        self._piece = {node: order[key[node]] for node in nodes}
        self._device = {index: device for (_, (_, _, device)), index in order.items()}
        self._device |= {_AT_INPUT: scheduler.home, _AT_OUTPUT: scheduler.home}
        self._time = {index: scheduler.overhead_s[device] for index, device in self._device.items()}
        self._members: dict[int, list[int]] = {index: [] for index in self._device}
        for node in nodes:
            self._members[self._piece[node]].append(node)
            self._time[self._piece[node]] += float(scheduler.seconds[node, labels[node]])
        self._sent: list[Sent] = []
        self._used: set[int] = set()

    def pass_on(self, value: int, copies: Mapping[int, Copies]) -> None:
        """Send a value to its readers, and charge what changing its type costs."""
        s, values = self._s, self._s.problem.values
        made = s.producer[value]
        kind = Kind.FLOAT if made == SOURCE else self._form[made].writes
        source = None if made == SOURCE else self._piece[made]
        home = s.home if source is None else self._device[source]
        quantizes = False  # where it is written
        sends: dict[tuple[int, bool], list[int | None]] = {}
        for piece, (ints, floats) in self._wanted(value).items():
            device = s.home if piece is None else self._device[piece]
            if device == home and (piece is None or piece == source):
                if source is not None and kind == Kind.INT8:
                    self._time[source] += floats * float(values.dequantize_s[value, device])
                quantizes |= kind != Kind.INT8 and ints > 0
                continue
            if device == home and source is None:  # an input that is there already
                arrives = Copies.FLOAT
            elif device == home:
                arrives = Copies.INT8 if kind == Kind.INT8 or not floats else Copies.FLOAT
            else:
                arrives = copies[device]
            at = _AT_OUTPUT if piece is None else piece
            restored = floats if not arrives & Copies.FLOAT else 0
            made_int8 = ints > 0 and not arrives & Copies.INT8
            self._time[at] += restored * float(values.dequantize_s[value, device])
            self._time[at] += made_int8 * float(values.quantize_s[value, 0, device])
            if arrives & Copies.INT8 and (ints or restored):
                quantizes |= kind != Kind.INT8
                sends.setdefault((device, True), []).append(piece)
            if arrives & Copies.FLOAT and (floats or made_int8) and not (source is None and device == home):
                sends.setdefault((device, False), []).append(piece)
        if quantizes:
            at = _AT_INPUT if source is None else source
            self._time[at] += float(values.quantize_s[value, min(int(kind), 1), home])
            self._used |= {at}
        for (device, int8), pieces in sends.items():
            leaves = _AT_INPUT if source is None and int8 else source
            self._send(value, leaves, (home, device), int8=int8, pieces=pieces)

    def _wanted(self, value: int) -> dict[int | None, tuple[int, int]]:
        """Readers in int8 and in float by piece; None is the caller."""
        found: dict[int | None, tuple[int, int]] = {}
        for edge in self._s.edges[value]:
            reader = self._s.readers[edge]
            piece = None if reader == CALLER else self._piece[reader]
            int8 = reader != CALLER and self._form[reader].reads == Kind.INT8
            ints, floats = found.get(piece, (0, 0))
            found[piece] = (ints + int8, floats + (not int8))
        return found

    def _send(
        self, value: int, source: int | None, ends: tuple[int, int], *, int8: bool, pieces: Sequence[int | None]
    ) -> None:
        values = self._s.problem.values
        size = float((values.int8_bytes if int8 else values.float_bytes)[value])
        answers = None in pieces and not int8
        targets = [piece for piece in pieces if piece is not None]
        if None in pieces and int8:
            targets.append(_AT_OUTPUT)
            self._used |= {_AT_OUTPUT}
        busy_s = self._s.gap_s[ends[0]][ends[1]] + size * self._s.byte_s[ends[0]][ends[1]]
        delay_s = self._s.delay_s[ends[0]][ends[1]]
        receiving_s = self._s.devices[ends[1]].receiving_s(size) if ends[0] != ends[1] else 0.0
        self._sent.append(Sent(value, source, tuple(targets), ends, int8, size, busy_s, delay_s, answers, receiving_s))

    def finish(self) -> Schedule:
        """The pieces in running order: an input's own first, an output's last."""
        order = sorted(index for index in self._device if index >= 0)
        order = [_AT_INPUT] * (_AT_INPUT in self._used) + order + [_AT_OUTPUT] * (_AT_OUTPUT in self._used)
        place = {index: position for position, index in enumerate(order)}
        sending_s = dict.fromkeys(order, 0.0)
        for each in self._sent:
            if each.source is not None and each.ends[0] != each.ends[1]:
                sending_s[each.source] += self._s.devices[each.ends[0]].sending_s(each.bytes)
        pieces = []
        for index in order:
            device, nodes = self._device[index], tuple(self._members[index])
            name = self._s.names[device]
            label = {_AT_INPUT: f"{INPUT}-{name}", _AT_OUTPUT: f"{OUTPUT}-{name}"}.get(index, f"{index}-{name}")
            # A change of type may save time, but no component takes less than none.
            pieces.append(Piece(label, device, nodes, max(0.0, self._time[index]), sending_s[index]))
        found = [
            replace(
                each,
                source=None if each.source is None else place[each.source],
                targets=tuple(place[target] for target in each.targets),
            )
            for each in self._sent
        ]
        # What is needed first leaves first, as the engine sends it.
        sent = tuple(sorted(found, key=lambda each: min(each.targets, default=len(pieces))))
        return Schedule(tuple(pieces), sent, self._s.names, self._s.problem.values.names, self._s.processors)
