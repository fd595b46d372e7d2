"""Run one job of one back end: `python -P .../workers/__main__.py FD`, in that back end's environment.

Imports taglio's source by path, without the packages installed beside it. The request and the events go through the
connection FD; standard output is the log.
"""

import importlib
import importlib.util
import os
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType


def main() -> None:
    """Run the request that the connection brings."""
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _be_killed_first()
    _import_from_source()
    contract = importlib.import_module("taglio.compare.workers.contract")
    loop = importlib.import_module("taglio.compare.workers.loop")
    request = connection.recv()

    def tell(kind: str, *values: object) -> None:
        connection.send((kind, *values))

    def wait(first: bool) -> None:
        tell("round", first)
        connection.recv()

    try:
        module: ModuleType = importlib.import_module(f"taglio.compare.workers.{request.backend.replace('-', '_')}")
        if request.task in ("convert", "reference"):
            tell("answer", module.convert(request))
        else:
            loop.rows(request, module.make(request), tell, wait)
    except contract.Refused as refusal:
        tell("failed", refusal.status, str(refusal))
    except Exception as error:  # any error of the back end becomes the reason of its rows
        importlib.import_module("traceback").print_exc()
        tell("failed", *loop.describe(error))
    tell("done")
    os._exit(0)  # some back ends crash at shutdown, after all events are sent


def _end_with_parent() -> None:
    """Exit when the parent does, which closes standard input."""
    sys.stdin.read()
    os._exit(0)


def _be_killed_first() -> None:
    """If memory runs out, let the system kill this process rather than its parent."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists():
        score.write_text("1000")


def _import_from_source() -> None:
    """Make `taglio` the package that this file belongs to, without the packages installed beside it."""
    root = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "taglio", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["taglio"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
