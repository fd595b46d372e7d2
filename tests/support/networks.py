"""Made-up networks whose true seconds and errors are known: tables of the size that real ones have. Runs nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp
from random import Random

from taglio.error.model import BlockNoise, EdgeNoise, ErrorModel, OutputModel
from taglio.model.graph import Block, Graph
from taglio.profile.result import Profile
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.onnxruntime import NAME
from tests.plan.made_up import Sketch, choosers, edges, error_of, origins, profile_of

SCHEME = replace(DEFAULT_SCHEME, uncalibrated=("int8-weights",))
FORMS = precisions(SCHEME, NAME)
# A block's seconds in another form over those in float, and its error alone over that in int8.
_SHARE = {"int8": 0.5, "int8-anchor": 0.6, "int8-weights": 0.85}
_ERROR = {"int8": 1.0, "int8-anchor": 0.7, "int8-weights": 0.2}
# Typical error of a block alone in int8, and the spread of its logarithm.
_ALONE, _SPREAD = 0.003, 0.8


@dataclass(frozen=True, slots=True)
class Network:
    """A graph with its true seconds and errors, but for what no table explains."""

    graph: Graph
    seconds: Profile
    errors: ErrorModel


def network(seed: int, blocks: int = 14, *, int8_pays: bool = True) -> Network:
    """Convolutions, some with an activation that is not free in int8, matrix products and joins. Unless `int8_pays`,
    every other form is slower than float."""
    rng = Random(f"network {seed}")
    graph = _graph(rng, blocks)
    return Network(graph, _seconds(rng, graph, 1.0 if int8_pays else 4.0), _errors(rng, graph))


def perturbed(network: Network, rng: Random, share_s: float, share_error: float) -> Network:
    """The same with each entry of its tables off by a random factor: what a profile and a study on few inputs say."""

    def off(share: float) -> Callable[[float], float]:
        return lambda value: value * exp(rng.gauss(0.0, share))

    seconds, error = off(share_s), off(share_error)
    profile, model = network.seconds, network.errors
    profile = replace(
        profile,
        blocks=tuple(replace(block, seconds=seconds(block.seconds)) for block in profile.blocks),
        glue=tuple(replace(glue, quantize_s=seconds(glue.quantize_s)) for glue in profile.glue),
    )
    outputs = tuple(
        replace(
            output,
            blocks=tuple(replace(block, own=error(error(block.own))) for block in output.blocks),
            edges=tuple(replace(edge, noise=error(error(edge.noise))) for edge in output.edges),
        )
        for output in model.outputs
    )
    return replace(network, seconds=profile, errors=replace(model, outputs=outputs))


def _graph(rng: Random, blocks: int) -> Graph:
    sketch = Sketch()
    tensors = [sketch.input("x")]
    for index in range(blocks):
        kind = rng.random()
        recent = tensors[-2:]
        if index > 1 and kind < 0.2:
            tensors.append(sketch.join(*recent))
        elif kind < 0.4:
            tensors.append(sketch.product(tensors[-1]))
        else:
            tensors.append(sketch.conv(tensors[-1], soft=kind < 0.55))
    graph = sketch.graph()
    kinds = {"conv": "Conv", "soft": "Conv", "product": "MatMul", "join": "Add"}
    return replace(graph, blocks=tuple(replace(block, kind=kinds[block.kind]) for block in graph.blocks))


def _forms(block: Block) -> list[str]:
    return [form.name for form in FORMS if form.fits(block)]


def _seconds(rng: Random, graph: Graph, slower: float) -> Profile:
    """Microseconds of a network of about a millisecond."""
    blocks: dict[tuple[str, str], float] = {}
    for block in graph.blocks:
        float_us = rng.uniform(5.0, 20.0) if not block.weights else exp(rng.gauss(4.2, 0.5))
        for form in _forms(block):
            blocks[block.name, form] = float_us * slower * _SHARE.get(form, 1.0 / slower) * exp(rng.gauss(0.0, 0.25))
    flows = {tensor.name for tensor in origins(graph).values()}
    glue = {name: (0.0, 0.0, rng.uniform(2.0, 12.0), rng.uniform(2.0, 12.0)) for name in sorted(flows)}
    profile = profile_of(graph, blocks, glue, 20.0)
    conditions = replace(profile.conditions, runtime=NAME)
    return replace(profile, scheme=SCHEME, precisions=FORMS, conditions=conditions)


def _errors(rng: Random, graph: Graph) -> ErrorModel:
    own = tuple(
        BlockNoise(block.name, form, (alone * _ERROR[form]) ** 2)
        for block in choosers(graph)
        for alone in [_ALONE * exp(rng.gauss(0.0, _SPREAD))]
        for form in _forms(block)
        if form in _ERROR
    )
    edge = tuple(EdgeNoise(flow, reader, (rng.uniform(0.1, 0.5) * _ALONE) ** 2) for flow, reader in edges(graph))
    model = error_of(graph, (OutputModel(graph.outputs[-1], own, edge, 0.0, 1.0),), upper_log=0.3)
    return replace(model, scheme=SCHEME)
