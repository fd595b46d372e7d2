"""What travels is what the plan says: any device, any precision and any wire, and the pieces still equal the whole."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import onnx
import pytest

from taglio.components.cut import Component, Wires, cut
from taglio.plan.result import Crossing, Interval, Limits, Plan, placements
from taglio.quantize.precision import Precision
from taglio.quantize.scheme import DEFAULT_SCHEME
from tests.components.cases import CHOICES, FLOAT, INT8, Case, tiny
from tests.models import TINY

DEVICES = ("near", "far", "cloud")
BOTH = ("float32", "int8")


def drawn(case: Case, seed: int, devices: tuple[str, ...] = DEVICES) -> Plan:
    """A plan with devices, precisions and copies at random; a tensor written in int8 travels so."""
    rng = Random(seed)
    chosen: dict[str, Precision] = {}
    for block in case.graph.candidates():
        precision = rng.choice([form for form in CHOICES if form.fits(block)])
        if precision is not FLOAT and not block.movement:
            chosen[block.name] = precision
    tensors = case.graph.tensor_map()
    for block in case.graph.blocks:  # movement carries on what it is given
        producer = tensors[block.inputs[0]].producer
        if block.movement and block.quantizable and producer in chosen and chosen[producer].int8_output:
            chosen[block.name] = INT8
    often = rng.choice((0.1, 0.5, 1.0))
    here, places = rng.choice(devices), {}
    for block in case.graph.blocks:
        here = rng.choice(devices) if rng.random() < often else here
        places[block.name] = here
    crossings = []
    for tensor in case.graph.tensors:
        source = places[tensor.producer] if tensor.producer else devices[0]
        targets = {places[reader] for reader in tensor.consumers}
        targets |= {devices[0]} if tensor.name in case.graph.outputs and tensor.producer else set()
        in_int8 = tensor.producer in chosen and chosen[tensor.producer].int8_output
        able = tensor.shape and tensor.element_bytes == 4
        for target in sorted(targets - {source}):
            kinds = ("int8",) if in_int8 else rng.choice((("float32",), ("int8",), BOTH)) if able else ("float32",)
            crossings += [Crossing(tensor.name, source, target, kind, 0.0, 0.0) for kind in kinds]
    none = Interval(0.0, 0.0, 0.0)
    return Plan(
        case.model.sha256,
        DEFAULT_SCHEME,
        CHOICES,
        Limits(None),
        tuple(replace(block, device=places[block.block]) for block in placements(case.graph, chosen)),
        "optimal",
        0.0,
        none,
        none,
        start=devices[0],
        crossings=tuple(crossings),
    )


def equal(case: Case, plan: Plan, folder: Path) -> list[Component]:
    """The components of a plan, which together equal the whole model."""
    whole = case.builder.build(plan.assignment(), plan.wire_only(case.graph))
    parts = cut(case.model, case.graph, whole, plan.devices(), Wires(plan.start, plan.copies()))
    case.proven(parts, whole, folder, samples=1)
    return parts


def sent(case: Case, parts: list[Component], plan: Plan) -> dict[tuple[str, str], set[str]]:
    """Precisions by (tensor, device) of what components read from another device, the caller's included."""
    home = dict.fromkeys((spec.name for spec in case.model.inputs), plan.start)
    kinds_of: dict[tuple[str, str], set[str]] = {}
    for part in parts:
        for name in part.inputs:
            if home[name] != part.device:
                tensor = name.removesuffix("/int8").removesuffix("/kept")  # a copy that keeps a pool in float
                kinds_of.setdefault((tensor, part.device), set()).add(kind(part.proto, name))
        home |= dict.fromkeys(part.outputs, part.device)
    for name in case.model.outputs:
        if home[name] != plan.start:
            kinds_of.setdefault((name, plan.start), set()).add("float32")
    return kinds_of


def kind(proto: onnx.ModelProto, name: str) -> str:
    value = next(tensor for tensor in proto.graph.input if tensor.name == name)
    return "float32" if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT else "int8"


def used(case: Case, plan: Plan) -> Mapping[tuple[str, str], set[str]]:
    """Of the copies that a plan sends, those that somebody reads."""
    tensors, places, chosen = case.graph.tensor_map(), plan.devices(), plan.assignment()
    kinds_of: dict[tuple[str, str], set[str]] = {}
    for (name, device), kinds in plan.copies().items():
        readers = [reader for reader in tensors[name].consumers if places[reader] == device]
        wants = {"int8" if reader in chosen else "float32" for reader in readers}
        wants |= {"float32"} if name in case.graph.outputs and device == plan.start else set()
        kinds_of[name, device] = {want if want in kinds else next(iter(kinds)) for want in wants}
    return kinds_of


@pytest.mark.parametrize("seed", range(12))
def test_the_pieces_of_any_plan_equal_the_whole_and_send_what_it_says(network: Case, seed: int, tmp_path: Path) -> None:
    plan = drawn(network, seed)
    parts = equal(network, plan, tmp_path)
    assert sent(network, parts, plan) == used(network, plan)


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_too(name: str, tmp_path: Path) -> None:
    case = tiny(TINY[name](), tmp_path)
    for seed in range(4):
        plan = drawn(case, seed)
        assert sent(case, equal(case, plan, tmp_path / str(seed)), plan) == used(case, plan)
