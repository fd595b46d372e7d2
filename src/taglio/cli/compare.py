"""The command compare: back ends side by side on one model."""

import argparse
from functools import partial

from taglio.cli.output import INTERRUPTED, Shown
from taglio.cli.parser import arguments
from taglio.compare.measure import compare_backends
from taglio.report import comparison
from taglio.report.written import offer


def compare(options: argparse.Namespace) -> Shown:
    """Run `taglio compare`."""
    result = compare_backends(options.model, options.data, out=options.out, **arguments(options))
    lacks = offer(lambda: comparison.write(options.out, result))
    show = partial(comparison.show, result, options.out / comparison.FILE)
    return Shown(result, show, lacks, INTERRUPTED if result.stopped else 0)
