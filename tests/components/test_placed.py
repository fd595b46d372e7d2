"""The placement is in the model's own metadata, where ONNX says it belongs, and the model still computes the same."""

import numpy as np
import onnx
from onnx import checker

from taglio.components.placed import BLOCK, CONFIGURATION, DEVICE, PRECISION, placed
from tests.components.cases import digits, outputs
from tests.components.test_wires import built, drawn


def test_a_placed_model_says_where_each_node_runs_and_computes_the_same() -> None:
    case = digits()
    plan = drawn(case, 3)
    whole, parts = built(case, plan)
    owner = {operator: block.name for block in case.graph.blocks for operator in block.operators}
    model = onnx.ModelProto.FromString(placed(whole, parts, plan, owner).SerializeToString())
    checker.check_model(model)
    (configuration,) = model.configuration
    devices = list(configuration.device)
    assert (configuration.name, configuration.num_devices) == (CONFIGURATION, len(devices))
    assert devices[0] == plan.start and set(devices) == {plan.start, *plan.devices().values()}
    places, precision = plan.devices(), {placement.block: placement.precision for placement in plan.placements}
    seen = set()
    for node in model.graph.node:
        words = {prop.key: prop.value for prop in node.metadata_props}
        (spec,) = node.device_configurations
        assert parts[spec.pipeline_stage].device == words[DEVICE]
        assert {devices[sharding.device[0]] for sharding in spec.sharding_spec} == {words[DEVICE]}
        if node.name in owner:
            seen.add(owner[node.name])
            assert words[BLOCK] == owner[node.name] and words[DEVICE] == places[owner[node.name]]
            assert words[PRECISION] == precision[owner[node.name]]
    assert seen == {block.name for block in case.graph.blocks}
    sample = case.held_out.samples[0]
    for a, b in zip(outputs(whole, sample, case.model.outputs), outputs(model, sample, case.model.outputs)):
        assert np.array_equal(a, b)
