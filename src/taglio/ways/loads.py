"""Put delivered models under load.

Runs in a process of its own (confirm/answering.py) and imports NumPy and the runtimes only, through the `verify.py`
that is delivered. A request says what to `do`:

* `open`: the `folders`, beside those that are open, with `samples` to run them on. The answer has the bytes of `memory`
  that each took.
* `close`: all folders.
* `closed`: in each of `rounds`, the `folders` take turns in a new random order. In its turn a folder has as many
  callers as runs at once, who ask again as soon as they are answered, for `seconds`. The answer has, for each folder
  and round, the items per second (`per_s`) and the seconds of each run (`runs`).
* `open_loop`: `count` requests of one item arrive at `folder` at random (exponential gaps), `per_s` on average. The
  answer has the `seconds` of each from its arrival to its answer, waiting included.
"""

import gc
import json
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


class Loads:
    """The open models, and the inputs that they run on."""

    def __init__(self, verify: Any) -> None:
        self._verify = verify
        self._open: dict[str, Any] = {}
        self._feeds: list[dict[str, Any]] = []

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open folders, and run each of them once on every input."""
        self._feeds = self._alike(Path(request["samples"]))
        memory = []
        for folder in request["folders"]:
            before = _resident_bytes()
            callers = self._verify.Callers(folder)
            _at_once([partial(self._warm, callers.model)] * callers.model.way["at_once"])
            self._open[folder] = callers
            memory.append(max(0, _resident_bytes() - before))
        return {"memory": memory}

    def close(self, request: dict[str, Any]) -> dict[str, Any]:
        """Close all folders."""
        del request
        for callers in self._open.values():
            callers.close()
        self._open.clear()
        gc.collect()
        return {}

    def closed(self, request: dict[str, Any]) -> dict[str, Any]:
        """Callers that ask again as soon as they are answered."""
        draw, folders = random.Random(request["seed"]), list(request["folders"])
        bursts: dict[str, dict[str, list[Any]]] = {folder: {"per_s": [], "runs": []} for folder in folders}
        for _ in range(request["rounds"]):
            draw.shuffle(folders)
            for folder in folders:
                per_s, runs = self._burst(self._open[folder].model, request["seconds"])
                bursts[folder]["per_s"].append(per_s)
                bursts[folder]["runs"].append(runs)
            gc.collect()
        return {"results": [bursts[folder] for folder in request["folders"]]}

    def open_loop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Requests that arrive at random, whether or not those before them were answered."""
        draw, callers = random.Random(request["seed"]), self._open[request["folder"]]
        seconds, left = [0.0] * request["count"], threading.Semaphore(0)
        arrival_s = time.perf_counter() + 0.01

        def answered(index: int, came_s: float) -> Any:
            def record(answer: Any) -> None:
                seconds[index] = time.perf_counter() - came_s if answer.exception() is None else float("inf")
                left.release()

            return record

        for index in range(request["count"]):
            arrival_s += draw.expovariate(request["per_s"])
            wait_s = arrival_s - time.perf_counter()
            if wait_s > 0.0:
                time.sleep(wait_s)
            # Latency counts from the planned arrival, so that a late generator does not hide waiting.
            callers.submit(self._feeds[index % len(self._feeds)]).add_done_callback(answered(index, arrival_s))
        for _ in range(request["count"]):
            left.acquire()
        return {"seconds": seconds}

    def _alike(self, samples: Path) -> list[dict[str, Any]]:
        """The samples, those of the most frequent shapes first."""
        listed = json.loads((samples / self._verify.SAMPLES).read_text())
        feeds = [
            {name: self._verify.load_array(samples / file) for name, file in sample["inputs"].items()}
            for sample in listed
        ]
        shapes = [str({name: value.shape for name, value in feed.items()}) for feed in feeds]
        by_frequency = sorted(range(len(feeds)), key=lambda index: -shapes.count(shapes[index]))
        return [feeds[index] for index in by_frequency]

    def _batch(self, index: int, joined: int) -> list[dict[str, Any]]:
        """`joined` inputs of one shape, from the one at `index` on."""
        first = self._feeds[index % len(self._feeds)]
        same = [feed for feed in self._feeds if all(feed[name].shape == first[name].shape for name in first)]
        return [first, *(same[(index + more) % len(same)] for more in range(1, joined))]

    def _warm(self, model: Any) -> None:
        for index in range(len(self._feeds)):
            model.run_joined(self._batch(index, model.way["joined"]))

    def _burst(self, model: Any, seconds: float) -> tuple[float, list[float]]:
        """Items per second, and the seconds of each run."""
        count, joined = model.way["at_once"], model.way["joined"]
        ready, counted = threading.Barrier(count), [list[float]() for _ in range(count)]
        rates, done = [0.0] * count, threading.Barrier(count)
        over = [False] * count

        def call(caller: int) -> None:
            index = caller
            model.run_joined(self._batch(index, joined))  # not counted
            index += count
            ready.wait()
            begin = last = time.perf_counter()
            while last - begin < seconds or len(counted[caller]) < 2:
                model.run_joined(self._batch(index, joined))
                index += count
                now = time.perf_counter()
                counted[caller].append(now - last)
                last = now
            rates[caller] = len(counted[caller]) * joined / (last - begin)
            over[caller] = True
            while not all(over):  # a caller that ends early keeps the processor as busy as before
                model.run_joined(self._batch(index, joined))
            done.wait()

        _at_once([partial(call, caller) for caller in range(count)])
        return sum(rates), [run for runs in counted for run in runs]


def _at_once(calls: list[Any]) -> None:
    """Call all in threads of their own, and wait. Raises what the first of them raised."""
    problems: list[BaseException] = []

    def guarded(call: Any) -> None:
        try:
            call()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not problems:
            thread.join(0.05)
    if problems:
        raise problems[0]


def _resident_bytes() -> int:
    """The memory that this process holds, from Linux; 0 elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


def answers(verify: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The function that answering.py calls for each request."""
    loads = Loads(verify)
    ways = {"open": loads.open, "close": loads.close, "closed": loads.closed, "open_loop": loads.open_loop}
    return lambda request: ways[request["do"]](request)
