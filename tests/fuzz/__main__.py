"""Fuzz for a while: python -m tests.fuzz [TARGET ...] [--seconds S] [--seed N].

Every target gets S seconds of one core (FUZZ_SECONDS, default 300). The exit code is 1 where something new is found.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz.drive import fuzz, known, report
from tests.fuzz.targets import TARGETS, make_base


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "300")))
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make_base(Path(name))
        result = fuzz(
            name, options.targets or list(TARGETS), options.seconds, first_seed=options.seed, workers=options.workers
        )
    print(report(result))
    new = [each for each in result.findings if each.what not in known()]
    for each in new:
        print(f"new: {each}", file=sys.stderr)
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
