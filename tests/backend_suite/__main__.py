"""The whole suite: every node case of the onnx package, its variants, and composed graphs.

python -m tests.backend_suite             exit code 1 where an outcome is not as it must be (known.py)
"""

import argparse
import resource
import sys
import time
from fnmatch import fnmatchcase

from taglio.runtimes.processor import listed
from tests.backend_suite.check import PASSED, Outcome
from tests.backend_suite.drive import GRAPHS, all_cases, outcomes, table
from tests.backend_suite.known import problems, rounding_decides, rounds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.backend_suite")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases whose names match")
    parser.add_argument("--graphs", type=int, default=GRAPHS, help=f"composed graphs (default {GRAPHS})")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each case that does not pass")
    options = parser.parse_args()

    def tell(name: str, outcome: Outcome) -> None:
        if options.verbose and outcome.status != PASSED:
            print(f"{name}: {outcome.status}: {outcome.detail}", flush=True)

    start = time.monotonic()
    cases = (case for case in all_cases(options.graphs) if fnmatchcase(case.name, options.only))
    found = outcomes(cases, options.workers, tell)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cores = sum(each.ru_utime + each.ru_stime for each in used)
    print(table(found))
    print(f"{len(found)} cases in {time.monotonic() - start:.0f} s; {cores:.0f} s of one core")
    if not rounding_decides(listed()):
        for name, outcome in found.items():
            if rounds(outcome):
                print(f"{name}: {outcome.detail} (decides nothing: the suite has not run on a processor of this kind)")
    lines = problems(found, listed())
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
