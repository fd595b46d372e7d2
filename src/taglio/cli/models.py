"""Commands for a model without a plan: inspect and quantize."""

import argparse

from taglio.cli.output import Shown
from taglio.cli.parser import arguments
from taglio.cli.words import as_flags
from taglio.compare.convert import as_onnx, foreign
from taglio.error.tasks.suggest import suggest_for
from taglio.flow import stages
from taglio.flow.inspect import inspection
from taglio.flow.memory import least_bytes
from taglio.memory import size_text
from taglio.model.graph import build
from taglio.model.load import load
from taglio.model.observe import observe_random
from taglio.model.select import match
from taglio.model.state import suggested
from taglio.profile.machine import describe
from taglio.report import inspected, terminal
from taglio.report.console import say


def inspect(options: argparse.Namespace) -> Shown:
    """Run `taglio inspect`."""
    path = options.model
    if foreign(path):
        path = as_onnx(path, options.shapes, 1).path
    model = load(path, options.shapes, requantize=options.requantize)
    observed, assumed = observe_random(model)
    assumed = as_flags(assumed)
    graph = build(model, observed)
    block_names = None if options.blocks in (None, "all") else set(match(graph, options.blocks.split(",")))
    pairs = suggested(model.inputs, model.proto.graph)
    suggestion = suggest_for(model, graph, [name for pair in pairs for name in pair])
    states = [f"{present}={past}" for present, past in pairs]
    machine = describe()
    inspected_model = inspection(model, graph, machine.instructions)
    next_step = inspected.Advice(options.model, options.shapes, states, suggestion)
    memory_bytes = None if observed is None else least_bytes(model, graph)

    def tables() -> None:
        inspected.summary(model, graph, inspected_model, machine)
        if assumed:
            say(assumed)
        if memory_bytes is not None:
            say(f"memory: optimize needs an estimated {size_text(memory_bytes)} or more")
        for note in model.notes:
            say(note.text)
        inspected.advice(next_step)
        if options.blocks is not None:
            inspected.blocks(graph, block_names)

    about = {"model": model.name, "sha256": model.sha256, "opset": model.opset, "graph": graph}
    about |= {"assumed": assumed, "suggested": suggestion, "states": states, "memory_bytes": memory_bytes}
    about |= {"summary": inspected_model, "command": next_step.command()}
    return Shown(about, tables)


def quantize(options: argparse.Namespace) -> Shown:
    """Run `taglio quantize`."""
    quantization = stages.quantize(options.out, options.model, options.data, **arguments(options))
    return Shown(quantization, lambda: terminal.quantized(quantization))
