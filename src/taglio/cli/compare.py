"""The command compare: back ends side by side on one model."""

import argparse
import sys
from pathlib import Path
from typing import Any

from taglio.cli.options import (
    INTERRUPTED,
    MODELS,
    bound_argument,
    command,
    data_arguments,
    effort_argument,
    emit,
    given,
    json_argument,
    positive_float,
    remark,
    thread_count,
)

_DEFAULT = "onnxruntime,openvino,openvino-ep,litert,pytorch,qkeras,keras"


def add(commands: Any) -> None:
    """Add the commands of this file to the parser."""
    each = command(
        commands, "compare", "run and quantise one model with every back end, measured side by side", _compare
    )
    each.add_argument("model", type=Path, metavar="MODEL", help=MODELS)
    each.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1x3x224x224",
        help="shape of an input (repeatable; default: from the data)",
    )
    data_arguments(each)
    each.add_argument("--backends", default=_DEFAULT, metavar="A,B,...", help="back ends to measure, in this order")
    each.add_argument("--layers", action="store_true", help="also time each layer, in back ends that can")
    bound_argument(each, 0.01)
    each.add_argument("--threads", type=thread_count, default=None, help="threads per session (default: all cores)")
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
    from taglio.compare.ask import compare
    from taglio.compare.kept import FILE
    from taglio.report import comparison_page, comparison_table
    from taglio.report.progress import bar
    from taglio.report.written import offer

    asked = given(options)
    with bar(options.json) as progress:
        result = compare(
            options.model,
            options.data,
            out=options.out,
            backends=[name for name in options.backends.split(",") if name],
            layers=options.layers,
            row_limit_s=options.row_limit,
            progress=progress,
            **asked,
        )
    page = None if result.stopped else options.out / comparison_page.FILE
    if page is not None:
        remark(offer(lambda: comparison_page.write(options.out, result)))
    if options.json:
        emit(result)
    else:
        comparison_table.show(result, page)
    if result.stopped:
        sys.stderr.write(
            f"taglio: stopped; finished rows are in {options.out / FILE}: run the same command to continue, or remove "
            "that file to start again\n"
        )
    return INTERRUPTED if result.stopped else 0
