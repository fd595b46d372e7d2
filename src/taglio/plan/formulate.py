"""The planning problem of one machine as a mixed-integer program. Solves nothing.

One binary per block and form. Whether a block reads or writes int8 is a sum of its binaries, and movement has the type
of the flow that it carries. So the cost formula of `profile/result.py` and the noise formula of `error/model.py` are
linear, but for products over a flow and one of its readers:

    both = [written int8] · [read int8]        to int8 = [read int8] − both        to float = [written int8] − both

Each product is a fraction between the rows that make it exact where the binaries are (McCormick). A tensor is quantised
once for all its int8 readers: the largest of their "to int8".

Rows: one form per block, pins, one limit of noise per output part, and rules 2 and 3 of `quantize/effective.py`: a
weightless block that reads only int8 and is read only as int8 is not float, and the blocks around a sum have one
precision of float32 and bfloat16.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taglio.errors import BadOption
from taglio.model.graph import Block, Flow, Graph
from taglio.plan.program import ONE, ZERO, Linear, Program, total, weighted
from taglio.plan.result import Limits
from taglio.plan.tables import Tables
from taglio.profile.result import Glue
from taglio.quantize.effective import fuses_when_surrounded, is_sum, only_readers
from taglio.quantize.precision import BFLOAT16, FLOAT32, Precision, int8_of


@dataclass(frozen=True, slots=True, eq=False)
class Formulation:
    """A program, the `cost` to minimise in seconds, and by block the expressions of its forms, each 0 or 1."""

    program: Program
    cost: Linear
    forms: Mapping[str, Mapping[Precision, Linear]]

    def assignment(self, values: np.ndarray) -> dict[str, Precision]:
        """Form by block from the columns' values, [columns], without the blocks in float32."""
        chosen = {}
        for block, forms in self.forms.items():
            form = max(forms, key=lambda form: forms[form].at(values))
            if form != FLOAT32:
                chosen[block] = form
        return chosen


def formulate(tables: Tables, limits: Limits, noise_limits: Mapping[str, float]) -> Formulation:
    """The program of `tables` with the pins of `limits` and the largest noise sum by output. Raises BadOption for a
    block that no form fits."""
    graph, profile, error = tables.graph, tables.profile, tables.error
    program = Program()
    forms = _forms(program, graph, profile.precisions, limits)
    writes = {block: _sum_of(forms[block], lambda form: form.int8_output) for block in forms}
    reads = {block: _sum_of(forms[block], lambda form: form.scheme is not None) for block in forms} | {"": ZERO}
    flows = [_FlowTypes(program, flow, writes, reads) for flow in graph.flows]
    times, glue = profile.block_times(), profile.glue_map()
    costs = [Linear(profile.overhead_s)]
    costs += [
        weighted((times.get((block, form.name), 0.0), binary) for form, binary in options.items())
        for block, options in forms.items()
    ]
    costs += [flow.seconds(glue[flow.flow.name]) for flow in flows]
    if BFLOAT16 in profile.precisions:
        low = {block: _sum_of(forms[block], lambda form: form == BFLOAT16) for block in forms} | {"": ZERO}
        plain = {block: _sum_of(forms[block], lambda form: form == FLOAT32) for block in forms} | {"": ONE}
        _follow_sums(program, graph, low, plain)
        costs += [_converting(program, flow, glue[flow.name].convert_s, low, plain) for flow in graph.flows]
    for output in error.outputs if error is not None else ():
        if output.output in noise_limits:
            own = {(term.block, term.precision): term.own for term in output.blocks}
            edge = {(term.flow, term.reader): term.noise for term in output.edges}
            noises = [
                (own.get((block, form.name), 0.0), binary)
                for block, options in forms.items()
                for form, binary in options.items()
            ]
            noises += [
                (edge.get((flow.flow.name, reader), 0.0), flow.to_int8(reader))
                for flow in flows
                for reader in flow.readers
            ]
            program.limit(noises, noise_limits[output.output])
    _forbid_surrounded(program, graph, forms, writes, reads)
    return Formulation(program, total(costs), forms)


def _forms(
    program: Program, graph: Graph, precisions: Sequence[Precision], limits: Limits
) -> dict[str, dict[Precision, Linear]]:
    """By block, in graph order, the forms that it may have. Movement that carries a flow is float or int8 as the flow
    is written."""
    forms: dict[str, dict[Precision, Linear]] = {}
    whole = int8_of(precisions)
    tensors = graph.tensor_map()
    for block in graph.blocks:
        if block.carries:
            producer = tensors[block.inputs[0]].producer
            written = _sum_of(forms[producer], lambda form: form.int8_output) if producer else ZERO
            forms[block.name] = {FLOAT32: ONE - written, whole: written}
            continue
        options = [precision for precision in precisions if _may(block, precision, limits)]
        if not options:
            raise BadOption(f"block {block.name} has no form that its pins allow: remove a pin")
        columns = [ONE] if len(options) == 1 else [program.binary() for _ in options]
        forms[block.name] = dict(zip(options, columns, strict=True))
        program.equal(total(columns), ONE)
    return forms


