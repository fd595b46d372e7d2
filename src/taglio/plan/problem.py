"""The planning problem as numbers: nodes, values between them, devices, resources, limits. Solves nothing.

A label of a node is a device and a form; label index = device · forms + form. What depends on a label comes as an array
over (node, device, form). Nodes stand in execution order, which is topological. Everything that adds up is a sum of

    seconds busy on a device (computing, quantising, dequantising),  copies sent over a link and their bytes,  noise,

so a resource (the latency sum, joules, the busy time of a link) is a linear form of those, and the objective and the
limits are linear in the resources. What each value costs between given labels:

* int8 producer: every float reader dequantises for itself, wherever it is; one int8 copy goes to each other device
  that has a reader.
* float producer: each other device with readers gets a float copy, an int8 copy, or both (`Copies`). The int8 copy is
  quantised once on the producer's device, for all destinations and for the int8 readers there. An int8 reader
  elsewhere reads the int8 copy, or a device that got only a float copy quantises once for all its int8 readers. A
  float reader where only an int8 copy came dequantises for itself ("wire only"; where the problem allows it).
* changes of type may cost less than nothing; a value is quantised only where somebody reads its int8 copy, and both
  copies are sent only where a device has readers of both kinds.
* noise: an int8 reader of a float value adds the edge's noise, a wire-only float reader its wire noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np

from taglio.errors import BadOption

Floats = np.ndarray
CALLER = -1
SOURCE = -1


class Kind(IntEnum):
    """How a tensor is held: in float, in float behind an int8 anchor (another layout to quantise from), in int8."""

    FLOAT = 0
    ANCHOR = 1
    INT8 = 2


class Copies(IntFlag):
    """What a device gets of a value that another device wrote."""

    FLOAT = 1
    INT8 = 2


@dataclass(frozen=True, slots=True)
class Form:
    """A way to compute or carry a block: the kind it wants its inputs in and the kind it writes."""

    name: str
    reads: Kind
    writes: Kind


LATENCY, ENERGY = "latency", "energy"


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """Something that adds up: per second busy on each device, per copy sent and per byte over each link.

    `device` has shape (devices), `link` and `byte` (from, to), with zero diagonals. `models` multiplies what each
    model adds (its request rate, or 0 where another model's bound is meant). The objective counts the resource
    `weight` times; its sum may not exceed `upper`. `kind` is LATENCY or ENERGY of what a request of a model takes in
    all, "" of any other.
    """

    name: str
    device: Floats
    link: Floats
    byte: Floats
    models: Floats
    weight: float = 0.0
    upper: float = float("inf")
    kind: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class NoiseBound:
    """A bound on a noise sum: `own` (node, form), `edge` and `wire` by edge, in the order of `Values.readers`."""

    name: str
    own: Floats
    edge: Floats
    wire: Floats
    upper: float


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The tensors between nodes. Edge e of value v, start[v] ≤ e < start[v + 1], is read by node readers[e].

    `producer` is SOURCE for a model input and a reader CALLER for the model's caller: both hold float on the device
    `home` of that value. `quantize_s` (value, kind of float, device), `dequantize_s` (value, device), bytes by value.
    A strict edge's reader must read exactly the kind that the producer writes (a movement block carries it on).
    """

    names: tuple[str, ...]
    producer: np.ndarray
    home: np.ndarray
    model: np.ndarray
    start: np.ndarray
    readers: np.ndarray
    strict: np.ndarray
    quantize_s: Floats
    dequantize_s: Floats
    float_bytes: Floats
    int8_bytes: Floats

    def __len__(self) -> int:
        return len(self.producer)

    def edge_value(self) -> np.ndarray:
        """The value of every edge."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))


@dataclass(frozen=True, slots=True, eq=False)
class Implication:
    """`node` may not take a label of `labels` while every neighbour takes one of its own set; masks over labels."""

    node: int
    labels: np.ndarray
    neighbours: tuple[tuple[int, np.ndarray], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes per device; weights (node, form); `peak` says whether live activations count beside the weights. `of` is
    the device whose memory each device uses, where some share one: its capacity holds, and it is charged."""

    capacity: Floats
    weights: Floats
    peak: bool = False
    of: np.ndarray | None = None

    def used(self) -> np.ndarray:
        """Whether each device (row) uses the memory of each (column)."""
        every = np.arange(len(self.capacity))
        result: np.ndarray = (every if self.of is None else self.of)[:, None] == every
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Choose a label for every node and the copies of every value: least weighted sum of resources within limits.

    `seconds` and `allowed` have shape (node, device, form); `extra` is added to the objective as it stands (a
    switching cost). `model` is each node's model.
    """

    devices: tuple[str, ...]
    forms: tuple[Form, ...]
    nodes: tuple[str, ...]
    model: np.ndarray
    seconds: Floats
    allowed: np.ndarray
    values: Values
    resources: tuple[Resource, ...]
    noises: tuple[NoiseBound, ...] = ()
    memory: Memory | None = None
    implications: tuple[Implication, ...] = ()
    wire_only: bool = False
    extra: Floats | None = None
    constant: float = 0.0

    @property
    def labels(self) -> int:
        """Labels per node, allowed or not."""
        return len(self.devices) * len(self.forms)

    def label(self, device: int, form: int) -> int:
        """The index of a label."""
        return device * len(self.forms) + form

    def split(self, label: int) -> tuple[int, int]:
        """Device and form of a label."""
        return divmod(label, len(self.forms))

    def check(self) -> None:
        """Raise BadOption for negative costs, unsorted nodes, or a node that may take no label."""
        values = self.values
        amounts = [("float_bytes", values.float_bytes), ("int8_bytes", values.int8_bytes)]
        for each in self.resources:
            amounts += [(f"{each.name}.{name}", getattr(each, name)) for name in ("device", "link", "byte")]
        for bound in self.noises:
            amounts += [(f"{bound.name}.{name}", getattr(bound, name)) for name in ("own", "edge", "wire")]
        if self.memory is not None:
            amounts += [("capacity", self.memory.capacity), ("weights", self.memory.weights)]
        # A change of type may save its neighbours more time than it takes.
        signed = (("seconds", self.seconds), ("quantize_s", values.quantize_s), ("dequantize_s", values.dequantize_s))
        for name, array in signed:
            if not np.isfinite(array).all():
                raise BadOption(f"the problem's {name} has an entry that is not finite")
        for name, array in amounts:
            if not np.all(np.nan_to_num(array) >= 0.0):
                raise BadOption(f"the problem's {name} has a negative entry: only seconds may be saved")
        producer = values.producer[values.edge_value()]
        late = (values.readers != CALLER) & (producer >= values.readers)
        if late.any():
            name = self.nodes[int(values.readers[np.argmax(late)])]
            raise BadOption(f"node {name} reads a value before it is written: nodes stand in topological order")
        for node in np.flatnonzero(~self.allowed.reshape(len(self.nodes), -1).any(axis=1)):
            raise BadOption(f"node {self.nodes[int(node)]} has no allowed label: loosen its pins")


# Copies that each other device gets of each value: wires[value][device].
Wires = tuple[Mapping[int, Copies], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """What a labelling costs: the objective, each resource, each noise sum, weight and peak bytes per device.

    `broken` names every limit that does not hold, and pairs and implications that are forbidden. `stages` are those of
    its device that nodes run in (schedule.py), none where all run in the first; they cost nothing in here.
    """

    labels: tuple[int, ...]
    wires: Wires
    objective: float
    resources: Floats
    noises: Floats
    weight_bytes: Floats
    peak_bytes: Floats
    broken: tuple[str, ...]
    stages: tuple[int, ...] = ()


def switching(problem: Problem, labels: Sequence[int], costs: Floats) -> Floats:
    """An `extra` that adds costs[node] to every label other than the running plan's."""
    extra = np.repeat(np.asarray(costs, dtype=float)[:, None], problem.labels, axis=1)
    extra[np.arange(len(problem.nodes)), np.asarray(labels)] = 0.0
    return extra.reshape(problem.seconds.shape)


def surrounded(problem: Problem, labels: np.ndarray) -> list[int]:
    """Nodes whose label their neighbours' forbid."""
    return [
        each.node
        for each in problem.implications
        if each.labels[labels[each.node]] and all(mask[labels[node]] for node, mask in each.neighbours)
    ]
