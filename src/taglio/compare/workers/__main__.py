"""Run one job of one back end: `python -P .../workers/__main__.py REQUEST.json`, in that back end's environment.

Imports taglio's source by path, without the packages installed beside it. Output of libraries goes to standard error;
standard output carries only events. A line on standard input ends a wait between rounds.
"""

import importlib
import importlib.util
import json
import os
import queue
import sys
import threading
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def main() -> int:
    """Run the request given on the command line."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_forward_input, args=(lines,), daemon=True).start()
    _be_killed_first()
    _import_from_source()
    value: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())

    def tell(event: str, **fields: object) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")
        events.flush()

    def wait(first: bool) -> None:
        tell("round", first=first)
        lines.get()

    contract = importlib.import_module("taglio.compare.workers.contract")
    loop = importlib.import_module("taglio.compare.workers.loop")
    try:
        module = importlib.import_module(f"taglio.compare.workers.{value['backend'].replace('-', '_')}")
        request = importlib.import_module("taglio.compare.request").decode(value)
        tell("versions", versions={name: _version(name) for name in module.PACKAGES})
        if request.task in ("convert", "reference"):
            tell("written", **module.convert(request))
        elif request.task in ("rows", "layers"):
            data = contract.load_data(request)
            backend = module.make(request, data)
            if request.task == "rows":
                loop.rows(request, data, backend, tell, wait)
            else:
                for layer in backend.layers():
                    tell("layer", **asdict(layer))
    except contract.Refused as refusal:
        tell("failed", status=refusal.status, reason=str(refusal))
    except Exception as error:  # any error of the back end becomes the reason of its rows
        importlib.import_module("traceback").print_exc()
        tell("failed", **loop.describe(error))
    tell("done")
    sys.stdout.flush()
    os._exit(0)  # some back ends crash at shutdown, after all events are sent


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # installed under another name, such as onnxruntime-gpu
        return str(importlib.import_module(package.replace("-", "_")).__version__)


def _forward_input(lines: "queue.Queue[str]") -> None:
    """Forward the lines of standard input. It closes when the parent ends; then this process exits too."""
    for line in sys.stdin:
        lines.put(line)
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
    sys.exit(main())
