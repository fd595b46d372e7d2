"""Measure the CPU cost per message on sender and receiver, and per request on the start device: nearly empty requests
through the pipeline that answers real ones. Plans nothing.

Uses pipelines of components that do almost nothing: one component on the start device; three, on the start device,
another device and the start device again, with one message each way; the same with extra messages sent at once; and
with many bytes there, or back. Their differences give the cost of a message and of its bytes on sender and receiver,
including handling, threads and processes. The cost of a request besides its component is higher if the component has
filled the processor's caches, and the component is slower if the request has: both are measured with a component that
works like a network, beside its runs without requests.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx.parser import parse_model

from taglio.cluster.devices import Cluster, Handling
from taglio.cluster.engine.connect import Connection
from taglio.cluster.engine.deploy import Deployment, open_components
from taglio.cluster.engine.pipeline import Answer, Broken, Pipeline
from taglio.components.build import write
from taglio.components.cut import Component
from taglio.errors import BadDevice
from taglio.progress import Progress, reported
from taglio.runtimes.onnxruntime import NAME
from taglio.scratch import scratch

# Extra messages in the third pipeline; requests in flight where as many as possible are answered.
_MORE = 2
_LANES = 8
# A message of "many bytes" occupies the link for this long, within these sizes.
_LONG_S, _FEWEST_BYTES, _MOST_BYTES = 0.2, 100_000, 1_000_000
_LEAST_S, _FEWEST, _FEWEST_LONG, _PATIENCE_S = 2.0, 50, 16, 60.0
# Requests and runs without requests take turns.
_TURNS, _TURN_S = 12, 0.3
_SHARE_S = 0.5
# A device that used this share of its quota was limited only by the quota.
_SATURATED = 0.8
_FEW, _FLOAT_BYTES = 8, 4
# A working component's tensors, 6 MB each: with smaller ones a request seems to cost a quarter of what it does with a
# network.
_WIDE, _LONG = 400, 4000
_INPUT, _OUTPUT = "x", "y"


def handling(connection: Connection, cluster: Cluster, progress: Progress | None = None) -> dict[str, Handling]:
    """Handling by device: the start device and every device linked with it both ways, but those declared to be like
    another. Raises BadDevice if one stops answering."""
    try:
        return _measured(connection, cluster, progress)
    except Broken as error:
        raise BadDevice(f"while messages were measured, {error}: see taglio cluster status, and try again") from None


def _measured(connection: Connection, cluster: Cluster, progress: Progress | None) -> dict[str, Handling]:
    start = cluster.start
    others = [device.name for device in cluster.devices if device.name != start and not device.like]
    others = [name for name in others if cluster.link(start, name) and cluster.link(name, start)]
    costs, ours, shares = dict[str, Handling](), list[tuple[float, ...]](), list[float]()
    with scratch() as folder:
        request_s = _request_s(connection, cluster, folder / "working")
        alone = _taken(connection, cluster, folder / "alone", _parts(start))[start].seconds if others else 0.0
        for name in reported(others, "measuring messages", progress):
            there, back = _many(cluster, start, name), _many(cluster, name, start)
            ways = {
                "few": (_parts(start, name), _FEWEST),
                "more": (_parts(start, name, _MORE), _FEWEST),
                "there": (_parts(start, name, there=there), _FEWEST_LONG),
                "back": (_parts(start, name, back=back), _FEWEST_LONG),
            }
            uses_by_way = {
                way: _taken(connection, cluster, folder / f"{name}-{way}", parts, fewest)
                for way, (parts, fewest) in ways.items()
            }
            few, more, far, near = ({at: use.seconds for at, use in uses.items()} for uses in uses_by_way.values())
            sent, received = ((more[device] - few[device]) / _MORE for device in (start, name))
            leaving, arriving = ((far[device] - few[device]) / there for device in (start, name))
            returned, restored = ((near[device] - few[device]) / back for device in (name, start))
            ours.append((sent, few[start] - alone - sent, leaving, restored))
            shares += [uses[start].share for uses in uses_by_way.values()]
            theirs = np.median([uses[name].share for uses in uses_by_way.values()])
            costs[name] = _bounded([few[name] - received, received, returned, arriving] / theirs)
    mine = np.median(ours, axis=0) / np.median(shares) if ours else np.zeros(4)
    costs[start] = replace(_bounded(mine), request_s=request_s)
    return costs


def _bounded(seconds: np.ndarray) -> Handling:
    return Handling(*(max(cost, 0.0) for cost in seconds.tolist()))


def _many(cluster: Cluster, source: str, target: str) -> int:
    """Bytes of a message that keeps the link busy for a while."""
    link = cluster.link(source, target)
    assert link is not None
    return int(np.clip(link.bandwidth_bytes_per_s * _LONG_S, _FEWEST_BYTES, _MOST_BYTES))


def _request_s(connection: Connection, cluster: Cluster, folder: Path) -> float:
    """Seconds by which requests one after another take longer than runs of their component one after another."""
    parts = [_part("working", cluster.start, {_INPUT: _FEW}, {_OUTPUT: _FEW}, working=True)]
    deployment, pipeline = _opened(connection, cluster, folder, parts, lanes=1)
    host, more_s = deployment.hosts()[cluster.start], list[float]()
    try:
        _each_s(pipeline, _TURN_S)
        for _ in range(_TURNS):
            run_s = host.alone(parts[0].name, _TURN_S)
            more_s.append(_each_s(pipeline, _TURN_S) - run_s)
    finally:
        pipeline.close()
    return max(0.0, float(np.median(more_s)))


def _each_s(pipeline: Pipeline, least_s: float) -> float:
    """Mean seconds of a request, of those sent one after another for `least_s`."""
    begun, took_s, count = time.monotonic(), 0.0, 0
    while took_s < least_s:
        pipeline.wait(pipeline.send(_feed()), _PATIENCE_S)
        took_s, count = time.monotonic() - begun, count + 1
    return took_s / count


@dataclass(frozen=True, slots=True)
class _Use:
    """Use of a device by a request: processor seconds, and the processor seconds that the device has per second."""

    seconds: float
    share: float


def _taken(
    connection: Connection, cluster: Cluster, folder: Path, parts: Sequence[Component], fewest: int = _FEWEST
) -> dict[str, _Use]:
    """Use of each device per request, with as many requests in flight as fit."""
    deployment, pipeline = _opened(connection, cluster, folder, parts)
    try:
        hosts = deployment.hosts()
        spare = {name: host.call(_share, _SHARE_S) for name, host in hosts.items()}
        _stream(pipeline, fewest, 0.0)
        _, idle = _used(hosts, lambda: time.sleep(_SHARE_S))
        answers: list[Answer] = []
        took_s, had = _used(hosts, lambda: answers.extend(_stream(pipeline, fewest, _LEAST_S)))
    finally:
        pipeline.close()
    # Idle work of a device is subtracted: with long transfers it would be most of the total.
    each_s = {name: max(had[name] - idle[name], 0.0) * took_s / len(answers) for name in hosts}
    shares = {name: had[name] if had[name] > _SATURATED * spare[name] else spare[name] for name in hosts}
    return {name: _Use(each_s[name], shares[name]) for name in hosts}


def _share(least_s: float) -> float:
    """Share of a processor that a busy loop gets here: 0.5 under a quota of half a core."""
    start, before = time.monotonic(), time.process_time()
    while time.monotonic() - start < least_s:
        pass
    return (time.process_time() - before) / (time.monotonic() - start)


def _used(hosts: Mapping[str, Any], meanwhile: Callable[[], object]) -> tuple[float, dict[str, float]]:
    """Seconds that `meanwhile` took, and the processors that each host used during it."""
    before, begun = {name: host.call(time.process_time) for name, host in hosts.items()}, time.monotonic()
    meanwhile()
    took_s = time.monotonic() - begun
    return took_s, {name: (host.call(time.process_time) - before[name]) / took_s for name, host in hosts.items()}


def _opened(
    connection: Connection, cluster: Cluster, folder: Path, parts: Sequence[Component], lanes: int = _LANES
) -> tuple[Deployment, Pipeline]:
    folder.mkdir()
    runtimes = {device.name: device.runtime or NAME for device in cluster.devices}
    manifest = write(folder, "0" * 64, [_INPUT], [_OUTPUT], parts, runtimes=runtimes)
    deployment = open_components(connection, manifest, folder, cluster, lanes)
    return deployment, Pipeline(deployment, lanes, cluster.start)


def _stream(pipeline: Pipeline, fewest: int, least_s: float) -> list[Answer]:
    """Answers to as many requests in flight as fit: at least `fewest`, for at least `least_s`."""
    begun = time.monotonic()
    flying, answers = deque[int](), list[Answer]()
    while flying or not answers:
        while pipeline.room() and (len(answers) + len(flying) < fewest or time.monotonic() - begun < least_s):
            flying.append(pipeline.send(_feed()))
        answers.append(pipeline.wait(flying.popleft(), _PATIENCE_S))
    return answers


def _feed() -> dict[str, np.ndarray]:
    return {_INPUT: np.zeros(_FEW, np.float32)}


def _parts(start: str, other: str | None = None, more: int = 0, *, there: int = 0, back: int = 0) -> list[Component]:
    """Components x -> ... -> y: one on the start device, one plus `more` on the other device, each reading one more
    message, and one on the start device; `there` and `back` are bytes sent (0: almost none). One without `other`."""
    writes = [_OUTPUT] if other is None else ["a", *(f"a{index}" for index in range(more))]
    sizes = dict.fromkeys(writes, max(there // _FLOAT_BYTES, _FEW))
    parts = [_part("first", start, {_INPUT: _FEW}, sizes)]
    if other is not None:
        last: dict[str, int] = {}
        for index, (sent, size) in enumerate(sizes.items()):
            made = {f"b{index}": max(back // _FLOAT_BYTES, _FEW)}
            parts.append(_part(f"{index}-there", other, {sent: size} | last, made))
            last = made
        parts.append(_part("last", start, last, {_OUTPUT: _FEW}))
    return parts


def _part(
    name: str, device: str, reads: Mapping[str, int], writes: Mapping[str, int], *, working: bool = False
) -> Component:
    """A component that writes the sum of the first numbers of its inputs, padded with zeros to the size of each output;
    `reads` and `writes` are sizes. A working component first fills megabytes from its input, adds them up and
    multiplies a part of them, as the layers of a network do."""
    integers = {"begin": [0], "end": [_FEW]} | {f"{name}_behind": [0, size - _FEW] for name, size in writes.items()}
    nodes = [f"{name}_first = Slice ({name}, begin, end)" for name in reads]
    summed = [f"{name}_first" for name in reads]
    if working:
        integers |= {"row": [1, _FEW], "rows": [_WIDE, _LONG // _FEW], "first": [0, 0], "square": [_WIDE, _WIDE]}
        nodes += [f"flat = Reshape ({next(iter(reads))}, row)", "filled = Tile (flat, rows)", "once = Relu (filled)"]
        nodes += ["more = Add (once, filled)", "twice = Relu (more)", "layers = Add (twice, filled)"]
        nodes += ["matrix = Slice (layers, first, square)", "product = MatMul (matrix, matrix)"]
        nodes += [f"{tensor}_most = ReduceMax <keepdims = 0> ({tensor})" for tensor in ("layers", "product")]
        nodes.append("most = Add (layers_most, product_most)")
        summed.append("most")
    nodes.append(f"sum = Sum ({', '.join(summed)})")
    nodes += [f"{name} = Pad (sum, {name}_behind)" for name in writes]
    ends = (", ".join(f"float[{size}] {name}" for name, size in side.items()) for side in (reads, writes))
    weights = (f"int64[{len(numbers)}] {key} = {{{', '.join(map(str, numbers))}}}" for key, numbers in integers.items())
    graph = f"part ({next(ends)}) => ({next(ends)}) <{', '.join(weights)}> {{ {' '.join(nodes)} }}"
    proto = parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {graph}')
    return Component(name, device, (), proto, tuple(reads), tuple(writes))
