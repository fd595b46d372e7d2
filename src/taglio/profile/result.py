"""A profile, and what it predicts for any assignment. Measures nothing.

Seconds of one inference:

    T = overhead + Σ_blocks time[block, precision] + Σ_flows glue(flow)

    glue = float_s + quantize_s · (tensors of the flow that are read as int8)         if its producer writes float
    glue = int8_s + dequantize_s · (readers that read float)                          if its producer writes int8

    and, if its producer is in float32 or bfloat16, convert_s · (tensors of it that a reader wants in the other one)

The effect of a type change on the blocks on either side is part of its cost, which may be negative: a float Softmax
over channels takes a fifth of its time if its reader, in int8, needs the values in another order.
"""

from dataclasses import dataclass, replace
from statistics import median

from taglio.model.graph import Flow, Graph
from taglio.profile.attribution import Attribution
from taglio.profile.machine import Machine
from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import BFLOAT16, FLOAT32, Assignment, Precision, form_of
from taglio.quantize.scheme import Scheme


@dataclass(frozen=True, slots=True)
class BlockTime:
    """Seconds of a block in one precision: the mean over whole-model runs."""

    block: str
    precision: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Glue:
    """Seconds spent on a flow outside blocks, by the forms of its producer and readers (see the module's formula).

    Costs of type changes that no run showed are estimated from other flows by seconds per element. `convert_s` is the
    cost of converting a tensor of the flow between float32 and bfloat16.
    """

    flow: str
    float_s: float
    int8_s: float
    quantize_s: float
    dequantize_s: float
    convert_s: float = 0.0

    def times(self, factor: float) -> "Glue":
        """The same with all times multiplied by `factor`."""
        return Glue(
            self.flow,
            factor * self.float_s,
            factor * self.int8_s,
            factor * self.quantize_s,
            factor * self.dequantize_s,
            factor * self.convert_s,
        )


@dataclass(frozen=True, slots=True)
class WholeRun:
    """One whole-model run of the profile: the precision of every block that was not float32, the wall time, and the
    attribution of its kernels. `predicted_s` of a `mixed` run comes from a fit without it; of others it is their own
    time.
    """

    name: str
    assignment: dict[str, str]
    wall: WallTime
    attribution: Attribution
    mixed: bool
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the times were taken.

    `others` is the share of the processors that other programs used. `waking_s` is how much longer a run takes after
    the device has waited; 0 if that was not measured (waking.py). `shapes` are the input shapes whose mean the times
    are; empty if the model fixes them.
    """

    machine: Machine
    runtime: str
    runtime_version: str
    threads: int
    spinning: bool
    optimization: str
    waking_s: float = 0.0
    shapes: tuple[dict[str, tuple[int, ...]], ...] = ()
    others: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of one model on one device under one scheme.

    `interval_ratio`: in 9 of 10 cases a measured time lies within predicted × (1 ± interval_ratio); it is the
    conformal quantile of the errors of leave-one-out predictions over the mixed runs.
    """

    model_sha256: str
    conditions: Conditions
    scheme: Scheme
    precisions: tuple[Precision, ...]
    blocks: tuple[BlockTime, ...]
    glue: tuple[Glue, ...]
    overhead_s: float
    interval_ratio: float
    runs: tuple[WholeRun, ...]

    def block_times(self) -> dict[tuple[str, str], float]:
        """Seconds by (block, precision name)."""
        return {(block_time.block, block_time.precision): block_time.seconds for block_time in self.blocks}

    def sustained(self) -> float:
        """The ratio of mean to median seconds, at least 1; the median over the runs.

        Latencies are predicted from medians, rates from means: a device with a quota of half a processor runs most
        short requests at full speed, and pauses for as long before the next.
        """
        return max(1.0, median(run.wall.mean_s / run.wall.median_s for run in self.runs)) if self.runs else 1.0

    def glue_map(self) -> dict[str, Glue]:
        """Glue by flow name."""
        return {flow_glue.flow: flow_glue for flow_glue in self.glue}

    def precision(self, name: str) -> Precision:
        """The precision called `name`."""
        return next(precision for precision in self.precisions if precision.name == name)


