"""Check a plan for one machine against its tables, without a solver and without the planner's arithmetic.

It starts from the plan's placements alone and goes reader by reader, while predictions and programs go producer by
producer.
"""

from collections.abc import Collection, Mapping
from math import inf, isclose

from taglio.error.model import ErrorModel, OutputModel
from taglio.errors import TaglioError
from taglio.model.graph import Block, Graph
from taglio.plan.result import Plan
from taglio.profile.result import Profile
from taglio.quantize.precision import BFLOAT16, FLOAT32

_CLOSE = 1e-6


class PlanIsWrong(TaglioError):
    """A plan does not cost what its solver claimed, or breaks a limit. A bug in taglio, not a user error."""


def check(graph: Graph, profile: Profile, error: ErrorModel | None, plan: Plan, max_noise: Mapping[str, float]) -> None:
    """Raise PlanIsWrong unless `plan` gives every block a form that it may have, takes the seconds that it claims and
    adds at most `max_noise` to each output."""
    if [placement.block for placement in plan.placements] != [block.name for block in graph.blocks]:
        raise PlanIsWrong(f"the plan places {len(plan.placements)} blocks of {len(graph.blocks)}")
    checks = FormChecks(graph, plan)
    checks.check_forms()
    checks.check_neighbours()
    seconds, claimed_s = max(0.0, checks.seconds(profile)), plan.predicted_latency_s.value
    if not isclose(seconds, claimed_s, rel_tol=_CLOSE, abs_tol=1e-9):
        raise PlanIsWrong(f"the plan takes {seconds * 1e3:.4f} ms by the tables, it claims {claimed_s * 1e3:.4f} ms")
    for output in error.outputs if error is not None else ():
        checks.check_noise(output, max_noise.get(output.output, inf))


