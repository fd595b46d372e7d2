"""Answer requests until standard input ends: one JSON object a line in, one answer or `problem` a line out.

Runs as a script in a process of its own, with two paths as arguments: the `verify.py` that is delivered, and a module
whose function `answers` takes verify.py as a module and returns a function from a request to its answer. Imports
nothing of taglio.
"""

import gc
import importlib.util
import json
import sys
from typing import Any


def module_at(path: str, name: str) -> Any:
    """The module in a file, which need not be in a package."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Answer, with a collection of garbage between requests only: in a run it would count as the model's time."""
    verify, script = sys.argv[1:]
    answer_to = module_at(script, "requests").answers(module_at(verify, "verify"))
    gc.disable()
    for line in sys.stdin:
        try:
            answer = answer_to(json.loads(line))
        except Exception as error:  # whatever a runtime raises: the parent reports it
            answer = {"problem": f"{type(error).__name__}: {error}"}
        gc.collect()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
