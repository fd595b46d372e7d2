"""Open delivered folders afresh and time their models in turn.

Runs in a process of its own (answering.py) and imports NumPy and the runtimes only, through the `verify.py` that is
delivered. The request names `folders`, in the order in which they are opened; a folder of `samples`; the `seconds` to
fill; how many `pairs` to time at least and at most; and a `seed`. The answer holds the `seconds` of each timed run, a
list for each folder, and the processor seconds that this process has `worked`; or a `problem`.
"""

import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# A run after another model's run finds that model in the caches: 330 µs instead of 130. The first runs of a turn, at
# most so many and within so many seconds, are not counted.
_UNCOUNTED, _UNCOUNTED_S = 3, 0.04


def opening(verify: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Open each folder once, then time one run of each in turn, in an order that is drawn anew for each turn."""
    samples = Path(request["samples"])
    feeds = [
        {name: verify.load_array(samples / file) for name, file in sample["inputs"].items()}
        for sample in json.loads((samples / verify.SAMPLES).read_text())
    ]
    models = [verify.DeployedModel(folder) for folder in request["folders"]]
    uncounted = [_first_runs(model, feeds) for model in models]
    least, most = request["pairs"]
    seconds: list[list[float]] = [[] for _ in models]
    draw, order, end = (
        random.Random(request["seed"]),
        list(range(len(models))),
        time.perf_counter() + request["seconds"],
    )
    for turn in range(most):
        if turn >= least and time.perf_counter() > end:
            break
        feed = feeds[turn % len(feeds)]
        draw.shuffle(order)
        for index in order:
            run = models[index].run
            for _ in range(uncounted[index]):
                run(feed)
            start = time.perf_counter()
            run(feed)
            seconds[index].append(time.perf_counter() - start)
    return {"seconds": seconds, "worked": time.process_time()}


def _first_runs(model: Any, feeds: list[dict[str, Any]]) -> int:
    """Run a model once on each input, and on the last again; returns how many runs of its turns are not counted."""
    for feed in feeds:
        model.run(feed)
    start = time.perf_counter()
    model.run(feeds[-1])
    return min(_UNCOUNTED, int(_UNCOUNTED_S / max(time.perf_counter() - start, 1e-9)))


def answers(verify: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The function that answering.py calls for each request."""
    return partial(opening, verify)