def in_components(profile: Profile) -> Profile:
    """The profile for a model that is divided into components: no change of type saves time, since the savings may be
    counted in one component, and the blocks whose fusion causes them in others. Components have no blocks in bfloat16.
    """
    return replace(
        profile,
        precisions=tuple(form for form in profile.precisions if form != BFLOAT16),
        blocks=tuple(block_time for block_time in profile.blocks if block_time.precision != BFLOAT16.name),
        glue=tuple(
            replace(glue, quantize_s=max(0.0, glue.quantize_s), dequantize_s=max(0.0, glue.dequantize_s))
            for glue in profile.glue
        ),
    )


def scaled(profile: Profile, factor: float) -> Profile:
    """The profile with all times multiplied by `factor`: an assumption about another device."""
    glue = tuple(flow_glue.times(factor) for flow_glue in profile.glue)
    blocks = tuple(replace(block_time, seconds=factor * block_time.seconds) for block_time in profile.blocks)
    conditions = replace(profile.conditions, waking_s=factor * profile.conditions.waking_s)
    return replace(profile, blocks=blocks, glue=glue, overhead_s=factor * profile.overhead_s, conditions=conditions)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A predicted latency by block and flow, in seconds. Time saved by a type change is subtracted from the writing
    block."""

    total_s: float
    overhead_s: float
    blocks: dict[str, float]
    flows: dict[str, float]


def predict(profile: Profile, graph: Graph, assignment: Assignment) -> Breakdown:
    """Predicted seconds of one inference of `graph` with `assignment`."""
    times, glue = profile.block_times(), profile.glue_map()
    blocks = {block.name: times.get((block.name, form_of(assignment, block.name)), 0.0) for block in graph.blocks}
    moved = {}
    for flow in graph.flows:
        seconds = flow_seconds(glue[flow.name], flow, assignment)
        if seconds < 0.0 and flow.producer is not None:
            blocks[flow.producer] += seconds
            seconds = 0.0
        moved[flow.name] = seconds
    # Measured on a busy machine, savings at boundaries can add up to more than the total.
    total_s = max(0.0, profile.overhead_s + sum(blocks.values()) + sum(moved.values()))
    return Breakdown(total_s, profile.overhead_s, blocks, moved)


def flow_seconds(glue: Glue, flow: Flow, assignment: Assignment) -> float:
    """Seconds of glue on one flow under `assignment`."""
    base_s, change_s = written_costs(glue, is_int8=writes(assignment, flow.producer))
    return base_s + change_s * changes(flow, assignment) + glue.convert_s * conversions(flow, assignment)


def written_costs(glue: Glue, *, is_int8: bool) -> tuple[float, float]:
    """Seconds of glue without type changes, and of each type change, on a flow that is written so."""
    return (glue.int8_s, glue.dequantize_s) if is_int8 else (glue.float_s, glue.quantize_s)


def changes(flow: Flow, assignment: Assignment) -> int:
    """Number of type changes of the flow: one per tensor to int8 (readers share it), one per reader to float."""
    if writes(assignment, flow.producer):
        return sum(not reads(assignment, block) for _, block in flow.readers)
    return len({tensor for tensor, block in flow.readers if reads(assignment, block)})


def conversions(flow: Flow, assignment: Assignment) -> int:
    """Number of tensors of the flow that are converted between float32 and bfloat16. A quantised block reads and writes
    either."""
    written = assignment.get(flow.producer or "", FLOAT32)
    if written not in (FLOAT32, BFLOAT16):
        return 0
    wanted = BFLOAT16 if written == FLOAT32 else FLOAT32
    return len({tensor for tensor, block in flow.readers if assignment.get(block, FLOAT32) == wanted})


def writes(assignment: Assignment, block: str | None) -> bool:
    """Whether `block` (None: a model input) writes int8."""
    return block is not None and block in assignment and assignment[block].int8_output


def reads(assignment: Assignment, block: str) -> bool:
    """Whether `block` reads int8."""
    return block in assignment and assignment[block].scheme is not None
