"""Write a plan's placement into an ONNX model's own device metadata. Does not change what is computed.

ONNX (IR version 11) can describe devices: the model lists them in a configuration, and each node names the devices of
its outputs and its pipeline stage. The precision of its block is added in `metadata_props`.
"""

from collections.abc import Mapping
from copy import deepcopy

import onnx
from onnx import helper

from taglio.components.cut import Component
from taglio.plan.result import Plan

CONFIGURATION = "taglio"
_IR_VERSION = 11
DEVICE, PRECISION, BLOCK, COMPONENT = "taglio.device", "taglio.precision", "taglio.block", "taglio.component"


def placed(whole: onnx.ModelProto, parts: list[Component], plan: Plan, blocks: Mapping[str, str]) -> onnx.ModelProto:
    """A copy of the whole quantised model that names the device of each node; `blocks` maps operators to blocks.

    A node in several components (a DequantizeLinear is copied to each reader) gets the first component's stage and
    device.
    """
    proto = deepcopy(whole)
    proto.ir_version = max(proto.ir_version, _IR_VERSION)
    devices = list(dict.fromkeys([plan.start, *(part.device for part in parts)]))
    proto.configuration.append(
        onnx.DeviceConfigurationProto(name=CONFIGURATION, num_devices=len(devices), device=devices)
    )
    helper.set_model_props(
        proto, {"taglio.plan": plan.fingerprint(), "taglio.start": plan.start, "taglio.devices": ",".join(devices)}
    )
    stage: dict[str, int] = {}
    for index, part in enumerate(parts):
        for node in part.proto.graph.node:
            stage.setdefault(node.name, index)
    precision = {placement.block: placement.precision for placement in plan.placements}
    for node in proto.graph.node:
        if node.name not in stage:
            continue
        part = parts[stage[node.name]]
        spec = onnx.NodeDeviceConfigurationProto(configuration_id=CONFIGURATION, pipeline_stage=stage[node.name])
        for name in node.output:
            spec.sharding_spec.append(onnx.ShardingSpecProto(tensor_name=name, device=[devices.index(part.device)]))
        node.device_configurations.append(spec)
        words = {DEVICE: part.device, COMPONENT: part.name}
        if node.name in blocks:
            words |= {BLOCK: blocks[node.name], PRECISION: precision[blocks[node.name]]}
        for key, value in words.items():
            node.metadata_props.append(onnx.StringStringEntryProto(key=key, value=value))
    return proto
