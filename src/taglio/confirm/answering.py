"""Time delivered models as requests ask, until standard input ends: one JSON object a line in, one answer or `problem`
a line out.

Runs as a script in a process of its own, with two paths as arguments: the `verify.py` that is delivered, and a folder
of samples to run. Imports NumPy and the runtimes only, through verify.py. A request says what to `do`:

* `opening`: open the `folders` afresh, in this order, and time one run of each in turn, for about `seconds`. `pairs`
  are the least and the most turns. The answer has the `seconds` of each timed run, a list for each folder, and the
  processor seconds that this process has `worked`.
* `open`: open the `folders`, beside those that are open. The answer has the bytes of `memory` that each took.
* `close`: close all folders.
* `closed`: in each of `rounds`, the `folders` take turns in a new random order. In its turn a folder has as many
  callers as runs at once, who ask again as soon as they are answered, for `seconds`. The answer has, for each folder
  and round, the items per second (`per_s`) and the seconds of each run (`runs`).
* `open_loop`: `count` requests of one item arrive at `folder` at random (exponential gaps), `per_s` on average. The
  answer has the `seconds` of each from its arrival to its answer, waiting included.

What is random is drawn from the `seed` of the request.
"""

import gc
import importlib.util
import json
import random
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

# A run that follows another model's run finds that model in the caches, and takes 330 µs instead of 130. So the first
# runs of a turn are not counted: at most _UNCOUNTED, and only as many as take _UNCOUNTED_S seconds.
_UNCOUNTED, _UNCOUNTED_S = 3, 0.04


class Models:
    """The inputs, and the models that are held open."""

    def __init__(self, verify: Any, samples: Path) -> None:
        self._verify = verify
        self._open: dict[str, Any] = {}
        self._feeds: list[dict[str, Any]] = [inputs for inputs, _ in verify.read_samples(samples)]
        shapes = [str({name: value.shape for name, value in feed.items()}) for feed in self._feeds]
        by_frequency = sorted(range(len(shapes)), key=lambda index: -shapes.count(shapes[index]))
        self._frequent = [self._feeds[index] for index in by_frequency]

    def opening(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open each folder once, then time one run of each in turn, in an order that is drawn anew for each turn."""
        models = [self._verify.DeployedModel(folder) for folder in request["folders"]]
        uncounted = [self._first_runs(model) for model in models]
        least, most = request["pairs"]
        seconds: list[list[float]] = [[] for _ in models]
        draw, order = random.Random(request["seed"]), list(range(len(models)))
        end = time.perf_counter() + request["seconds"]
        for turn in range(most):
            if turn >= least and time.perf_counter() > end:
                break
            feed = self._feeds[turn % len(self._feeds)]
            draw.shuffle(order)
            for index in order:
                run = models[index].run
                for _ in range(uncounted[index]):
                    run(feed)
                start = time.perf_counter()
                run(feed)
                seconds[index].append(time.perf_counter() - start)
        return {"seconds": seconds, "worked": time.process_time()}

    def _first_runs(self, model: Any) -> int:
        """Run a model once on each input, and on the last again; returns how many runs of its turns are not counted."""
        for feed in self._feeds:
            model.run(feed)
        start = time.perf_counter()
        model.run(self._feeds[-1])
        return min(_UNCOUNTED, int(_UNCOUNTED_S / max(time.perf_counter() - start, 1e-9)))

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open folders, and run each of them once on every input."""
        memory = []
        for folder in request["folders"]:
            before = self._verify.memory_bytes("VmRSS:") or 0
            callers = self._verify.Callers(folder)
            _at_once([partial(self._warm, callers.model)] * callers.model.way["at_once"])
            self._open[folder] = callers
            memory.append(max(0, (self._verify.memory_bytes("VmRSS:") or 0) - before))
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
            callers.submit(self._frequent[index % len(self._frequent)]).add_done_callback(answered(index, arrival_s))
        for _ in range(request["count"]):
            left.acquire()
        return {"seconds": seconds}

    def _batch(self, index: int, joined: int) -> list[dict[str, Any]]:
        """`joined` inputs of one shape, from the one at `index` on."""
        first = self._frequent[index % len(self._frequent)]
        same = [feed for feed in self._frequent if all(feed[name].shape == first[name].shape for name in first)]
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


def main() -> None:
    """Answer, with a collection of garbage between requests only: in a run it would count as the model's time."""
    path, samples = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("verify", path)
    assert spec is not None
    assert spec.loader is not None
    verify = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(verify)
    models = Models(verify, Path(samples))
    ways = {name: getattr(models, name) for name in ("opening", "open", "close", "closed", "open_loop")}
    gc.disable()
    for line in sys.stdin:
        try:
            request = json.loads(line)
            answer = ways[request["do"]](request)
        except Exception as error:  # whatever a runtime raises: the parent reports it
            answer = {"problem": f"{type(error).__name__}: {error}"}
        gc.collect()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
