"""Run the model of this directory on its samples and compare the answers with those expected.

Needs Python, NumPy and the runtime that deploy.json names, nothing else. To use the model in a program of your own:

    from verify import DeployedModel
    outputs = DeployedModel("path/of/this/directory").run({"input": array})

To answer many requests in the way that deploy.json names:

    from verify import Callers
    with Callers("path/of/this/directory") as callers:
        answers = [callers.submit(feed) for feed in requests]
        outputs = answers[0].result()

Exit code 0: all answers agree. 5: files, settings or answers differ from those delivered. 6: nothing can be compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

HOLDS, BROKEN, UNKNOWN = 0, 5, 6
Compute = Callable[[Mapping[str, Any]], list[Any]]
MANIFEST, SAMPLES = "deploy.json", "samples.json"
# Relative L2 that another order of float sums explains.
TOLERANCE = 1e-5


class Changed(Exception):
    """A file or a setting is not what was delivered."""


class DeployedModel:
    """The model of a folder, opened with the settings that it was measured with. Several threads may call it: as many
    runs as the way of deploy.json names go on at once, others wait."""

    def __init__(self, folder: Path | str) -> None:
        """Raises Changed if deploy.json is damaged, or if the runtime does not apply a setting: it may then answer
        otherwise, or at another speed."""
        self.folder = Path(folder)
        self.manifest = _manifest(self.folder)
        self.inputs, self.outputs, self.way = (self.manifest[name] for name in ("inputs", "outputs", "way"))
        parts = self.manifest["components"]
        self._components = [
            (part, taking_turns(_OPENERS[part["runtime"]](self.folder, part, self.way))) for part in parts
        ]

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs by name. `feed` maps each input's name to an array of its type and shape."""
        tensors = dict(feed)
        for part, compute in self._components:
            values = compute({name: tensors[name] for name in part["inputs"]})
            tensors.update(zip(part["outputs"], values, strict=True))
        return {name: tensors[name] for name in self.outputs}

    def run_joined(self, feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The outputs of each of `feeds`, computed in one run: their arrays are joined along the first dimension."""
        if len(feeds) == 1:
            return [self.run(feeds[0])]
        together = self.run({name: np.concatenate([feed[name] for feed in feeds]) for name in self.inputs})
        ends = np.cumsum([len(feed[self.inputs[0]]) for feed in feeds])[:-1]
        parts = {name: np.split(value, ends) for name, value in together.items()}
        return [{name: values[index] for name, values in parts.items()} for index in range(len(feeds))]


class Callers:
    """Threads that answer requests in the way of deploy.json: as many runs at once, and in a run as many of the waiting
    requests as may be joined. A request never waits for others to come. A context manager."""

    def __init__(self, folder: Path | str) -> None:
        """Raises as `DeployedModel`."""
        self.model = DeployedModel(folder)
        self._waiting: deque[tuple[Mapping[str, Any], Future[dict[str, Any]]]] = deque()
        self._changed, self._closed = threading.Condition(), False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self.model.way["at_once"])]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, feed: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """The answer to one request, as a future. Raises RuntimeError once these callers are closed."""
        answer: Future[dict[str, Any]] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("these callers are closed")
            self._waiting.append((feed, answer))
            self._changed.notify()
        return answer

    def close(self) -> None:
        """Answer what was submitted, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while batch := self._next():
            try:
                answers = self.model.run_joined([feed for feed, _ in batch])
            except Exception as error:  # of any kind: it is the runtime's, and belongs to those who asked
                for _, answer in batch:
                    answer.set_exception(error)
            else:
                for (_, answer), outputs in zip(batch, answers, strict=True):
                    answer.set_result(outputs)

    def _next(self) -> list[tuple[Mapping[str, Any], Future[dict[str, Any]]]]:
        """The requests of the next run: the first that waits, and those after it that have its shapes. Empty at the
        end."""
        with self._changed:
            while True:
                while not self._waiting:
                    if self._closed:
                        return []
                    self._changed.wait()
                batch: list[tuple[Mapping[str, Any], Future[dict[str, Any]]]] = []
                while self._waiting and len(batch) < self.model.way["joined"]:
                    if batch and _shapes(self._waiting[0][0]) != _shapes(batch[0][0]):
                        break
                    request = self._waiting.popleft()
                    if request[1].set_running_or_notify_cancel():
                        batch.append(request)
                if batch:
                    return batch


def _shapes(feed: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.shape(value)[1:] for name, value in feed.items()}


def taking_turns(computes: Sequence[Compute]) -> Compute:
    """One function that hands each call to the next free function of `computes`, each of which serves one caller at a
    time."""
    free: SimpleQueue[Compute] = SimpleQueue()
    for runner in computes:
        free.put(runner)

    def compute(feed: Mapping[str, Any]) -> list[Any]:
        mine = free.get()
        try:
            return mine(feed)
        finally:
            free.put(mine)

    return compute


def changed_files(folder: Path) -> list[str]:
    """The delivered files that are missing or differ from their SHA-256. Raises Changed if deploy.json is damaged."""
    manifest = _manifest(folder)
    hashes = manifest["sha256"]
    unknown = {part[kind] for part in manifest["components"] for kind in ("model", "settings")} - set(hashes)
    if unknown:
        raise Changed(f"{MANIFEST} has no hash of {', '.join(sorted(unknown))}: copy the directory again")
    return [name for name, delivered in hashes.items() if _sha256(folder / name) != delivered]


def _manifest(folder: Path) -> dict[str, Any]:
    """The contents of deploy.json. Raises Changed if a field is missing."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        fields = {name: manifest[name] for name in ("inputs", "outputs", "sha256", "way")}
        required = ("runtime", "model", "settings", "inputs", "outputs")
        parts = [{**part, **{name: part[name] for name in required}} for part in manifest["components"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Changed(f"{MANIFEST} is damaged ({type(error).__name__}: {error}): copy the directory again") from None
    return {**fields, "components": parts}


def difference(expected: Any, answer: Any) -> float:
    """Relative L2 distance of float arrays, the share of differing values of other types; infinite if shapes, types, or
    the places of NaN and infinity differ."""
    expected, answer = np.asarray(expected), np.asarray(answer)
    if expected.shape != answer.shape or (expected.dtype.kind == "f") != (answer.dtype.kind == "f"):
        return np.inf
    if expected.dtype.kind != "f":
        return float(np.mean(expected != answer)) if expected.size else 0.0
    expected, answer = expected.astype(np.float64), answer.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], answer[~finite], equal_nan=True) or not np.isfinite(answer[finite]).all():
        return np.inf
    distance = np.sqrt(np.sum((expected[finite] - answer[finite]) ** 2))
    return float(distance / max(np.sqrt(np.sum(expected[finite] ** 2)), 1e-30))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()


def _open_onnxruntime(folder: Path, part: Mapping[str, Any], way: Mapping[str, Any]) -> list[Compute]:
    import onnxruntime

    settings = json.loads((folder / part["settings"]).read_text())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, settings["graph_optimization_level"])
    options.intra_op_num_threads = settings["intra_op_num_threads"]
    options.inter_op_num_threads = settings["inter_op_num_threads"]
    for key, value in settings["config_entries"].items():
        options.add_session_config_entry(key, value)
    # A run of one thread computes in its caller's thread, so one session serves all callers and holds the weights once.
    # With several threads, each run has a session with its own thread pool, unless all runs share a pool.
    shares_session = way["shared"] or options.intra_op_num_threads == 1
    providers = [tuple(provider) for provider in settings["providers"]]
    sessions = [
        onnxruntime.InferenceSession(str(folder / part["model"]), options, providers=providers)
        for _ in range(1 if shares_session else way["at_once"])
    ]
    providers_used = sessions[0].get_providers()
    for name, _ in settings["providers"]:
        _require(name in providers_used, f"onnxruntime does not use {name}: it has {', '.join(providers_used)}")

    def compute(session: Any) -> Compute:
        return lambda feed: session.run(part["outputs"], feed)

    return [compute(sessions[index % len(sessions)]) for index in range(way["at_once"])]


def _open_openvino(folder: Path, part: Mapping[str, Any], way: Mapping[str, Any]) -> list[Compute]:
    import openvino

    properties = json.loads((folder / part["settings"]).read_text())
    compiled = openvino.Core().compile_model(folder / part["model"], "CPU", properties)
    for name, wanted in properties.items():
        value = compiled.get_property(name)
        applied = value.get_type_name() if hasattr(value, "get_type_name") else str(value)
        _require(applied == str(wanted), f"openvino computes with {name}={applied}, not {wanted}, on this processor")
    ports = {name: port for port in compiled.outputs for name in port.get_names()}
    # The first array that OpenVINO is given initialises its bindings. Two threads that do so at once wait for each
    # other for ever (OpenVINO 2026.4).
    openvino.Tensor(np.zeros(1, np.float32))

    def compute(request: Any) -> Compute:
        def answer(feed: Mapping[str, Any]) -> list[Any]:
            results = request.infer(feed, share_inputs=True)
            return [np.array(results[ports[name]]) for name in part["outputs"]]

        return answer

    return [compute(compiled.create_infer_request()) for _ in range(way["at_once"])]


_OPENERS = {"onnxruntime": _open_onnxruntime, "openvino": _open_openvino}


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise Changed(problem)


def read_samples(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The inputs of each sample in a directory, and the outputs to expect, both by name."""

    def arrays(files: Mapping[str, str]) -> dict[str, Any]:
        return {name: _load_array(folder / Path(file).name) for name, file in files.items()}

    for sample in json.loads((folder / SAMPLES).read_text()):
        yield arrays(sample["inputs"]), arrays(sample["outputs"])


def _load_array(path: Path) -> Any:
    """The array in a .npy file; text as objects, as runtimes take it."""
    values = np.load(path, allow_pickle=False)
    return values.astype(object) if values.dtype.kind == "U" else values


def _check(folder: Path, samples: Path) -> tuple[list[str], float | None]:
    """The differences, one line each, and the largest distance of an answer (None if nothing was run)."""
    changed = changed_files(folder)
    if changed:
        return [f"changed or missing: {', '.join(changed)}: copy the directory again"], None
    model, worst, problems = DeployedModel(folder), 0.0, []
    for number, (inputs, outputs) in enumerate(read_samples(samples)):
        answers = model.run(inputs)
        for name, expected in outputs.items():
            distance = difference(expected, answers[name])
            worst = max(worst, distance)
            if not distance <= TOLERANCE:
                problems.append(f"sample {number}: output {name} differs by {distance:.2e} (limit {TOLERANCE:.0e})")
    return problems, worst


def memory_bytes(kind: str) -> int | None:
    """The memory that this process holds ("VmRSS:") or held at most ("VmHWM:"), from Linux; None elsewhere. What
    `resource` reports would include the program that started this one."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(kind)), None)


def main() -> int:
    """Check the folder of this file as the command line asks; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare this directory's model with the answers delivered beside it.")
    parser.add_argument("--samples", type=Path, help="directory of other samples (default: samples/ beside this file)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    folder = Path(__file__).resolve().parent
    samples = options.samples or folder / "samples"
    if not (samples / SAMPLES).is_file():
        print("no samples were delivered: nothing to compare")
        return UNKNOWN
    try:
        problems, worst = _check(folder, samples)
    except Changed as error:
        problems, worst = [str(error)], None
    except Exception as error:  # of any kind: it is the runtime's, or of files that do not fit each other
        problems, worst = [f"cannot be run: {type(error).__name__}: {error}"], None
    if options.json:
        print(json.dumps({"problems": problems, "worst": worst, "peak_memory_bytes": memory_bytes("VmHWM:")}))
    else:
        print("\n".join(problems) or f"all answers agree: at most {worst or 0.0:.1e} off (limit {TOLERANCE:.0e})")
    return BROKEN if problems else HOLDS


if __name__ == "__main__":
    sys.exit(main())
