"""Turn labels and copies into the components, transfers and times of one request. Chooses nothing; see simulate.py.

A component is the blocks of one device and level. A block's level is the least that is not below the one given by the
plan (0 if none), not below the level of a block on the same device that it reads from, and above that of a block on
another device. So a path that leaves a device and returns ends in another component, a higher level parts blocks whose
outputs should leave earlier, and blocks that do not depend on each other can be brought together. A component reads
only from lower levels or from itself, so components cannot wait for each other in a cycle.

A change of type is paid where it happens: a float value is quantised once by the component that writes it if anything
takes its int8 copy, and by each component that takes the float copy and reads int8; each float reader of an int8 copy
dequantises for itself. An input sent as int8 is quantised by a separate component on the start device, and an output
that arrives as int8 is dequantised by another. On one device a value passes between components as int8 if it is written
as int8 or if all its readers there read int8.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.copies import at_home, serve
from taglio.cluster.planning.problem import CALLER, SOURCE, Copies, Kind, Totals
from taglio.cluster.planning.resources import link_tables
from taglio.cluster.planning.simulate import ComponentTask, Pipeline, Transfer
from taglio.model.graph import Graph


def levels(sources: Sequence[Sequence[int]], places: Sequence[Hashable], least: Sequence[int]) -> list[int]:
    """Level of every node; `sources` are the earlier nodes that each reads from, `places` their devices, `least`
    the plan's levels."""
    level: list[int] = []
    for read, here, lowest in zip(sources, places, least, strict=True):
        level.append(max(lowest, max((level[source] + (places[source] != here) for source in read), default=0)))
    return level


def components(graph: Graph, devices: Mapping[str, str], least: Mapping[str, int] | None = None) -> dict[str, str]:
    """Component of every block, as "index-device", numbered in an order in which components can run; `least` are the
    plan's levels where not 0."""
    tensors = graph.tensor_map()
    index = {block.name: position for position, block in enumerate(graph.blocks)}
    sources = [
        [index[source] for name in block.inputs if (source := tensors[name].producer) is not None]
        for block in graph.blocks
    ]
    places = [devices[block.name] for block in graph.blocks]
    least_levels = [(least or {}).get(block.name, 0) for block in graph.blocks]
    key = {
        block.name: (level, place)
        for block, level, place in zip(graph.blocks, levels(sources, places, least_levels), places, strict=True)
    }
    label = {component: f"{position}-{component[1]}" for position, component in enumerate(sorted(set(key.values())))}
    return {name: label[key[name]] for name in sorted(key, key=key.__getitem__)}


def pipelines(assembled: Assembled, totals: Totals) -> list[Pipeline]:
    """The pipeline of one request of every model."""
    return [Scheduler(assembled, model).placed(totals) for model in range(len(assembled.workloads))]


