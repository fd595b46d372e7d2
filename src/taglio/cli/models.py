"""Commands for a model without a plan: inspect and quantize."""

import argparse
from pathlib import Path
from typing import Any

from taglio.cli.options import (
    calibration_argument,
    command,
    data_arguments,
    emit,
    given,
    json_argument,
    model_argument,
    requantize_argument,
    shapes,
)
from taglio.cli.words import as_flags


def add(commands: Any) -> None:
    """Add the commands of this file to the parser."""
    each = command(commands, "inspect", "list blocks with FLOPs and sizes, and which can be int8", _inspect)
    model_argument(each)
    requantize_argument(each)
    each.add_argument("--blocks", default="all", help="blocks to show: all, top-flops:K, top-bytes:K, or name patterns")
    json_argument(each)

    each = command(commands, "quantize", "quantise chosen blocks, without a plan", _quantize)
    model_argument(each)
    requantize_argument(each)
    data_arguments(each)
    calibration_argument(each)
    each.add_argument(
        "--method",
        choices=("static", "dynamic", "float16", "int8-weights", "int4-weights"),
        default="static",
        help="quantisation method (default static)",
    )
    each.add_argument("--scheme", help="int8 scheme (default qdq-u8s8-asym-pc; for dynamic qdq-u8s8-asym-pt)")
    each.add_argument(
        "--repair",
        default="",
        metavar="NAME[,NAME]",
        help="lower the error of int8 at the same speed: ranges (per tensor, by their effect on the outputs), "
        "rounding (round weights so that products change least), "
        "bias (correct what int8 adds to the mean of each channel)",
    )
    each.add_argument(
        "--blocks", default="all", help="blocks to quantise: all, top-flops:K, top-bytes:K, or name patterns"
    )
    each.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="SCHEME=PATTERN",
        help="quantise these blocks under another scheme (repeatable)",
    )
    each.add_argument("-o", "--out", type=Path, required=True, help="ONNX file to write")
    json_argument(each)


def _inspect(options: argparse.Namespace) -> int:
    from taglio.compare.convert import as_onnx, foreign
    from taglio.error.tasks.suggest import suggest_for
    from taglio.model import load as model
    from taglio.model.graph import build, select
    from taglio.model.observe import observe_random
    from taglio.model.state import suggested
    from taglio.report import terminal

    path, fixed = options.model, shapes(options.shape)
    if foreign(path):
        path = as_onnx(path, fixed, 1).path
    loaded = model.load(path, fixed, requantize=options.requantize)
    observed, assumed = observe_random(loaded)
    assumed = as_flags(assumed)
    graph = build(loaded, observed)
    shown = None if options.blocks == "all" else set(select(graph, options.blocks))
    suggestion = suggest_for(loaded, graph)
    states = [f"{present}={past}" for present, past in suggested(loaded.inputs, loaded.proto.graph.output)]
    if options.json:
        return emit(
            {
                "model": loaded.name,
                "sha256": loaded.sha256,
                "opset": loaded.opset,
                "graph": graph,
                "assumed": assumed,
                "suggested": suggestion,
                "states": states,
            }
        )
    terminal.inspect(loaded, graph, shown, assumed)
    if suggestion is not None:
        terminal.say(f"consider --metric {suggestion.metric}: {suggestion.why}")
    if states:
        terminal.say(f"outputs that look like the next step's inputs: {' '.join(f'--state {each}' for each in states)}")
    return 0


def _quantize(options: argparse.Namespace) -> int:
    from taglio.flow.stages import quantize
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        asked = {"method": options.method, "blocks": options.blocks, "also": options.also, **given(options)}
        asked["repair"] = options.repair.split(",") if options.repair else ()
        result = quantize(options.out, options.model, options.data, progress=progress, **asked)
    if options.json:
        return emit(result)
    terminal.quantized(result)
    return 0
