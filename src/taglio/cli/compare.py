"""Compare back ends on one model."""

import argparse
import sys
from pathlib import Path
from typing import Any

from taglio.cli.options import (
    INTERRUPTED,
    bound_argument,
    command,
    data_arguments,
    effort_argument,
    emit,
    json_argument,
    positive_float,
    remark,
    shapes,
    thread_count,
)

_DEFAULT = "onnxruntime,openvino,openvino-ep,litert,pytorch,qkeras,keras"


def add(commands: Any) -> None:
    """Add the commands of this file to the parser."""
    each = command(
        commands, "compare", "run and quantise one model with every back end, measured side by side", _compare
    )
    each.add_argument(
        "model", type=Path, metavar="MODEL", help="an .onnx, .keras, .h5, .tflite or .pt2 file, or module:function"
    )
    each.add_argument(
        "--shape", action="append", default=[], metavar="INPUT=1x3x224x224", help="shape of an input (repeatable)"
    )
    data_arguments(each)
    each.add_argument("--backends", default=_DEFAULT, metavar="A,B,...", help="back ends to measure, in this order")
    each.add_argument("--layers", action="store_true", help="also time each layer, where a back end can")
    bound_argument(each, 0.01)
    each.add_argument("--threads", type=thread_count, default=None, help="threads of a session (default: all cores)")
    each.add_argument(
        "--row-limit",
        type=positive_float,
        default=300.0,
        help="timeout per row, in seconds without output (default 300)",
    )
    effort_argument(each)
    each.add_argument("-o", "--out", type=Path, required=True, help="output directory")
    json_argument(each)


def _compare(options: argparse.Namespace) -> int:
    from taglio import artifact
    from taglio.compare.kept import FILE
    from taglio.compare.measure import Question, compare
    from taglio.compare.result import COMPARISON
    from taglio.flow.transaction import held
    from taglio.profile.machine import available_cores
    from taglio.report import comparison_page, comparison_table
    from taglio.report.progress import bar
    from taglio.report.written import offer

    question = Question(
        options.model,
        options.data,
        options.out,
        shapes(options.shape),
        options.preprocess,
        tuple(name for name in options.backends.split(",") if name),
        options.layers,
        options.threads or available_cores(),
        options.seed,
        options.effort,
        options.max_error,
        options.row_limit,
    )
    with bar(options.json) as progress, held(options.out, create=True):
        result = compare(question, progress)
        if result.stopped:
            page, lacks = None, ""
        else:
            artifact.save(options.out / f"{COMPARISON}.json", COMPARISON, result.model_sha256, result)
            page = options.out / comparison_page.FILE
            lacks = offer(lambda: comparison_page.write(options.out, result))
            (options.out / FILE).unlink(missing_ok=True)  # finished: the same command measures again
    remark(lacks)
    if options.json:
        emit(result)
    else:
        comparison_table.show(result, page)
    if result.stopped:
        sys.stderr.write(
            f"taglio: stopped; the rows that are finished are in {options.out / FILE}: the same command goes on, and "
            "starts anew where that file is removed\n"
        )
    return INTERRUPTED if result.stopped else 0
