"""The planning problem as numbers: nodes, values between them, devices, resources, limits. Solves nothing.

A node's label is a device and a form; label index = device · forms + form. Whatever depends on a label is an array over
(node, device, form). Nodes are in execution order, which is topological. Every additive quantity is a sum of

    seconds busy on a device (computing, quantising, dequantising),  copies sent over a link and their bytes,  noise,

so a resource (the latency sum, joules, the busy time of a link) is linear in those, and the objective and the limits
are linear in the resources. The cost of a value between given labels:

* int8 producer: every float reader dequantises for itself, on any device; one int8 copy goes to each other device
  that has a reader.
* float producer: each other device with readers gets a float or an int8 copy (`Copies`). The int8 copy is quantised
  once on the producer's device, for all destinations and for the int8 readers there. A device that got a float copy
  quantises once for all its int8 readers. A float reader that gets an int8 copy dequantises for itself ("wire only", if
  the problem allows it).
* changes of type save no time; a value is quantised only if something reads its int8 copy.
* noise: an int8 reader of a float value adds the edge's noise, a wire-only float reader its wire noise.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np

Floats = np.ndarray
CALLER = -1
SOURCE = -1


class Kind(IntEnum):
    """How a tensor is stored."""

    FLOAT = 0
    INT8 = 1


class Copies(IntFlag):
    """The copies of a value that a device holds; it gets one of them from the device that wrote it."""

    FLOAT = 1
    INT8 = 2


@dataclass(frozen=True, slots=True)
class Form:
    """How a block computes or carries values: the kind it reads and the kind it writes."""

    name: str
    reads: Kind
    writes: Kind


LATENCY, ENERGY = "latency", "energy"


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """An additive quantity: per busy second on each device, per copy sent and per byte over each link.

    `device` has shape (devices), `link` and `byte` (from, to), with zero diagonals. `models` multiplies each model's
    contribution (its request rate, or 0 if the bound is another model's). The objective counts the resource `weight`
    times; its sum may not exceed `upper`. `kind` is LATENCY or ENERGY for the total of a model's request, otherwise "".
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
    """A bound on a noise sum: `own` (node, form); `edge` and `wire` by edge, in the order of `Values.readers`."""

    name: str
    own: Floats
    edge: Floats
    wire: Floats
    upper: float


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The tensors between nodes. Edge e of value v, start[v] ≤ e < start[v + 1], is read by node readers[e].

    `producer` is SOURCE for a model input and a reader CALLER for the model's caller: both hold float on the device
    `home` of that value. `quantize_s` and `dequantize_s` are (value, device), bytes by value. The reader of a strict
    edge must read the kind that the producer writes (a movement block keeps it).
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
    """`node` may not take a label in `labels` if every neighbour's label is in that neighbour's set (label masks)."""

    node: int
    labels: np.ndarray
    neighbours: tuple[tuple[int, np.ndarray], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes per device; weights (node, form); `peak` tells whether live activations count in addition to weights."""

    capacity: Floats
    weights: Floats
    peak: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Choose a label for every node and the copies of every value: least weighted sum of resources within limits.

    `seconds` and `allowed` have shape (node, device, form). `model` is each node's model.
    """

    devices: tuple[str, ...]
    forms: tuple[Form, ...]
    nodes: tuple[str, ...]
    model: np.ndarray
    seconds: Floats
    allowed: np.ndarray
    values: Values
    resources: tuple[Resource, ...]
    noises: tuple[NoiseBound, ...]
    memory: Memory
    implications: tuple[Implication, ...] = ()
    wire_only: bool = False
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

    def on_one_device(self) -> list[np.ndarray]:
        """For every device, labels of all nodes: the first form that is allowed there, or anywhere if there is none."""
        allowed = self.allowed.reshape(len(self.nodes), -1)
        devices = np.arange(self.labels) // len(self.forms)
        return [np.where(allowed & (devices == d), 2, allowed).argmax(axis=1) for d in range(len(self.devices))]


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """The cost of a labelling and its `copies` (value, device; `Copies` numbers, 0: none): the objective, each
    resource, each noise sum, weight and peak bytes per device.

    `broken` names every broken limit, strict edge and implication. `levels` are each node's least level (schedule.py),
    empty if all are 0; they add no cost here.
    """

    labels: tuple[int, ...]
    copies: np.ndarray
    objective: float
    resources: Floats
    noises: Floats
    weight_bytes: Floats
    peak_bytes: Floats
    broken: tuple[str, ...]
    levels: tuple[int, ...] = ()


def surrounded(problem: Problem, labels: np.ndarray) -> list[Implication]:
    """The implications that `labels` break: nodes whose label is forbidden by their neighbours' labels."""
    return [
        rule
        for rule in problem.implications
        if rule.labels[labels[rule.node]] and all(mask[labels[node]] for node, mask in rule.neighbours)
    ]
