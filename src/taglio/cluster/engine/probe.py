"""Measure links and the CPU cost of messages in one pass: nearly empty requests through the pipeline that answers real
ones. Plans nothing.

Two devices a and b get two pipelines of components that do almost nothing, on a, b and a again: one with a message each
way, whose bytes each request chooses (few, many there, or many back), and one with extra messages sent at once.

Links, by requests one after another: from the sending of the message there to the end of the last component on a, by
a's clock, so that no clocks are compared. These are two hops. Both latencies are assumed equal, and what many bytes add
is the bandwidth. A hop includes the engine's own time, and a minimal component at its end: a device that gets a message
runs a component next, and on a device that was idle even the smallest takes a while. Extra messages show, by b's clock,
how much later each arrives than the one before.

CPU costs, by as many requests in flight as fit, if a is the start device: the differences between the pipelines give
the cost of a message and of its bytes on sender and receiver, including handling, threads and processes. What a request
takes of the start device besides is part of receiving its answer.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from onnx.parser import parse_model

from taglio.cluster.devices import Cluster, Handling, Link
from taglio.cluster.engine.connect import Connection
from taglio.cluster.engine.deploy import open_components
from taglio.cluster.engine.pipeline import AnsweredRequest, Broken, Flight, RequestPipeline
from taglio.components.build import Manifest, write
from taglio.components.cut import Component
from taglio.cores import quota
from taglio.errors import BadDevice
from taglio.progress import Progress, reported
from taglio.scratch import scratch

# Requests in flight at once, and seconds for them, for requests one after another, and without requests.
_LANES, _LEAST_S, _SINGLE_S, _IDLE_S = 8, 2.0, 1.0, 0.5
# Extra messages sent at once.
_MORE = 2
# Numbers of a tensor of "few bytes".
_FEW = 8
_INPUT, _OUTPUT = "x", "y"
Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Probes:
    """What was measured of a cluster: its links, with their energy from the file, and by device the CPU cost of
    messages."""

    links: tuple[Link, ...]
    handling: dict[str, Handling]

    def measured(self, cluster: Cluster) -> Cluster:
        """The cluster with the links and costs as measured."""
        for link in self.links:
            cluster = cluster.with_link(link)
        return cluster.with_handling(self.handling)


@dataclass(frozen=True, slots=True)
class Seen:
    """A pipeline's answers to requests one after another, and with many in flight the seconds that each device is busy
    per request."""

    answers: Sequence[AnsweredRequest]
    busy_s: Mapping[str, float]

    def trips_s(self, source: str, target: str) -> list[float]:
        """Seconds from the sending of a message to `target` to the end of the last component on `source`."""
        trips_s = []
        for answer in self.answers:
            sent_s = min(hop.sent_s for hop in answer.hops if (hop.source, hop.target) == (source, target))
            trips_s.append(max(step.end_s for step in answer.steps if step.device == source) - sent_s)
        return trips_s

    def gap_s(self, source: str, target: str) -> float:
        """Seconds between the arrivals of messages that are sent at once."""
        gaps_s = []
        for answer in self.answers:
            read_s = [hop.read_s for hop in answer.hops if (hop.source, hop.target) == (source, target)]
            gaps_s.append((max(read_s) - min(read_s)) / (len(read_s) - 1))
        return median(gaps_s)


def probe(connection: Connection, cluster: Cluster, progress: Progress | None = None) -> Probes:
    """Probes of every link of `cluster`, and the CPU costs of the start device and of every device linked with it both
    ways; not of devices that are declared to be like another. Raises BadDevice for a device that is missing or stops
    answering."""
    try:
        return _measured(connection, cluster, progress)
    except Broken as error:
        raise BadDevice(f"while messages were measured, {error}: see taglio cluster status, and try again") from None


def _measured(connection: Connection, cluster: Cluster, progress: Progress | None) -> Probes:
    start = cluster.start
    names = sorted((device.name for device in cluster.devices if not device.like), key=lambda name: name != start)
    connection.need(names)
    given = {(link.source, link.target): link for link in cluster.links}
    pairs = [(a, b) for a, b in combinations(names, 2) if {(a, b), (b, a)} & given.keys()]
    links, handling, ours = list[Link](), dict[str, Handling](), list[tuple[float, ...]]()
    for a, b in reported(pairs, "probing", progress):
        there, back = _many(given.get((a, b), given.get((b, a)))), _many(given.get((b, a), given.get((a, b))))
        with _opened(connection, cluster, _parts(a, b)) as pipeline:
            few, far, near = _seen(pipeline), _seen(pipeline, there=there), _seen(pipeline, back=back)
        with _opened(connection, cluster, _parts(a, b, _MORE)) as pipeline:
            more = _seen(pipeline)
        for ends, many, count_bytes in (((a, b), far, there), ((b, a), near, back)):
            if ends in given:
                trips_s = few.trips_s(a, b), many.trips_s(a, b)
                links.append(fitted(given[ends], *trips_s, count_bytes, more.gap_s(a, b)))
        if a == start and {(a, b), (b, a)} <= given.keys():
            busy_s = [seen.busy_s for seen in (few, more, far, near)]
            mine, handling[b] = costs(busy_s, (a, b), (there, back))
            ours.append(mine)
    handling[start] = _bounded(np.median(ours, axis=0) if ours else np.zeros(4))
    return Probes(tuple(links), handling)


def costs(
    busy_s: Sequence[Mapping[str, float]], ends: tuple[str, str], sizes: tuple[int, int]
) -> tuple[tuple[float, ...], Handling]:
    """Seconds of the first of the two devices: per message sent and received, per byte sent and received; and the costs
    of the other device. `busy_s` are those of requests with few bytes, with more messages, and with the many bytes of
    `sizes` there and back."""
    (a, b), (there, back), (few, more, far, near) = ends, sizes, busy_s
    sent, received = ((more[device] - few[device]) / _MORE for device in (a, b))
    leaving, arriving = ((far[device] - few[device]) / there for device in (a, b))
    returned, restored = ((near[device] - few[device]) / back for device in (b, a))
    other = _bounded(np.array([few[b] - received, received, returned, arriving]))
    return (sent, few[a] - sent, leaving, restored), other


def fitted(planned: Link, few_s: Sequence[float], many_s: Sequence[float], count_bytes: int, gap_s: float) -> Link:
    """The link by seconds of trips with few bytes, and with `count_bytes` on this way."""
    few, many = median(few_s), median(many_s)
    # A terabit per second is indistinguishable from a copy within a process.
    speed = min(count_bytes / max(many - few, 1e-12), 1.25e11)
    return replace(planned, bandwidth_bytes_per_s=speed, latency_s=few / 2.0, gap_s=min(gap_s, few / 2.0))


def _bounded(seconds: np.ndarray) -> Handling:
    return Handling(*(max(cost, 0.0) for cost in seconds.tolist()))


def _many(link: Link | None) -> int:
    """Bytes of a message that keeps the link busy for 0.2 s, within limits."""
    assert link is not None, "the devices are linked one way at least"
    return int(np.clip(link.bandwidth_bytes_per_s * 0.2, 100_000, 1_000_000))


def _seen(pipeline: RequestPipeline, *, there: int = 0, back: int = 0) -> Seen:
    """Answers to requests one after another, and busy seconds with as many requests in flight as fit; `there` and
    `back` are bytes sent (0: almost none)."""
    feed, fewest = _feed(there, back), 16 if there or back else 50
    hosts = pipeline.deployment.hosts()
    shares = {name: min(1.0, host.call(quota).share) for name, host in hosts.items()}
    _answers(pipeline, feed, fewest, 0.0, _LANES)
    single = _answers(pipeline, feed, 5, _SINGLE_S)
    _, idle = _used(hosts, lambda: time.sleep(_IDLE_S))
    answers: list[AnsweredRequest] = []
    took_s, had = _used(hosts, lambda: answers.extend(_answers(pipeline, feed, fewest, _LEAST_S, _LANES)))
    # Idle work of a device is subtracted: with long transfers it would be most of the total. A quota stretches work.
    used_s = {name: max(had[name] - idle[name], 0.0) * took_s / len(answers) for name in hosts}
    return Seen(single, {name: used_s[name] / shares[name] for name in hosts})


def _used(hosts: Mapping[str, Any], meanwhile: Callable[[], object]) -> tuple[float, dict[str, float]]:
    """Seconds that `meanwhile` took, and the processors that each host used during it."""
    before, begun = {name: host.call(time.process_time) for name, host in hosts.items()}, time.monotonic()
    meanwhile()
    took_s = time.monotonic() - begun
    return took_s, {name: (host.call(time.process_time) - before[name]) / took_s for name, host in hosts.items()}


@contextmanager
def _opened(connection: Connection, cluster: Cluster, parts: Sequence[Component]) -> Iterator[RequestPipeline]:
    with scratch() as folder:
        manifest = write(folder, Manifest("0" * 64, (_INPUT,), (_OUTPUT,), ()), parts)
        deployment = open_components(connection, manifest, folder, cluster)
        with closing(RequestPipeline(deployment, _LANES, cluster.start)) as pipeline:
            yield pipeline


def _answers(
    pipeline: RequestPipeline, feed: Feed, fewest: int, least_s: float, in_flight: int = 1
) -> list[AnsweredRequest]:
    """Answers to at least `fewest` requests, for at least `least_s`, so many in flight at once."""
    begun = time.monotonic()
    flying, answers = deque[Flight](), list[AnsweredRequest]()
    while flying or not answers:
        while len(flying) < in_flight and (len(answers) + len(flying) < fewest or time.monotonic() - begun < least_s):
            flying.append(pipeline.send(feed))
        answers.append(pipeline.wait(flying.popleft(), patience_s=60.0))
    return answers


def _feed(there: int = 0, back: int = 0) -> Feed:
    """A request whose first component writes `there` bytes more, and its components on the other device `back`."""
    return {_INPUT: np.array([there // 4, back // 4, *[0] * (_FEW - 2)], np.float32)}


def _parts(first: str, other: str, more: int = 0) -> list[Component]:
    """Components x -> ... -> y: one on the first device, one plus `more` on the other device, each reading one more
    message, and one on the first device."""
    sent, last = ["a", *(f"a{index}" for index in range(more))], list[str]()
    parts = [_part("first", first, [_INPUT], sent, size=0)]
    for index, name in enumerate(sent):
        made = [f"b{index}"]
        parts.append(_part(f"{index}-there", other, [name, *last], made, size=1))
        last = made
    return [*parts, _part("last", first, last, [_OUTPUT])]


def _part(name: str, device: str, reads: Sequence[str], writes: Sequence[str], *, size: int = 2) -> Component:
    """A component whose outputs are each the sum of the first numbers of its inputs, with as many zeros behind as the
    number at `size` says."""
    inputs, outputs = (", ".join(f"float[{tensor}_size] {tensor}" for tensor in side) for side in (reads, writes))
    firsts = " ".join(f"{tensor}_first = Slice ({tensor}, begin, end)" for tensor in reads)
    summed = ", ".join(f"{tensor}_first" for tensor in reads)
    padded = " ".join(f"{tensor} = Pad (sum, ends)" for tensor in writes)
    proto = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        part ({inputs}) => ({outputs}) <
            int64[1] begin = {{0}}, int64[1] end = {{{_FEW}}},
            int64[1] at = {{{size}}}, int64[1] behind = {{{size + 1}}}
        > {{
            {firsts}
            sum = Sum ({summed})
            number = Slice (sum, at, behind)
            count = Cast <to = 7> (number)
            ends = Concat <axis = 0> (begin, count)
            {padded}
        }}"""
    )
    shapes = dict.fromkeys([*reads, *writes], (_FEW,))
    return Component(name, device, (), proto, tuple(reads), tuple(writes), shapes)
