"""The command compare: back ends side by side on one model."""

import argparse

from taglio.cli.output import INTERRUPTED, Shown
from taglio.cli.parser import arguments
from taglio.compare.checkpoint import FILE
from taglio.compare.measure import compare as measure
from taglio.report import comparison
from taglio.report.written import offer


def compare(options: argparse.Namespace) -> Shown:
    """Run `taglio compare`."""
    result = measure(options.model, options.data, out=options.out, **arguments(options))
    if result.stopped:
        remark = (
            f"stopped; finished rows are in {options.out / FILE}: run the same command to continue, or remove that "
            "file to start again"
        )
        return Shown(result, lambda: comparison.show(result, None), remark, INTERRUPTED)
    remark = offer(lambda: comparison.write(options.out, result))
    return Shown(result, lambda: comparison.show(result, options.out / comparison.FILE), remark)
