"""Check a plan against the tables, without a solver and without the planner's arithmetic.

Uses only what the plan states (placements, crossings, timeline) and derives from the readers what each component must
wait for, what it costs and what each device holds. The timeline is verified rather than simulated again: no device or
link does two things at once, nothing starts before its inputs have arrived, and every duration matches the tables.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise, product
from math import inf, isclose, prod

from taglio.cluster.devices import Cluster
from taglio.error.model import ErrorModel
from taglio.model.graph import Block, Graph, Tensor
from taglio.plan.check import PlanIsWrong
from taglio.plan.result import Crossing, Plan
from taglio.profile.result import Glue, Profile

INT8, FLOAT = "int8", "float32"
_CLOSE = 1e-6


def check(
    graph: Graph,
    profiles: Mapping[str, Profile],
    error: ErrorModel | None,
    cluster: Cluster,
    plan: Plan,
    *,
    max_noise: Mapping[str, float] | None = None,
) -> None:
    """Raise PlanIsWrong unless `cluster` can run the plan, it costs what it claims and it keeps its limits.

    `profiles` by device. `max_noise` bounds the noise sum by output. Memory counts this model only.
    """
    if sorted(each.block for each in plan.placements) != sorted(block.name for block in graph.blocks):
        raise PlanIsWrong(f"the plan places {len(plan.placements)} blocks of {len(graph.blocks)}")
    facts = _Checks(graph, profiles, cluster, plan)
    facts.placements()
    facts.crossings()
    facts.pieces()
    facts.timeline()
    facts.totals()
    facts.memory()
    for output, bound in (max_noise or {}).items():
        assert error is not None
        total = facts.noise(error, output)
        if total > bound * (1.0 + _CLOSE):
            raise PlanIsWrong(f"output {output}: the plan's noise {total:.4g} is over its bound {bound:.4g}")


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


@dataclass(frozen=True, slots=True)
class Reading:
    """One reader of a tensor: a block, or "" for the caller."""

    tensor: Tensor
    reader: str
    device: str
    int8: bool


class _Checks:
    """The checks of one plan on several devices, each of which relies on those before it."""

    def __init__(self, graph: Graph, profiles: Mapping[str, Profile], cluster: Cluster, plan: Plan) -> None:
        self.graph, self.profiles, self.cluster, self.plan = graph, profiles, cluster, plan
        self.blocks = {block.name: block for block in graph.blocks}
        self.tensors = graph.tensor_map()
        self.place, self.copies = plan.devices(), plan.copies()
        self.level = {each.block: each.level for each in plan.placements}
        self.form = {each.block: each.precision for each in plan.placements}
        named = {each.name: each for each in plan.precisions}
        self.precision = {block: named[form] for block, form in self.form.items() if form in named}
        self._glue = {name: profile.glue_map() for name, profile in profiles.items()}
        self.times = {name: profile.block_times() for name, profile in profiles.items()}
        self.component = self._components()
        self.readings = tuple(self._readings())

    def written_int8(self, tensor: str) -> bool:
        """Whether a tensor is written by an int8 block."""
        producer = self.tensors[tensor].producer
        return producer is not None and self.form[producer] == INT8

    def takes_int8(self, block: str) -> bool:
        """Whether a block reads int8."""
        precision = self.precision.get(block)
        return precision is not None and precision.scheme is not None

    def sender(self, tensor: str, kind: str) -> str:
        """The component that writes a tensor, or quantises an input to be sent; "" for an input in float."""
        writer = self.component.get(self.tensors[tensor].producer or "", "")
        return writer or (f"input-{self.plan.start}" if kind == INT8 else "")

    def size(self, tensor: str, kind: str) -> int:
        """Bytes of a tensor that is sent."""
        return self.tensors[tensor].int8_bytes if kind == INT8 else self.tensors[tensor].float_bytes

    def home(self, tensor: str) -> str:
        """The device that writes a tensor; the start device for an input."""
        producer = self.tensors[tensor].producer
        return self.plan.start if producer is None else self.place[producer]

    def _readings(self) -> Iterable[Reading]:
        for tensor in self.graph.tensors:
            for reader in tensor.consumers:
                yield Reading(tensor, reader, self.place[reader], self.takes_int8(reader))
            if tensor.name in self.graph.outputs and tensor.producer is not None:
                yield Reading(tensor, "", self.plan.start, int8=False)

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

    def flow(self, tensor: str) -> str:
        """The tensor that first held a tensor's values, before movement."""
        producer = self.tensors[tensor].producer
        while producer is not None and self.blocks[producer].carries:
            tensor = self.blocks[producer].inputs[0]
            producer = self.tensors[tensor].producer
        return tensor

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
        return producer is not None and self.takes_int8(producer) and self.form[producer] != INT8

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

    def behind(self, reader: str) -> set[str]:
        """Blocks that compute with what a reader takes: itself, or all behind it if it only moves values."""
        if not reader or not self.blocks[reader].carries:
            return {reader}
        return {
            name
            for made in self.blocks[reader].outputs
            for c in self.tensors[made].consumers
            for name in self.behind(c)
        }

    def placements(self) -> None:
        """Every block is on a device and in a form that it may have."""
        plan, limits = self.plan, self.plan.limits
        names = {device.name: device for device in self.cluster.devices}
        forms = {each.name: each for each in plan.precisions}
        pins, off = dict(limits.device_pins), set(limits.device_exclusions)
        for block in self.graph.blocks:
            where, how = self.place[block.name], self.form[block.name]
            if where not in names:
                raise PlanIsWrong(f"block {block.name} is placed on {where}, which is not in the cluster")
            device = names[where]
            words = (block.name, *block.operators, *block.kind.split("+"))
            if any(fnmatchcase(word, pattern) for pattern in device.never for word in words):
                raise PlanIsWrong(f"block {block.name} is placed on {where}, which may not run it")
            if pins.get(block.name, where) != where or (block.name, where) in off:
                raise PlanIsWrong(f"block {block.name} is placed on {where} against a pin")
            if how not in forms or not forms[how].fits(block):
                raise PlanIsWrong(
                    f"block {block.name} has no {how} form: {forms[how].misfit(block) if how in forms else 'unknown'}"
                )
            if how != FLOAT and not device.int8:
                raise PlanIsWrong(f"block {block.name} is {how} on {where}, which may not run int8")
            if how != FLOAT and block.name in limits.float_blocks and not block.movement:
                raise PlanIsWrong(f"block {block.name} is pinned to float, but the plan has it in {how}")
            if how == FLOAT and block.name in limits.int8_blocks:
                raise PlanIsWrong(f"block {block.name} is pinned to int8, but the plan has it in float32")
            if block.carries and (how == INT8) != self.written_int8(block.inputs[0]):
                raise PlanIsWrong(f"block {block.name} moves {block.inputs[0]} but changes its type")

    def crossings(self) -> None:
        """Every reader elsewhere gets a copy that it can read, over a link, with the bytes and seconds of the link."""
        needed: set[tuple[str, str]] = set()
        for each in self.readings:
            if each.device == self.home(each.tensor.name):
                continue
            key = (each.tensor.name, each.device)
            needed.add(key)
            got = self.copies.get(key)
            if not got:
                raise PlanIsWrong(
                    f"{each.tensor.name} never reaches {each.device}, where {each.reader or 'the caller'} reads it"
                )
            if self.written_int8(each.tensor.name) and got != {INT8}:
                raise PlanIsWrong(
                    f"{each.tensor.name} is written as int8 but is sent to {each.device} as {sorted(got)}"
                )
        for key in self.copies.keys() - needed:
            raise PlanIsWrong(f"{key[0]} is sent to {key[1]}, where nothing reads it")
        for sent in self.plan.crossings:
            link = self.cluster.link(sent.source, sent.target)
            if link is None:
                raise PlanIsWrong(f"{sent.tensor} is sent from {sent.source} to {sent.target}, which are not connected")
            size = self.size(sent.tensor, sent.precision)
            took = link.latency_s + size / link.bandwidth_bytes_per_s
            if sent.source != self.home(sent.tensor) or sent.bytes != size or not _close(sent.predicted_s, took):
                raise PlanIsWrong(
                    f"{sent.tensor} from {sent.source} to {sent.target}: {size} bytes take {took * 1e3:.4f} ms, "
                    f"the plan claims {sent.bytes:.0f} in {sent.predicted_s * 1e3:.4f} ms"
                )

    @cached_property
    def seconds(self) -> dict[str, float]:
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
        device, seconds = self.device_of, self.seconds
        claimed = {each.component: each for each in self.plan.pieces}
        if set(claimed) != set(device):
            raise PlanIsWrong(f"the plan has components {sorted(claimed)}, its placements make {sorted(device)}")
        for name, each in claimed.items():
            if each.device != device[name] or not _close(each.predicted_s, seconds[name]):
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
            stops = receiving.get(self.cluster.processor(span.on), ()) if span.on in self.profiles else ()
            still = sum(max(0.0, min(b, span.end_s) - max(a, span.start_s)) for a, b in stops)
            if span.on != device[name] or not _close(span.end_s - span.start_s - still, self.seconds[name]):
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
                    if not _close(arrival - on_its_way.start_s, took):
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
        if not _close(end + request_s, claimed) or end < ready[""] - 1e-9:
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
                found.setdefault(self.cluster.processor(target), []).append((begin, each.end_s))
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
            where = each.on if each.transfer else self.cluster.processor(each.on)
            by_place.setdefault(where, []).append((each.start_s, end))
        for place, times in by_place.items():
            for (_, end), (start, _) in pairwise(sorted(times)):
                if start < end - 1e-9:
                    raise PlanIsWrong(f"{place} is busy with two things at once in the timeline")

    def totals(self) -> None:
        """Energy, rate and the limits per request."""
        plan, limits = self.plan, self.plan.limits
        busy, spent = defaultdict[str, float](float), defaultdict[str, float](float)
        fetched: set[tuple[str, str, frozenset[str]]] = set()  # messages to the start device
        for name, device in self.device_of.items():
            busy[device] += self.seconds[name]
            spent[device] += self.seconds[name] * self.cluster.device(device).active_watts
        for sent in plan.crossings:
            link = self.cluster.link(sent.source, sent.target)
            assert link is not None
            spent[sent.source] += sent.bytes * link.joules_per_byte
            busy[f"{sent.source} -> {sent.target}"] += link.gap_s + sent.bytes / link.bandwidth_bytes_per_s
            if sent.source != sent.target:
                if sent.target == plan.start:
                    fetched.add((sent.source, self.sender(sent.tensor, sent.precision), self.taken_by(sent)))
                busy[sent.source] += self.cluster.device(sent.source).sending_s(sent.bytes)
                busy[sent.target] += self.cluster.device(sent.target).receiving_s(sent.bytes)
        for source, *_ in fetched:
            busy[f"{plan.start} -> {source}"] += self.cluster.fetching_s(source)
        joules, claimed = sum(spent.values()), plan.predicted_joules
        if not _close(joules, claimed.value if claimed is not None else 0.0):
            raise PlanIsWrong(f"a request takes {joules:.6g} J by the tables, the plan claims {claimed}")
        busy[plan.start] += self.cluster.device(plan.start).request_s
        for name in busy.keys() & self.profiles.keys():
            busy[name] *= self.profiles[name].sustained()
        for use in plan.usage:
            if not _close(busy[use.device], use.predicted_busy_s):
                raise PlanIsWrong(
                    f"a request keeps {use.device} busy for {busy[use.device]:.6g} s by the tables, the plan claims "
                    f"{use.predicted_busy_s:.6g} s"
                )
        for name, shared in [(each.name, each.processor) for each in self.cluster.devices if each.processor]:
            busy[shared] += busy.pop(name, 0.0)
        periods_s = {name: each * self.share_of_requests(*name.split(" -> ")) for name, each in busy.items()}
        period_s = max(periods_s.values())
        said = plan.predicted_rate_per_s
        rate = 1.0 / period_s if period_s > 0.0 else inf
        if said is not None and not _close(rate, said.value):
            raise PlanIsWrong(f"the tables allow {rate:.4g} requests per second, the plan claims {said.value:.4g}")
        if plan.busiest and not _close(periods_s.get(plan.busiest, 0.0), period_s):
            raise PlanIsWrong(f"by the tables, {plan.busiest} is not the busiest, as the plan claims")
        for what, value, most in (
            ("latency", plan.predicted_latency_s.value, limits.max_latency_s),
            ("energy", joules, limits.max_energy_joules),
            ("seconds between requests", period_s, 1.0 / limits.min_rate_per_s if limits.min_rate_per_s else None),
        ):
            if most is not None and value > most * (1.0 + _CLOSE):
                raise PlanIsWrong(f"the plan's {what} of {value:.6g} is over its limit {most:.6g}")
        for each in self.cluster.devices:
            if spent[each.name] > each.energy_cap_joules * (1.0 + _CLOSE):
                raise PlanIsWrong(f"a request takes {spent[each.name]:.6g} J of {each.name}, over its cap")

    def share_of_requests(self, *names: str) -> float:
        """The largest share of the requests that has one replica of each of these devices, which take turns."""
        counts = [len(each.machines) for name in names for each in self.plan.usage if each.device == name]
        turns = Counter(tuple(request % count for count in counts) for request in range(prod(counts)))
        return max(turns.values()) / turns.total()

    def memory(self) -> None:
        """Weights and live activations of every device, operator by operator."""
        position = {block.name: index for index, block in enumerate(self.graph.blocks)}
        last = len(self.graph.blocks) - 1
        by_tensor: dict[str, list[Reading]] = {}
        for reading in self.readings:
            by_tensor.setdefault(reading.tensor.name, []).append(reading)
        for device in (each for each in self.cluster.devices if not each.processor):
            places = [each.name for each in self.cluster.devices if self.cluster.processor(each.name) == device.name]
            held = 0.0
            for block in self.graph.blocks:
                if self.place[block.name] in places:
                    held += block.weight_bytes(self.precision[block.name].weight_bits)
                    held += block.state_bytes
            live = [0.0] * (last + 1)
            for tensor, place in product(self.graph.tensors, places):
                here = [each for each in by_tensor.get(tensor.name, ()) if each.device == place]
                if not here and place != self.home(tensor.name):
                    continue
                sent_int8 = any(name == tensor.name and INT8 in kinds for (name, _), kinds in self.copies.items())
                kinds = self.held(tensor.name, place, here, sent_int8)
                first = position[tensor.producer] if tensor.producer is not None else 0
                end = max([first, *(position[each.reader] if each.reader else last for each in here)])
                size = tensor.float_bytes * (FLOAT in kinds) + tensor.int8_bytes * (INT8 in kinds)
                for index in range(first, end + 1):
                    live[index] += size
            used = held + max(live)
            if used > device.memory_bytes * (1.0 + _CLOSE):
                raise PlanIsWrong(
                    f"{device.name} needs {used / 1e6:.1f} MB for weights and live activations, "
                    f"it has {device.memory_bytes / 1e6:.1f} MB"
                )

    def held(self, tensor: str, device: str, here: Sequence[Reading], sent_int8: bool) -> Set[str]:
        """Precisions in which a device holds a tensor."""
        wants_int8 = any(each.int8 for each in here)
        if device != self.home(tensor):
            return self.copies[tensor, device] | ({INT8} if wants_int8 else set())
        if self.written_int8(tensor):
            return {INT8}
        return {FLOAT} | ({INT8} if wants_int8 or sent_int8 else set())

    def noise(self, error: ErrorModel, output: str) -> float:
        """Noise sum of one output; a float reader of an int8 copy of a float tensor counts as an int8 read by all
        blocks behind it."""
        model = next(each for each in error.outputs if each.output == output)
        wired = {
            (self.flow(each.tensor.name), name)
            for each in self.readings
            if not each.int8 and each.device != self.home(each.tensor.name) and not self.written_int8(each.tensor.name)
            if self.copies[each.tensor.name, each.device] == {INT8}
            for name in self.behind(each.reader)
        }
        total = sum(each.own for each in model.blocks if self.form[each.block] == each.precision)
        for edge in model.edges:
            takes = self.takes_int8(edge.reader) or (edge.flow, edge.reader) in wired
            total += edge.noise if takes and not self.written_int8(edge.flow) else 0.0
        return total


def _close(a: float, b: float) -> bool:
    return isclose(a, b, rel_tol=_CLOSE, abs_tol=1e-9)
