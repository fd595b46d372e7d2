"""Real networks with made-up costs, for benchmarks of the planner: nothing is measured, so that runs can be compared.

Times come from the blocks' FLOPs and bytes, each by a factor of its own from one seed; int8 takes 0.3 to 1.1 of float.
Of the changes of type, a tenth costs nothing. A block's int8 noise is log-normal (σ = 1.5), quantising an edge adds
half as much, and a plan may add 15 % of what everything in int8 does. Devices and links are those of plan_tiers.py.
"""

from dataclasses import replace
from functools import cache

import numpy as np

from cases import CASES, paths
from taglio.cluster.devices import Cluster
from taglio.cluster.planning.workload import Workload
from taglio.error.loss import RELATIVE
from taglio.error.model import BlockNoise, EdgeNoise, ErrorModel, OutputModel
from taglio.model.graph import Graph, build
from taglio.model.load import load
from taglio.plan.result import Limits
from taglio.profile.machine import describe
from taglio.profile.result import BlockTime, Conditions, Glue, Profile, scaled
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import DEFAULT_SCHEME

FLOPS_PER_S, BYTES_PER_S, START_S, PER_ELEMENT_S = 50e9, 10e9, 3e-6, 0.3e-9
NOISE_SHARE, FREE_SHARE = 0.15, 0.1


@cache
def graph(name: str) -> Graph:
    """The blocks of a network of cases.py."""
    return build(load(paths(CASES[name])[0]))


def profile(graph: Graph, seed: int) -> Profile:
    """Made-up times."""
    rng = np.random.default_rng(seed)
    tensors, choices, blocks, glue = graph.tensor_map(), precisions(DEFAULT_SCHEME), [], []
    for block in graph.blocks:
        size = sum(tensors[name].float_bytes for name in (*block.inputs, *block.outputs))
        seconds = (block.flops / FLOPS_PER_S + size / BYTES_PER_S + START_S) * rng.lognormal(0.0, 0.3)
        shares = {"float32": 1.0, "int8": rng.uniform(0.3, 1.1), "int8-anchor": rng.uniform(0.4, 1.1)}
        fitting = [] if block.movement else [form.name for form in choices if form.fits(block)]
        blocks += [BlockTime(block.name, name, seconds * shares[name]) for name in fitting]
    for flow in graph.flows:
        whole = START_S + PER_ELEMENT_S * tensors[flow.name].elements
        quantize, dequantize = whole * rng.uniform(0.3, 1.5, 2) * (rng.random(2) >= FREE_SHARE)
        moves = len(flow.moves) * whole
        glue.append(Glue(flow.name, moves, 0.4 * moves, quantize, dequantize))
    conditions = Conditions(describe(), "imagined", "0", 1, False, "all")
    return Profile(
        graph.model_sha256, conditions, DEFAULT_SCHEME, choices, tuple(blocks), tuple(glue),
        20e-6, 0.1, (),
    )  # fmt: skip


def error(graph: Graph, seed: int) -> tuple[ErrorModel, dict[str, float]]:
    """Made-up noises for the first output, and how much of them a plan may add."""
    rng = np.random.default_rng(seed + 1000)
    own = {block.name: float(rng.lognormal(0.0, 1.5)) for block in graph.candidates() if not block.movement}
    choices = [form for form in precisions(DEFAULT_SCHEME) if form.scheme is not None]
    noises = tuple(
        BlockNoise(name, form.name, own[name] * (1.0 if form.int8_output else 0.7))
        for name in own
        for form in choices
        if form.fits(graph.block(name))
    )
    readers = dict.fromkeys((flow.name, reader) for flow in graph.flows for _, reader in flow.readers if reader in own)
    edges = tuple(EdgeNoise(f, reader, 0.5 * own[reader] * rng.uniform(0.2, 1.8)) for f, reader in readers)
    output = graph.outputs[0]
    model = ErrorModel(
        graph.model_sha256, "made up", DEFAULT_SCHEME, RELATIVE, (OutputModel(output, noises, edges, 0.0, 1.0),),
        0.0, 1, 1, (), (),
    )  # fmt: skip
    return model, {output: NOISE_SHARE * sum(own.values())}


def workload(name: str, cluster: Cluster, seed: int) -> Workload:
    """A network on a cluster whose devices scale the times of one."""
    blocks = graph(name)
    measured = profile(blocks, seed)
    model, limits = error(blocks, seed)
    profiles = {}
    for device in cluster.devices:
        # A device is not as many times as fast in every block.
        rng = np.random.default_rng([seed, cluster.devices.index(device)])
        entries = tuple(replace(entry, seconds=entry.seconds * rng.uniform(0.8, 1.25)) for entry in measured.blocks)
        profiles[device.name] = scaled(replace(measured, blocks=entries), device.scale or 1.0)
    bound = next(iter(limits.values())) ** 0.5
    return Workload(name, blocks, profiles, model, Limits(bound), None, limits)
