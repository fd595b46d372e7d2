"""Which devices and links are lost: found by connecting over each link, and counted as back once they have held.

A cut link raises no error: TCP waits for packets that never come. What is tried is a connection to the engine's port on
the other device, which its kernel accepts, so that a busy processor delays nothing. A connection needs both directions:
a link cut in one is lost in both. Makes no plan.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from taglio.cluster.devices import Cluster
from taglio.cluster.engine.connect import Connection, addresses, on
from taglio.cluster.engine.device import Address, failure
from taglio.cluster.engine.library import ray

# The two ends, in either order.
Pair = frozenset[str]
# How long a link must hold before it is used again; after each further loss twice as long, up to 16 times. What comes
# and goes every few seconds would otherwise change the plan each time, and lose requests' seconds at each loss.
_HOLD_S = 30.0
# TCP repeats its first packet after one second, so that one lost packet is no lost link.
_TRY_S = 2.0


class Links:
    """The lost devices and links of a cluster."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._losses = Counter[Pair]()
        # A task per lost link, on one of its ends, that returns when the link has held.
        self._holding: dict[Pair, Any] = {}

    def look(self, cluster: Cluster, names: Collection[str], hosts: Mapping[str, Any]) -> set[str]:
        """Try the links between the devices `names`, from this process and from `hosts`, actors by device. Returns the
        devices that are dead, that this process does not reach, or whose host gives no answer; lost links are
        remembered."""
        linked = pairs(cluster)
        here, there = self._connection.here.name, self._connection.addresses()
        others = {name: there[name] for name in names if name in there and name != here}
        unreached = untouched(others)
        self._lose(Pair((here, name)) for name, silent in unreached.items() if silent)
        reached = [name for name in others if name in hosts and name not in unreached]
        calls = {}
        for name in reached:
            neighbours = {other: address for other, address in others.items() if Pair((name, other)) in linked}
            calls[name] = hosts[name].call.remote(untouched, neighbours)
        answers = set[str]()
        done, _ = ray().wait([*calls.values()], num_returns=len(calls), timeout=10.0) if calls else ([], [])
        for name in [name for name, call in calls.items() if call in done]:
            with suppress(Exception):  # its host has ended
                failures = ray().get(calls[name])
                self._lose(Pair((name, other)) for other, silent in failures.items() if silent)
            answers.add(name)
        return {name for name in names if name not in there} | {*unreached} | {*reached} - answers

    def lost(self) -> frozenset[Pair]:
        """The links that must not be used: those that were lost and have not held since."""
        for pair, task in list(self._holding.items()):
            if ray().wait([task], timeout=0)[0]:
                del self._holding[pair]
                try:
                    ray().get(task)
                except Exception:  # the device that watched it was lost
                    self._watch(pair)
        return frozenset(self._holding)

    def close(self) -> None:
        """Watch no link any more."""
        for task in self._holding.values():
            with suppress(Exception):
                ray().cancel(task, force=True)

    def _lose(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            if pair not in self._holding:
                self._losses[pair] += 1
                self._watch(pair)

    def _watch(self, pair: Pair) -> None:
        """Start to watch a lost link, from this device if it is an end: the other may be out of reach."""
        one, other = sorted(pair, key=lambda name: (name != self._connection.here.name, name))
        hold_s = _HOLD_S * min(2 ** (self._losses[pair] - 1), 16)
        task = ray().remote(held_for).options(**on(one), max_retries=0)
        self._holding[pair] = task.remote(other, hold_s)


def pairs(cluster: Cluster) -> set[Pair]:
    """The devices that are connected, in either direction."""
    return {Pair((link.source, link.target)) for link in cluster.links if link.source != link.target}


def without(cluster: Cluster, gone: Iterable[str], lost: Iterable[Pair]) -> Cluster:
    """`cluster` without lost devices and links. Raises BadOption for its start device."""
    for name in gone:
        cluster = cluster.without(name)
    return replace(cluster, links=tuple(link for link in cluster.links if Pair((link.source, link.target)) not in lost))


def untouched(others: Mapping[str, Address]) -> dict[str, bool]:
    """Run on a device: which others it cannot connect to, and whether they were silent; one whose machine refuses the
    connection has ended, and its link is whole."""
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        failures = zip(others, pool.map(partial(failure, patience_s=_TRY_S), others.values()), strict=True)
        return {name: not isinstance(error, ConnectionError) for name, error in failures if error is not None}


def held_for(other: str, hold_s: float) -> None:
    """Run on a device: return once it could connect to another for `hold_s` without a failure."""
    since_s: float | None = None
    while since_s is None or time.monotonic() - since_s < hold_s:
        address = addresses(ray().nodes()).get(other)  # a device that was started again has another port
        whole = address is not None and failure(address, _TRY_S) is None
        since_s = (since_s or time.monotonic()) if whole else None
        time.sleep(1.0)  # a few packets a second
