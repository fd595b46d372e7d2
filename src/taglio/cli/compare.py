"""The command compare: back ends side by side on one model."""

import argparse
import sys

from taglio.cli.output import INTERRUPTED, emit, remark
from taglio.cli.parser import arguments
from taglio.compare.ask import compare as measure
from taglio.compare.kept import FILE
from taglio.report import comparison
from taglio.report.progress import bar
from taglio.report.written import offer


def compare(options: argparse.Namespace) -> int:
    """Run `taglio compare`."""
    with bar(options.json) as progress:
        result = measure(options.model, options.data, out=options.out, progress=progress, **arguments(options))
    page = None if result.stopped else options.out / comparison.FILE
    if page is not None:
        remark(offer(lambda: comparison.write(options.out, result)))
    if options.json:
        emit(result)
    else:
        comparison.show(result, page)
    if not result.stopped:
        return 0
    sys.stderr.write(
        f"taglio: stopped; finished rows are in {options.out / FILE}: run the same command to continue, or remove "
        "that file to start again\n"
    )
    return INTERRUPTED