class Scheduler:
    """Builds pipelines for one model of a problem, repeatedly and fast."""

    def __init__(self, assembled: Assembled, model: int) -> None:
        problem, cluster = assembled.problem, assembled.cluster
        values = problem.values
        self.problem, self.nodes = problem, assembled.nodes(model)
        self.values = np.flatnonzero(values.model == model)
        edges = np.flatnonzero(values.model[values.edge_value()] == model)
        self.owner = np.repeat(np.arange(len(self.values)), np.diff(values.start)[self.values])
        self.called, self.written = values.readers[edges] == CALLER, values.producer[self.values] != SOURCE
        self.reader = np.where(self.called, 0, values.readers[edges] - self.nodes.start)
        self.producer = np.where(self.written, values.producer[self.values] - self.nodes.start, 0)
        self.sources: list[list[int]] = [[] for _ in self.nodes]
        for value, reader in zip(self.owner[~self.called].tolist(), self.reader[~self.called].tolist(), strict=True):
            if self.written[value]:
                self.sources[reader].append(int(self.producer[value]))
        self.names = tuple(device.name for device in cluster.devices)
        self.alphabetical = np.argsort(np.argsort(self.names))
        self.home = self.names.index(cluster.start)
        latency_s, byte_s, _, gap_s = link_tables(cluster)
        self.gap_s, self.delay_s, self.byte_s = gap_s.tolist(), (latency_s - gap_s).tolist(), byte_s.tolist()
        self.overhead_s, self.devices = assembled.overhead_s[model], cluster.devices
        self.seconds = problem.seconds.reshape(len(problem.nodes), -1)[self.nodes.start : self.nodes.stop]
        self.reads, self.writes = (
            np.array([int(kind) for kind in kinds])
            for kinds in ([form.reads for form in problem.forms], [form.writes for form in problem.forms])
        )

    def placed(self, totals: Totals) -> Pipeline:
        """The pipeline of one request of a placement."""
        return self.schedule(totals.labels, totals.copies, totals.levels)

    def schedule(
        self, labels: Sequence[int] | np.ndarray, copies: np.ndarray, least: Sequence[int] | np.ndarray = ()
    ) -> Pipeline:
        """The pipeline of one request under `labels` (of all nodes) and `copies` (value, device); `least` are the
        plan's levels of all nodes, or empty."""
        problem, values, mine = self.problem, self.problem.values, slice(self.nodes.start, self.nodes.stop)
        own_labels = np.asarray(labels)[mine]
        device, form = np.divmod(own_labels, len(problem.forms))
        piece, device_of = self._components(device, np.asarray(least)[mine] if len(least) else np.zeros_like(device))
        last, seconds = len(device_of) - 1, self.overhead_s[device_of].astype(float)
        np.add.at(seconds, piece, self.seconds[np.arange(len(own_labels)), own_labels])
        # For values: the device and kind written; for edges: the device and kind read.
        owner, value = self.owner, self.values
        source = np.where(self.written, piece[self.producer], 0)
        kind = np.where(self.written, self.writes[form[self.producer]], int(Kind.FLOAT))
        whole, home = kind == Kind.INT8, device_of[source]
        target = np.where(self.called, last, piece[self.reader])
        int8 = ~self.called & (self.reads[form[self.reader]] == Kind.INT8)
        inside = (device_of[target] == home[owner]) & (self.called | (self.written[owner] & (target == source[owner])))
        # Readers of a value in one component are served together, those in the writer's own by what is at hand there.
        groups, member = np.unique(owner * (last + 1) + np.where(inside, source[owner], target), return_inverse=True)
        v, to = np.divmod(groups, last + 1)
        ints = np.bincount(member[int8], minlength=len(groups))
        floats = np.bincount(member, minlength=len(groups)) - ints
        by_writer, same_device, there = to == source[v], device_of[to] == home[v], device_of[to]
        stays = np.where(self.written[v] & (whole[v] | (floats == 0)), int(Copies.INT8), int(Copies.FLOAT))
        at_hand = np.where(by_writer, at_home(whole[v], ints), np.where(same_device, stays, copies[value[v], there]))
        changes = serve(whole[v], at_hand, ints, floats)
        np.add.at(seconds, to, changes.dequantized * values.dequantize_s[value[v], there])
        np.add.at(seconds, to, changes.quantized_there * values.quantize_s[value[v], there])
        sent_int8 = ~by_writer & (at_hand >= Copies.INT8) & ((ints > 0) | (changes.dequantized > 0))
        float_needed = (floats > 0) | changes.quantized_there
        sent_float = ~by_writer & (at_hand & int(Copies.FLOAT) > 0) & float_needed & ~(same_device & ~self.written[v])
        quantised = np.zeros(len(value), dtype=bool)
        quantised[v[changes.quantized]] = True
        here = np.flatnonzero(quantised)
        np.add.at(seconds, source[here], values.quantize_s[value[here], home[here]])
        used = np.ones(last + 1, dtype=bool)
        used[0], used[last] = bool((~self.written[here]).any()), bool(sent_int8[to == last].any())
        number = np.cumsum(used) - 1
        sends: dict[tuple[int, int, bool], list[int]] = {}
        for which, narrow in ((sent_int8, True), (sent_float, False)):
            for group in np.flatnonzero(which).tolist():
                sends.setdefault((int(v[group]), int(there[group]), narrow), []).append(int(to[group]))
        sending_s, transfers = np.zeros(last + 1), []
        for (index, end, narrow), pieces in sorted(sends.items()):
            ends, made_by = (int(home[index]), end), int(source[index]) if self.written[index] or narrow else None
            targets = tuple(int(number[reader_piece]) for reader_piece in pieces if reader_piece != last or narrow)
            writer = None if made_by is None else int(number[made_by])
            transfers.append(self._transfer(int(value[index]), ends, writer, targets, int8=narrow))
            if made_by is not None and ends[0] != end:
                sending_s[made_by] += self.devices[ends[0]].sending_s(transfers[-1].bytes)
        # Tensors leave in the order in which they are needed, as the engine sends them.
        count = int(used.sum())
        transfers.sort(key=lambda transfer: min(transfer.targets, default=count))
        tasks = self._tasks(piece, device_of, seconds, sending_s)
        return Pipeline(tuple(tasks[component] for component in np.flatnonzero(used).tolist()), tuple(transfers))

    def _components(self, device: np.ndarray, least: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each node's component, and each component's device, in running order: the first quantises inputs, the last
        dequantises outputs."""
        level = np.array(levels(self.sources, device.tolist(), least.tolist()), dtype=np.intp)
        keys, piece = np.unique(level * len(self.names) + self.alphabetical[device], return_inverse=True)
        device_of = np.full(len(keys) + 2, self.home)
        device_of[piece + 1] = device
        return piece + 1, device_of

    def _transfer(
        self, value: int, ends: tuple[int, int], source: int | None, targets: tuple[int, ...], *, int8: bool
    ) -> Transfer:
        """A value sent from one device to another."""
        values, (start, end) = self.problem.values, ends
        size = float((values.int8_bytes if int8 else values.float_bytes)[value])
        return Transfer(
            name=f"{values.names[value]} ({'int8' if int8 else 'float32'})",
            source=source,
            targets=targets,
            link=(self.names[start], self.names[end]),
            busy_s=self.gap_s[start][end] + size * self.byte_s[start][end],
            delay_s=self.delay_s[start][end],
            bytes=size,
            receiving_s=self.devices[end].receiving_s(size) if start != end else 0.0,
            value=value,
            int8=int8,
        )

    def _tasks(
        self, piece: np.ndarray, device_of: np.ndarray, seconds: np.ndarray, sending_s: np.ndarray
    ) -> list[ComponentTask]:
        """All components, with their blocks."""
        last, tasks = len(device_of) - 1, []
        nodes: list[list[int]] = [[] for _ in device_of]
        for node, component in zip(self.nodes, piece.tolist(), strict=True):
            nodes[component].append(node)
        for component, device in enumerate(device_of.tolist()):
            name, where = {0: "input", last: "output"}.get(component, str(component - 1)), self.names[device]
            # Seconds of blocks may be negative, but no component takes less than 0 s.
            taken_s, sent_s = max(0.0, float(seconds[component])), float(sending_s[component])
            tasks.append(ComponentTask(f"{name}-{where}", where, taken_s, sent_s, tuple(nodes[component])))
        return tasks
