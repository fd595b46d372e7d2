"""Attribution on the embedded model, as ONNX Runtime optimises it, with one made-up second for every kernel."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from onnx import helper

from taglio.model.graph import Flow
from taglio.profile.attribution import Attributor
from taglio.profile.measure import pure_assignments
from taglio.profile.result import changes, reads, writes
from taglio.quantize.mixes import random_mixes
from taglio.quantize.precision import Assignment
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.components.cases import CHOICES, Case

CHANGES = frozenset({"QuantizeLinear", "DequantizeLinear"})
VARIANTS = ("float32", "float32 without layouts", "int8", "int8-anchor", *(f"mix{i}" for i in range(9)))


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One quantised variant as it runs: every kernel, and the block or the tensor that it was joined to."""

    assignment: Assignment
    optimized: onnx.ModelProto
    block_of: dict[str, str]
    tensor_of: dict[str, str]

    def kernels(self, *kinds: str) -> list[onnx.NodeProto]:
        return [node for node in self.optimized.graph.node if node.op_type in kinds]


@pytest.fixture(scope="module")
def attributor(network: Case) -> Attributor:
    return Attributor(network.model, network.graph)


@pytest.fixture(scope="module")
def variants(network: Case, attributor: Attributor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Variant]:
    mixes = random_mixes(network.graph, CHOICES, 9, seed=7)
    folder = tmp_path_factory.mktemp("optimized")
    assignments = {"float32": {}, "float32 without layouts": {}, **pure_assignments(network.graph, CHOICES), **mixes}
    result = {}
    for name, assignment in assignments.items():
        path = folder / f"{name}.onnx"
        # As on a processor that has no layout of its own: kernels keep the names of the model.
        level = Optimization.EXTENDED if name == "float32 without layouts" else Optimization.ALL
        options = SessionOptions(threads=1, optimization=level)
        open_session(network.builder.build(assignment), options, save_optimized=path)
        result[name] = variant(attributor, assignment, path)
    return result


def variant(attributor: Attributor, assignment: Assignment, path: Path) -> Variant:
    optimized = onnx.load(path)
    block_of: dict[str, str] = {}
    tensor_of: dict[str, str] = {}
    for node in optimized.graph.node:  # one kernel at a time tells where each goes
        alone = attributor.attribute(optimized, {node.name: 1.0})
        block_of.update((node.name, block) for block in alone.blocks_s)
        tensor_of.update((node.name, tensor) for tensor in alone.tensors_s)
    return Variant(assignment, optimized, block_of, tensor_of)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kernel_goes_to_one_block_or_tensor(
    name: str, variants: dict[str, Variant], attributor: Attributor
) -> None:
    model_variant = variants[name]
    nodes = model_variant.optimized.graph.node
    names = {node.name for node in nodes}
    assert len(names) == len(nodes), "the profiler tells kernels apart by name"

    total = attributor.attribute(model_variant.optimized, dict.fromkeys(names, 1.0))

    assert total.orphans_s == 0.0
    assert sum(total.blocks_s.values()) + sum(total.tensors_s.values()) == len(nodes)
    assert Counter(model_variant.block_of.values()) == total.blocks_s
    assert Counter(model_variant.tensor_of.values()) == total.tensors_s


def test_a_residual_in_one_kernel_is_its_convolutions(attributor: Attributor) -> None:
    """Conv + Add + Relu, as ONNX Runtime fuses them on Arm: two blocks, and the kernel's name says nothing."""
    inputs = ["/fine/fine.0/first/first.2/Relu_output_0", "weight", "bias", "/stem/stem.2/Relu_output_0"]
    fused = helper.make_node(
        "FusedConv", inputs, ["/fine/fine.0/activation/Relu_output_0"], "fused 0", domain="com.microsoft"
    )
    optimized = helper.make_model(helper.make_graph([fused], "one kernel", [], []))

    assert attributor.attribute(optimized, {"fused 0": 1.0}).blocks_s == {"/fine/fine.0/second/second.0/Conv": 1.0}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_convolution_has_its_one_kernel(name: str, variants: dict[str, Variant], network: Case) -> None:
    model_variant = variants[name]
    convolutions = [block.name for block in network.graph.blocks if block.kind.startswith("Conv")]
    in_int8 = [block for block in convolutions if reads(model_variant.assignment, block)]
    in_float = [block for block in convolutions if block not in in_int8]

    joined = {
        kind: Counter(model_variant.block_of.get(node.name, "a tensor") for node in model_variant.kernels(*kinds))
        for kind, kinds in (("float", ("Conv", "FusedConv")), ("int8", ("QLinearConv",)))
    }

    assert joined == {"float": Counter(in_float), "int8": Counter(in_int8)}


def test_every_tensor_with_time_is_of_a_flow(variants: dict[str, Variant], network: Case) -> None:
    """The fit looks at flows and blocks: time at a tensor of neither would end in the overhead of the session."""
    flow_tensors = {tensor for flow in network.graph.flows for tensor in flow.tensors}
    lost = {
        (name, tensor)
        for name, model_variant in variants.items()
        for tensor in model_variant.tensor_of.values()
        if tensor not in flow_tensors
    }
    assert lost == set()


def test_conversions_stand_where_the_type_changes_as_often_as_predicted(
    variants: dict[str, Variant], network: Case
) -> None:
    """As many QuantizeLinears (behind a float writer) or DequantizeLinears (behind an int8 one) as `changes` says.
    Where an int8 Conv, which is channels-last, is read in float, ONNX Runtime puts one more pair around the Transpose.
    """
    wrong = []
    for name, model_variant in variants.items():
        for flow in network.graph.flows:
            counts = conversions(model_variant, flow)
            count = changes(flow, model_variant.assignment)
            into_float = writes(model_variant.assignment, flow.producer)
            expected = {"DequantizeLinear": count} if into_float else {"QuantizeLinear": count}
            padded = {"QuantizeLinear": 1, "DequantizeLinear": count + 1}
            if counts != Counter(expected) and not (into_float and count and counts == Counter(padded)):
                wrong.append(f"{name}: {flow.name} changes {count} times, has {dict(counts)}")
    assert wrong == []


def conversions(variant: Variant, flow: Flow) -> Counter[str]:
    return Counter(
        node.op_type for node in variant.kernels(*CHANGES) if variant.tensor_of.get(node.name) in flow.tensors
    )