def _may(block: Block, precision: Precision, limits: Limits) -> bool:
    """Whether a block that carries no flow may have a form."""
    if not precision.fits(block) or (block.movement and precision != FLOAT32):
        return False
    if block.name in limits.float_blocks:
        return precision == FLOAT32
    return block.name not in limits.int8_blocks or precision.scheme is not None


def _sum_of(forms: Mapping[Precision, Linear], condition: Callable[[Precision], bool]) -> Linear:
    return total(binary for form, binary in forms.items() if condition(form))


class _FlowTypes:
    """How one flow is written, and how each of its `readers` reads it."""

    def __init__(
        self,
        program: Program,
        flow: Flow,
        writes: Mapping[str, Linear],
        reads: Mapping[str, Linear],
    ) -> None:
        self.program, self.flow = program, flow
        self.readers = tuple(dict.fromkeys(reader for _, reader in flow.readers))
        self.reads = {reader: reads[reader] for reader in self.readers}
        self.int8 = writes[flow.producer] if flow.producer else ZERO
        self.both = {reader: program.product(self.int8, self.reads[reader]) for reader in self.readers}

    def to_int8(self, reader: str) -> Linear:
        """Whether a reader reads int8 that is not written so."""
        return self.reads[reader] - self.both[reader]

    def seconds(self, glue: Glue) -> Linear:
        """The seconds of the flow."""
        parts = [(glue.float_s, ONE - self.int8), (glue.int8_s, self.int8)]
        parts += [(glue.dequantize_s, self.int8 - self.both[reader]) for _, reader in self.flow.readers]
        return weighted([*parts, *self._quantizing(glue.quantize_s)])

    def _quantizing(self, seconds: float) -> Iterable[tuple[float, Linear]]:
        """The cost of quantising each tensor once if it is written in float and any reader wants int8."""
        if seconds == 0.0:
            return
        for tensor in dict.fromkeys(tensor for tensor, _ in self.flow.readers):
            wanted = [self.to_int8(reader) for name, reader in self.flow.readers if name == tensor]
            wanted = [reading for reading in wanted if not reading.is_zero]
            if len(wanted) <= 1:
                yield seconds, total(wanted)
                continue
            quantized = self.program.fraction()
            if seconds > 0.0:
                for reading in wanted:
                    self.program.at_most(reading, quantized)
            else:
                self.program.at_most(quantized, ONE - self.int8)
                self.program.at_most(quantized, total(wanted))
            yield seconds, quantized


def _converting(
    program: Program, flow: Flow, seconds: float, low: Mapping[str, Linear], plain: Mapping[str, Linear]
) -> Linear:
    """The cost of converting each tensor of a flow if its producer is in float32 and a reader in bfloat16, or the other
    way round."""
    producer = flow.producer or ""
    if seconds <= 0.0 or (low[producer].is_zero and all(low[reader].is_zero for _, reader in flow.readers)):
        return ZERO
    tensors = dict.fromkeys(tensor for tensor, _ in flow.readers)
    converted = {tensor: program.fraction() for tensor in tensors}
    for tensor, reader in flow.readers:
        program.at_most(plain[producer] + low[reader], ONE + converted[tensor])
        program.at_most(low[producer] + plain[reader], ONE + converted[tensor])
    return weighted((seconds, conversion) for conversion in converted.values())


def _follow_sums(program: Program, graph: Graph, low: Mapping[str, Linear], plain: Mapping[str, Linear]) -> None:
    """Give the blocks around a sum one precision of float32 and bfloat16."""
    for block, reader in only_readers(graph).items():
        program.at_most(plain[block] + low[reader], ONE)
        if is_sum(graph.block(reader)):
            program.at_most(low[block] + plain[reader], ONE)


def _forbid_surrounded(
    program: Program,
    graph: Graph,
    forms: Mapping[str, Mapping[Precision, Linear]],
    writes: Mapping[str, Linear],
    reads: Mapping[str, Linear],
) -> None:
    """Forbid float for a weightless block that reads only int8 and is read only as int8."""
    tensors = graph.tensor_map()
    for block in graph.blocks:
        if not fuses_when_surrounded(block) or not graph.readers.get(block.name):
            continue
        producers = dict.fromkeys(tensors[name].producer for name in block.inputs)
        around = [writes[producer] if producer else ZERO for producer in producers]
        around += [reads[reader] for reader in dict.fromkeys(graph.readers[block.name])]
        stays_float = _sum_of(forms[block.name], lambda form: form == FLOAT32)
        if not any(neighbour.is_zero for neighbour in around):
            program.at_most(total([stays_float, *around]), Linear(float(len(around))))
