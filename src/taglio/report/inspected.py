"""What `taglio inspect` prints: a summary of the model and, on request, its blocks. Computes nothing."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taglio.data.spec import Dim
from taglio.data.spec import shown as shown_dims
from taglio.error.tasks.suggest import Suggestion
from taglio.error.tasks.task import names_task
from taglio.errors import plural
from taglio.flow.inspect import Inspection
from taglio.model.graph import Graph
from taglio.model.inputs import spec_of
from taglio.model.load import Model
from taglio.model.operators import HOLDS_BODIES
from taglio.model.quantized import listed, quantized_operators
from taglio.profile.machine import Machine
from taglio.report.console import say, show
from taglio.report.parts import Table
from taglio.report.units import MISSING, about, percent, size
from taglio.weights import weight_bytes

# Types of operators, and reasons why blocks stay float, that the summary names.
_TYPES, _REASONS = 8, 3


@dataclass(frozen=True, slots=True)
class Advice:
    """What to run next: the model as it was given, with the shapes, the states and the metric that suit it."""

    model: Path
    shapes: dict[str, tuple[int, ...]]
    states: Sequence[str]
    suggestion: Suggestion | None

    def command(self) -> str:
        """A command line that optimises the model within 1 %."""
        words = ["taglio", "optimize", str(self.model), "--data", "DATA"]
        for name, shape in self.shapes.items():
            words += ["--shape", f"{name}={'x'.join(map(str, shape))}"]
        for state in self.states:
            words += ["--state", state]
        limit = "--max-error"
        if self.suggestion is not None:
            words += ["--metric", self.suggestion.metric]
            limit = "--max-drop" if names_task(self.suggestion.metric) else limit
        return shlex.join([*words, limit, "1%", "-o", "out"])


def summary(model: Model, graph: Graph, inspection: Inspection, machine: Machine) -> None:
    """Print what the model is, which blocks can be int8, and the gain to expect from that."""
    opset = f", opset {model.opset}" if model.opset else ""
    complete = all(tensor.shape is not None for tensor in graph.tensors)
    counted = f", {sum(block.flops for block in graph.blocks) / 1e9:.3f} GFLOPs" if complete else ""
    say(
        f"{model.name}: {plural(inspection.blocks, 'block')}, {inspection.int8_blocks} can be int8{counted}, "
        f"{size(weight_bytes(model.proto))} of weights{opset}"
    )
    named = ", ".join(f"{count} {kind}" for kind, count in inspection.operators[:_TYPES])
    more = len(inspection.operators) - _TYPES
    total = sum(count for _, count in inspection.operators)
    remainder = f" and {plural(more, 'other type')}" if more > 0 else ""
    say(f"{plural(total, 'operator')}: {named}{remainder}")
    if reasons := _reasons(inspection):
        say(f"blocks that stay float: {reasons}")
    say(_expectation(inspection, machine))
    if counts := quantized_operators(model.proto):
        say(f"already quantised: {listed(counts)}; kept as they are (--requantize converts quantise/dequantise pairs)")
    for spec in model.inputs:
        say(f"input  {spec.name} {_dims(spec.shape)} {spec.dtype}")
    tensors = graph.tensor_map()
    for value in model.proto.graph.output:
        tensor = tensors[value.name]
        shape = spec_of(value).shape if tensor.shape is None else tensor.shape
        say(f"output {value.name} {_dims(shape)} {tensor.dtype}")


def blocks(graph: Graph, names: set[str] | None) -> None:
    """Print one row for every chosen block (None: for all)."""
    tensors = graph.tensor_map()
    head = ["block", "operators", "MFLOPs", "weights", "in int8", "output", "in int8", "int8?"]
    rows = []
    for block in graph.blocks:
        if names is None or block.name in names:
            outputs = [tensors[name] for name in block.outputs]
            weights = (size(block.weight_bytes(32)), size(block.weight_bytes(8)))
            written = (
                size(sum(tensor.float_bytes for tensor in outputs)),
                size(sum(tensor.int8_bytes for tensor in outputs)),
            )
            flops = f"{block.flops / 1e6:.2f}"
            if any(tensor.shape is None for tensor in outputs):
                flops, written = MISSING, (MISSING, MISSING)
            able = "yes" if block.quantizable else f"no: {block.refusal}"
            rows.append([block.name, block.kind, flops, *weights, *written, able])
    show([Table(head, rows, words=frozenset({1, 7}), first=1_000)])  # rich takes 2 ms for each


def advice(next_step: Advice) -> None:
    """Print the metric and the states that suit the model, and the command line with them."""
    if next_step.suggestion is not None:
        say(f"consider --metric {next_step.suggestion.metric}: {next_step.suggestion.why}")
    if next_step.states:
        pairs = " ".join(f"--state {pair}" for pair in next_step.states)
        say(f"outputs that look like the next step's inputs: {pairs}")
    say(f"to optimise it: {next_step.command()}")
    say("to list the blocks, with sizes and why a block stays float: add --blocks")


def _reasons(inspection: Inspection) -> str:
    texts = [f"{count} ({reason})" for reason, count in inspection.refusals[:_REASONS]]
    other_count = sum(count for _, count in inspection.refusals[_REASONS:])
    return ", ".join(texts + ([f"{other_count} for other reasons"] if other_count else []))


def _expectation(inspection: Inspection, machine: Machine) -> str:
    """The gain to expect and what it follows from."""
    float_too = "; its float parts may compute in bfloat16, which optimize tries too" if inspection.bfloat16 else ""
    if not inspection.int8_blocks:
        return f"no gain from int8 is expected: no block has an int8 form{float_too}"
    if inspection.int8_share is None or inspection.expected_gain is None:
        return "the gain to expect is not known, because sizes are not known: set them with --shape"
    bodies = [kind for kind, _ in inspection.operators if kind in HOLDS_BODIES]
    counted = f" outside {' and '.join(bodies)}" if bodies else ""
    return (
        f"expect {about(inspection.expected_gain)} from int8, not confirmed: {percent(inspection.int8_share)} of the "
        f"operations{counted} are in blocks that can be int8, which this processor ({machine.features}) computes about "
        f"{inspection.int8_gain:g} times as fast as float32{float_too}. Nothing was measured: conversions between "
        "forms, memory and the error limit lower the gain"
    )


def _dims(shape: Sequence[Dim] | None) -> str:
    fixed = shape is not None and all(isinstance(dim, int) for dim in shape)
    return "x".join(map(str, shape or ())) or "scalar" if fixed else shown_dims(shape)
