"""Commands for a model without a plan: inspect and quantize."""

import argparse

from taglio.cli.output import Shown
from taglio.cli.parser import arguments
from taglio.cli.words import as_flags
from taglio.compare.convert import as_onnx, foreign
from taglio.error.tasks.suggest import suggest_for
from taglio.flow import stages
from taglio.flow.memory import least_bytes
from taglio.memory import size_text
from taglio.model.graph import build, select
from taglio.model.load import load
from taglio.model.observe import observe_random
from taglio.model.state import suggested
from taglio.report import terminal
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
    chosen = None if options.blocks == "all" else set(select(graph, options.blocks))
    pairs = suggested(model.inputs, model.proto.graph)
    suggestion = suggest_for(model, graph, [name for pair in pairs for name in pair])
    states = [f"{present}={past}" for present, past in pairs]
    memory_bytes = None if observed is None else least_bytes(model, graph)

    def tables() -> None:
        terminal.inspect(model, graph, chosen, assumed)
        if memory_bytes is not None:
            say(f"memory: optimize needs an estimated {size_text(memory_bytes)} or more")
        if model.random:
            say(model.random)
        if suggestion is not None:
            say(f"consider --metric {suggestion.metric}: {suggestion.why}")
        if states:
            say(f"outputs that look like the next step's inputs: {' '.join(f'--state {each}' for each in states)}")

    about = {"model": model.name, "sha256": model.sha256, "opset": model.opset, "graph": graph}
    about |= {"assumed": assumed, "suggested": suggestion, "states": states, "memory_bytes": memory_bytes}
    return Shown(about, tables)


def quantize(options: argparse.Namespace) -> Shown:
    """Run `taglio quantize`."""
    result = stages.quantize(options.out, options.model, options.data, **arguments(options))
    return Shown(result, lambda: terminal.quantized(result))
