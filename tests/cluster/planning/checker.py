"""Check all that a plan states, from the readers' side and without the planner's arithmetic: its components and their
seconds, its timeline, busy seconds and rate, beside what the product checks.

The timeline is verified rather than simulated again: no device or link does two things at once, nothing starts before
its inputs have arrived, and every duration matches the tables.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from math import inf, prod

from taglio.cluster.devices import Cluster
from taglio.cluster.planning import check as product
from taglio.cluster.planning.check import FLOAT, INT8, Checks, Reading, close
from taglio.error.model import ErrorModel
from taglio.model.graph import Block, Graph, Tensor
from taglio.plan.check import PlanIsWrong
from taglio.plan.result import Crossing, Plan
from taglio.profile.result import Glue, Profile


def check(
    graph: Graph,
    profiles: Mapping[str, Profile],
    error: ErrorModel | None,
    cluster: Cluster,
    plan: Plan,
    *,
    max_noise: Mapping[str, float] | None = None,
) -> None:
    """Raise PlanIsWrong unless `cluster` can run the plan, it costs what it claims and it keeps its limits."""
    product.check(graph, error, cluster, plan, max_noise=max_noise)
    checks = AllChecks(graph, profiles, cluster, plan)
    checks.sizes()
    checks.pieces()
    checks.timeline()
    checks.totals()


def check_turns(
    graph: Graph, profiles: Mapping[str, Profile], error: ErrorModel | None, cluster: Cluster, plan: Plan
) -> None:
    """Raise PlanIsWrong unless the plan is right with each replica in the place of the device that it stands for:
    `check` it at every turn. `cluster` and `profiles` are of all replicas."""
    for request in range(max(len(use.machines) for use in plan.usage)):
        stands_for = {use.machines[request % len(use.machines)]: use.device for use in plan.usage}
        away = {name for use in plan.usage for name in use.machines} - set(stands_for)
        names = {each.name: stands_for.get(each.name, each.name) for each in cluster.devices if each.name not in away}
        devices = (replace(cluster.device(name), name=role) for name, role in names.items())
        links = (
            replace(each, source=names[each.source], target=names[each.target])
            for each in cluster.links
            if each.source in names and each.target in names
        )
        pins, off = (
            tuple((block, names[name]) for block, name in pairs if name in names)
            for pairs in (plan.limits.device_pins, plan.limits.device_exclusions)
        )
        check(
            graph,
            {role: profiles[name] for name, role in names.items()},
            error,
            replace(cluster, devices=tuple(devices), links=tuple(links)),
            replace(plan, limits=replace(plan.limits, device_pins=pins, device_exclusions=off)),
        )


class AllChecks(Checks):
    """The product's checks of one plan, and those of all costs."""

    def __init__(self, graph: Graph, profiles: Mapping[str, Profile], cluster: Cluster, plan: Plan) -> None:
        super().__init__(graph, cluster, plan)
        self.profiles = profiles
        self.level = {each.block: each.level for each in plan.placements}
        self._glue = {name: profile.glue_map() for name, profile in profiles.items()}
        self.times = {name: profile.block_times() for name, profile in profiles.items()}
        self.component = self._components()

    def size(self, tensor: str, kind: str) -> int:
        """Bytes of a tensor that is sent."""
        return self.tensors[tensor].int8_bytes if kind == INT8 else self.tensors[tensor].float_bytes

    def flow(self, tensor: str) -> str:
        """The tensor that first held a tensor's values, before movement."""
        producer = self.tensors[tensor].producer
        while producer is not None and self.blocks[producer].carries:
            tensor = self.blocks[producer].inputs[0]
            producer = self.tensors[tensor].producer
        return tensor

    def sizes(self) -> None:
        """Crossings leave the device that writes the tensor, with its bytes and the seconds of the link."""
        for sent in self.plan.crossings:
            link, size = self.cluster.link(sent.source, sent.target), self.size(sent.tensor, sent.precision)
            assert link is not None
            took = link.latency_s + size / link.bandwidth_bytes_per_s
            if sent.source != self.home(sent.tensor) or sent.bytes != size or not close(sent.predicted_s, took):
                raise PlanIsWrong(
                    f"{sent.tensor} from {sent.source} to {sent.target}: {size} bytes take {took * 1e3:.4f} ms, "
                    f"the plan claims {sent.bytes:.0f} in {sent.predicted_s * 1e3:.4f} ms"
                )

    def sender(self, tensor: str, kind: str) -> str:
        """The component that writes a tensor, or quantises an input to be sent; "" for an input in float."""
        writer = self.component.get(self.tensors[tensor].producer or "", "")
        return writer or (f"input-{self.plan.start}" if kind == INT8 else "")

    def _components(self) -> dict[str, str]:
        """Component of every block: one per device and level (schedule.py), numbered in running order."""
        level: dict[str, int] = {}
        for block in self.graph.blocks:
            sources = [made for name in block.inputs if (made := self.tensors[name].producer) is not None]
            behind = [level[each] + (self.place[each] != self.place[block.name]) for each in sources]
            level[block.name] = max([self.level[block.name], *behind])
        order = sorted({(level[name], self.place[name]) for name in self.blocks})
        return {name: f"{order.index((level[name], self.place[name]))}-{self.place[name]}" for name in self.blocks}

    @cached_property
    def device_of(self) -> dict[str, str]:
        """Device of every component, including those that only quantise an input or dequantise an output."""
        start = self.plan.start
        found = {name: self.place[block] for block, name in self.component.items()}
        for (name, _), kinds in self.copies.items():
            if self.tensors[name].producer is None and INT8 in kinds:
                found[f"input-{start}"] = start
        away = [name for name in self.graph.outputs if self.home(name) != start]
        if any(self.copies.get((name, start)) == frozenset({INT8}) for name in away):
            found[f"output-{start}"] = start
        return found

    @cached_property
    def moves(self) -> dict[str, list[Block]]:
        """The movement blocks of each flow."""
        found = defaultdict[str, list[Block]](list)
        for block in self.graph.blocks:
            if block.carries:
                found[self.flow(block.inputs[0])].append(block)
        return found

    def glue(self, tensor: str, device: str) -> Glue:
        """Cost of a tensor's flow on a device."""
        return self._glue[device][self.flow(tensor)]

    def anchored(self, tensor: str) -> bool:
        """Whether a tensor's values were first written in float behind an int8 anchor."""
        producer = self.tensors[self.flow(tensor)].producer
        return producer is not None and self.reads_int8(producer) and self.form[producer] != INT8

    @cached_property
    def groups(self) -> dict[tuple[str, str], list[Reading]]:
        """Readers of each tensor, by component ("" for the caller)."""
        found = defaultdict[tuple[str, str], list[Reading]](list)
        for each in self.readings:
            found[each.tensor.name, self.component[each.reader] if each.reader else ""].append(each)
        return found

    def stays(self, tensor: str, where: str) -> bool:
        """Whether a component, or the caller ("") on its device, reads what the component itself wrote."""
        writer = self.sender(tensor, FLOAT)
        return bool(writer) and (where == writer or (not where and self.home(tensor) == self.plan.start))

    def arrives(self, tensor: str, where: str, readings: Sequence[Reading]) -> Set[str]:
        """Precisions in which a tensor arrives at a component that did not write it."""
        device = readings[0].device
        if device != self.home(tensor):
            return self.copies[tensor, device]
        if self.tensors[tensor].producer is None:
            return {FLOAT}
        int8 = self.written_int8(tensor) or (bool(where) and all(each.int8 for each in readings))
        return {INT8} if int8 else {FLOAT}

    def takes(self, kind: str, name: str, where: str, readings: Sequence[Reading]) -> bool:
        """Whether a component uses the copy of this precision."""
        arriving = self.arrives(name, where, readings)
        wants = {INT8 if each.int8 else FLOAT for each in readings}
        return kind in wants or not wants <= arriving

    def taken_by(self, sent: Crossing) -> frozenset[str]:
        """The components, or the caller (""), that use a tensor where it arrives; the caller's int8 tensors go to the
        component that dequantises them."""
        caller = f"output-{self.plan.start}" if sent.precision == INT8 else ""
        return frozenset(
            where or caller
            for (name, where), readings in self.groups.items()
            if (name, readings[0].device) == (sent.tensor, sent.target)
            and self.takes(sent.precision, name, where, readings)
        )

    @cached_property
    def component_s(self) -> dict[str, float]:
        """Seconds of every component by the tables."""
        component, device = self.component, self.device_of
        total = {name: self.profiles[where].overhead_s for name, where in device.items()}
        for block in self.graph.blocks:
            total[component[block.name]] += self.times[self.place[block.name]].get(
                (block.name, self.form[block.name]), 0.0
            )
        read = {self.flow(each.tensor.name) for each in self.readings}
        for tensor in self.graph.tensors:
            if self.flow(tensor.name) == tensor.name:
                for bearer, share in self.bearers(tensor, tensor.name in read):
                    where = self.place.get(bearer, "")
                    for name in [component[bearer]] if bearer else device:
                        glue = self.glue(tensor.name, where or device[name])
                        base = glue.int8_s if self.written_int8(tensor.name) else glue.float_s
                        if self.anchored(tensor.name) and glue.anchor_float_s is not None:
                            base = glue.anchor_float_s
                        total[name] += share * base
        quantised = {name for (name, _), kinds in self.copies.items() if INT8 in kinds}  # where they are written
        for (name, where), readings in self.groups.items():
            floats = sum(not each.int8 for each in readings)
            arriving: Set[str]
            if self.stays(name, where):
                here, arriving = self.sender(name, FLOAT), {INT8} if self.written_int8(name) else {FLOAT, INT8}
                quantised |= {name} if floats < len(readings) else set()
            else:
                here, arriving = where or f"output-{self.plan.start}", self.arrives(name, where, readings)
                quantised |= {name} if readings[0].device == self.home(name) and arriving == {INT8} else set()
            glue = self.glue(name, readings[0].device)
            if floats and FLOAT not in arriving:
                total[here] += floats * glue.dequantize_s
            if floats < len(readings) and INT8 not in arriving:
                total[here] += glue.quantize_s
        for name in (each for each in quantised if not self.written_int8(each)):
            glue = self.glue(name, self.home(name))
            behind = self.anchored(name) and glue.anchor_quantize_s is not None
            total[self.sender(name, INT8)] += (glue.anchor_quantize_s or 0.0) if behind else glue.quantize_s
        # A change of type may save time, but no component takes less than 0 s.
        return {name: max(0.0, each) for name, each in total.items()}

    def bearers(self, tensor: Tensor, read: bool) -> list[tuple[str, float]]:
        """Blocks charged a flow's type-independent cost, with shares: its movement blocks by elements written, or its
        producer, or its first reader; "" stands for every component if nobody reads an input."""
        if moves := self.moves[tensor.name]:
            sizes = [sum(self.tensors[name].elements for name in block.outputs) for block in moves]
            whole = sum(sizes)
            return [(b.name, s / whole if whole else 1.0 / len(moves)) for b, s in zip(moves, sizes, strict=True)]
        if tensor.producer is not None:
            return [(tensor.producer, 1.0)]
        return [(tensor.consumers[0], 1.0)] if read and tensor.consumers else [("", 1.0)]

    def pieces(self) -> None:
        """The plan's components are those that its placements imply, with the seconds it claims."""
        device, seconds = self.device_of, self.component_s
        claimed = {each.component: each for each in self.plan.pieces}
        if set(claimed) != set(device):
            raise PlanIsWrong(f"the plan has components {sorted(claimed)}, its placements make {sorted(device)}")
        for name, each in claimed.items():
            if each.device != device[name] or not close(each.predicted_s, seconds[name]):
                raise PlanIsWrong(
                    f"component {name} takes {seconds[name] * 1e3:.4f} ms on {device[name]} by the tables, "
                    f"the plan claims {each.predicted_s * 1e3:.4f} ms on {each.device}"
                )

    def timeline(self) -> None:
        """The devices and links can keep the timeline, and it ends when the plan says."""
        device = self.device_of
        runs = {each.what: each for each in self.plan.timeline if not each.transfer}
        sent = {(each.what, each.on): each for each in self.plan.timeline if each.transfer}
        if len(runs) + len(sent) != len(self.plan.timeline) or set(runs) != set(device):
            raise PlanIsWrong(f"the timeline runs {sorted(runs)}, the plan has {sorted(device)}")
        receiving = self.receiving()
        for name, span in runs.items():
            stops = receiving.get(span.on, ()) if span.on in self.profiles else ()
            still = sum(max(0.0, min(b, span.end_s) - max(a, span.start_s)) for a, b in stops)
            if span.on != device[name] or not close(span.end_s - span.start_s - still, self.component_s[name]):
                raise PlanIsWrong(f"component {name} is in the timeline for {(span.end_s - span.start_s) * 1e3:.4f} ms")
        ready = dict.fromkeys([*device, ""], 0.0)
        for (name, where), readings in self.groups.items():
            for kind in () if self.stays(name, where) else self.arrives(name, where, readings):
                if not self.takes(kind, name, where, readings):
                    continue
                sender, home, there = self.sender(name, kind), self.home(name), readings[0].device
                arrival = leaves = runs[sender].end_s if sender else 0.0
                link, given = self.cluster.link(home, there), self.tensors[name].producer is None and there == home
                took = 0.0 if link is None or given else link.seconds(self.size(name, kind))
                if took > 0.0:
                    on_its_way = sent.get((f"{name} ({kind})", f"{home} -> {there}"))
                    if on_its_way is None or on_its_way.start_s < leaves - 1e-9:
                        raise PlanIsWrong(f"{name} is sent to {there} before it is there, or never")
                    arrival = on_its_way.end_s
                    if not close(arrival - on_its_way.start_s, took):
                        lasted = (arrival - on_its_way.start_s) * 1e3
                        raise PlanIsWrong(f"{name} is on its way for {lasted:.4f} ms")
                after = where or (f"output-{self.plan.start}" if kind == INT8 else "")
                ready[after] = max(ready[after], arrival)
        for name, span in runs.items():
            if span.start_s < ready[name] - 1e-9:
                raise PlanIsWrong(f"component {name} starts before what it reads has arrived")
        self.one_at_a_time()
        end = max((each.end_s for each in self.plan.timeline), default=0.0)
        claimed, request_s = self.plan.predicted_latency_s.value, self.cluster.device(self.plan.start).request_s
        if not close(end + request_s, claimed) or end < ready[""] - 1e-9:
            raise PlanIsWrong(
                f"the timeline ends at {end * 1e3:.4f} ms and a request takes {request_s * 1e3:.4f}, "
                f"the plan claims {claimed * 1e3:.4f} ms"
            )

    def receiving(self) -> dict[str, list[tuple[float, float]]]:
        """Spans by device in which it receives and its components pause: the end of each message's transfer, overlaps
        merged."""
        found: dict[str, list[tuple[float, float]]] = {}
        size = {
            (f"{each.tensor} ({each.precision})", f"{each.source} -> {each.target}"): each.bytes
            for each in self.plan.crossings
        }
        for each in (each for each in self.plan.timeline if each.transfer):
            source, target = each.on.split(" -> ")
            if source != target:
                device = self.cluster.device(target)
                begin = max(each.start_s, each.end_s - device.receiving_s(size.get((each.what, each.on), 0.0)))
                found.setdefault(target, []).append((begin, each.end_s))
        for known in found.values():
            known.sort()
            for index, (begin, _) in enumerate(known[1:], 1):
                before = known[index - 1][1]
                known[index] = max(begin, before), max(known[index][1], before)
        return found

    def one_at_a_time(self) -> None:
        """No device runs two components at once, or runs one while still sending the last one's outputs, and no link
        sends two tensors at once."""
        by_place: dict[str, list[tuple[float, float]]] = {}
        sending = defaultdict[str, float](float)
        for sent in (each for each in self.plan.crossings if each.source != each.target):
            source = self.sender(sent.tensor, sent.precision)
            sending[source] += self.cluster.device(sent.source).sending_s(sent.bytes)
        for each in self.plan.timeline:
            end = each.end_s
            if each.transfer:
                source, target = each.on.split(" -> ")
                link = self.cluster.link(source, target)
                end -= link.latency_s - link.gap_s if link is not None else 0.0
            else:
                end += sending[each.what]
            by_place.setdefault(each.on, []).append((each.start_s, end))
        for place, times in by_place.items():
            for (_, end), (start, _) in pairwise(sorted(times)):
                if start < end - 1e-9:
                    raise PlanIsWrong(f"{place} is busy with two things at once in the timeline")

    def totals(self) -> None:
        """Busy seconds and rate."""
        plan, busy = self.plan, defaultdict[str, float](float)
        fetched: set[tuple[str, str, frozenset[str]]] = set()  # messages to the start device
        for name, device in self.device_of.items():
            busy[device] += self.component_s[name]
        for sent in plan.crossings:
            link = self.cluster.link(sent.source, sent.target)
            assert link is not None
            busy[f"{sent.source} -> {sent.target}"] += link.gap_s + sent.bytes / link.bandwidth_bytes_per_s
            if sent.source != sent.target:
                if sent.target == plan.start:
                    fetched.add((sent.source, self.sender(sent.tensor, sent.precision), self.taken_by(sent)))
                busy[sent.source] += self.cluster.device(sent.source).sending_s(sent.bytes)
                busy[sent.target] += self.cluster.device(sent.target).receiving_s(sent.bytes)
        for source, *_ in fetched:
            busy[f"{plan.start} -> {source}"] += self.cluster.fetching_s(source)
        busy[plan.start] += self.cluster.device(plan.start).request_s
        for name in busy.keys() & self.profiles.keys():
            busy[name] *= self.profiles[name].sustained()
        for use in plan.usage:
            if not close(busy[use.device], use.predicted_busy_s):
                raise PlanIsWrong(
                    f"a request keeps {use.device} busy for {busy[use.device]:.6g} s by the tables, the plan claims "
                    f"{use.predicted_busy_s:.6g} s"
                )
        periods_s = {name: each * self.share_of_requests(*name.split(" -> ")) for name, each in busy.items()}
        period_s = max(periods_s.values())
        said = plan.predicted_rate_per_s
        rate = 1.0 / period_s if period_s > 0.0 else inf
        if said is not None and not close(rate, said.value):
            raise PlanIsWrong(f"the tables allow {rate:.4g} requests per second, the plan claims {said.value:.4g}")
        if plan.busiest and not close(periods_s.get(plan.busiest, 0.0), period_s):
            raise PlanIsWrong(f"by the tables, {plan.busiest} is not the busiest, as the plan claims")

    def share_of_requests(self, *names: str) -> float:
        """The largest share of the requests that has one replica of each of these devices, which take turns."""
        counts = [len(each.machines) for name in names for each in self.plan.usage if each.device == name]
        turns = Counter(tuple(request % count for count in counts) for request in range(prod(counts)))
        return max(turns.values()) / turns.total()