class FormChecks:
    """The checks of a plan that depend on forms, not on devices."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan, self.limits = graph, plan, plan.limits
        self.blocks = {block.name: block for block in graph.blocks}
        self.tensors = graph.tensor_map()
        self.form = {placement.block: placement.precision for placement in plan.placements}
        self.precisions = {precision.name: precision for precision in plan.precisions}

    def check_forms(self) -> None:
        """Every block has a form that fits it and its pin; movement keeps the type of what it moves."""
        for name, block in self.blocks.items():
            form = self.form[name]
            precision = self.precisions.get(form)
            if precision is None or not precision.fits(block):
                raise PlanIsWrong(
                    f"block {name} has no form {form}: {precision.misfit(block) if precision else 'unknown'}"
                )
            if block.carries:
                if self.writes_int8(name) != self.writes_int8(self.tensors[block.inputs[0]].producer):
                    raise PlanIsWrong(f"block {name} moves {block.inputs[0]} but changes its type")
            elif form != FLOAT32.name and name in self.limits.float_blocks:
                raise PlanIsWrong(f"block {name} is pinned to float, but the plan has it in {form}")
            elif not self.reads_int8(name) and name in self.limits.int8_blocks:
                raise PlanIsWrong(f"block {name} is pinned to int8, but the plan has it in {form}")

    def check_neighbours(self) -> None:
        """No weightless float block has only int8 neighbours: ONNX Runtime would run its int8 kernel."""
        for name, block in self.blocks.items():
            tail = block.kind.partition("+")[2]
            if block.refusal or block.movement or block.weights or tail not in ("", "Relu"):
                continue
            readers = [reader for tensor, reader in self.computed_from() if self.computed_by(tensor) == name]
            reads = all(self.writes_int8(self.tensors[tensor].producer) for tensor in block.inputs)
            is_read = bool(readers) and all(self.reads_int8(reader) for reader in readers)
            if self.form[name] == FLOAT32.name and reads and is_read:
                raise PlanIsWrong(f"block {name} is float32 between int8 blocks, so the runtime computes it in int8")
        for name, block in self.blocks.items():
            readers = [r for tensor in block.outputs for r in self.tensors[tensor].consumers]
            returned = any(tensor in self.graph.outputs for tensor in block.outputs)
            if len(readers) != 1 or returned or not BFLOAT16.fits(block):
                continue
            pair = self.form[name], self.form[readers[0]]
            differ = set(pair) == {FLOAT32.name, BFLOAT16.name}
            into_sum = self._adds(self.blocks[readers[0]])
            if differ and (into_sum or (self._adds(block) and pair[0] == FLOAT32.name)):
                raise PlanIsWrong(f"blocks {name} and {readers[0]} are added, but in {pair[0]} and {pair[1]}")

    @staticmethod
    def _adds(block: Block) -> bool:
        """Whether a block adds two computed tensors."""
        return block.kind.startswith("Add") and len(block.inputs) == 2

    def form_of(self, block: str | None) -> str:
        """The form of a block; float32 of a model input, None, and of the caller, ""."""
        return self.form[block] if block else FLOAT32.name

    def reads_int8(self, block: str) -> bool:
        """Whether a block quantises what it reads; the caller, "", does not."""
        return bool(block) and self.precisions[self.form[block]].scheme is not None

    def writes_int8(self, block: str | None) -> bool:
        """Whether a block, or None for a model input, writes int8."""
        return block is not None and self.precisions[self.form[block]].int8_output

    def origin(self, tensor: str) -> str:
        """The tensor that first held a tensor's values, before movement."""
        producer = self.tensors[tensor].producer
        while producer is not None and self.blocks[producer].carries:
            tensor = self.blocks[producer].inputs[0]
            producer = self.tensors[tensor].producer
        return tensor

    def computed_by(self, tensor: str) -> str | None:
        """The block that computed a tensor's values; None if they are a model input's."""
        return self.tensors[self.origin(tensor)].producer

    def computed_from(self) -> list[tuple[str, str]]:
        """Pairs of a tensor and a block that computes with it, or "" for the caller."""
        pairs = []
        for tensor in self.graph.tensors:
            for reader in tensor.consumers:
                block = self.blocks[reader]
                if not (block.carries and block.inputs[0] == tensor.name):
                    pairs.append((tensor.name, reader))
            if tensor.name in self.graph.outputs:
                pairs.append((tensor.name, ""))
        return pairs

    def seconds(self, profile: Profile) -> float:
        """Seconds of one inference."""
        sum_s = profile.overhead_s
        sum_s += sum(time.seconds for time in profile.blocks if self.form[time.block] == time.precision)
        glue, quantized = profile.glue_map(), set[str]()
        for name, flow in glue.items():
            sum_s += flow.int8_s if self.writes_int8(self.computed_by(name)) else flow.float_s
        for tensor, reader in self.computed_from():
            flow = glue[self.origin(tensor)]
            if self.writes_int8(self.computed_by(tensor)):
                sum_s += 0.0 if self.reads_int8(reader) else flow.dequantize_s
            elif self.reads_int8(reader) and tensor not in quantized:
                quantized.add(tensor)
                sum_s += flow.quantize_s
        converted = {
            tensor
            for tensor, reader in self.computed_from()
            if {self.form_of(self.computed_by(tensor)), self.form_of(reader)} == {FLOAT32.name, BFLOAT16.name}
        }
        return sum_s + sum(glue[self.origin(tensor)].convert_s for tensor in converted)

    def check_noise(self, output: OutputModel, limit: float, wired: Collection[tuple[str, str]] = ()) -> None:
        """The noise sum of one output keeps its limit. `wired` are (flow, reader) whose float values travel as int8."""
        noise = sum(term.own for term in output.blocks if self.form[term.block] == term.precision)
        for term in output.edges:
            reads_int8 = self.reads_int8(term.reader) or (term.flow, term.reader) in wired
            if reads_int8 and not self.writes_int8(self.tensors[term.flow].producer):
                noise += term.noise
        if noise > limit * (1.0 + _CLOSE):
            raise PlanIsWrong(f"output {output.output}: the plan's noise {noise:.4g} is over its limit {limit:.4g}")
