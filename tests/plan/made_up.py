"""Made-up graphs, profiles and error models, and the cheapest assignment of them by trying all. No solver in here.

What an assignment costs and how much noise it adds is worked out from the reader's side, tensor by tensor, on purpose
unlike taglio's own three ways (predict, formulate, check), which go from the producer's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import exp, inf, log
from random import Random

from hypothesis import strategies as st

from taglio.error.loss import RELATIVE
from taglio.error.model import BlockNoise, EdgeNoise, ErrorModel, OutputModel
from taglio.model.graph import Block, Graph, Tensor
from taglio.plan.result import Limits
from taglio.profile.machine import Machine
from taglio.profile.result import BlockTime, Conditions, Glue, Profile
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, Precision, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME

CHOICES = precisions(replace(DEFAULT_SCHEME, uncalibrated=("int8-weights", "int8-dynamic", "int4-weights")))
FLOAT, INT8, ANCHOR, *UNCALIBRATED = CHOICES
# The forms that read int8, by name; those without calibration read float.
READ_INT8 = ("int8", "int8-anchor")
MICROSECOND = 1e-6
# Rows of the solver's program and of the checker may be broken by a millionth.
LENIENT = 1e-5


@dataclass
class Sketch:
    """A graph in the making; `tensors` maps a name to its producer."""

    blocks: list[Block] = field(default_factory=list)
    tensors: dict[str, str | None] = field(default_factory=dict)

    def input(self, name: str) -> str:
        self.tensors[name] = None
        return name

    def conv(self, *inputs: str, soft: bool = False) -> str:
        """A block with weights; `soft` gives it an activation that its anchor form leaves in float."""
        return self._add("soft" if soft else "conv", inputs, weights=True, soft=soft)[0]

    def product(self, *inputs: str) -> str:
        """A product with a constant matrix, which also has the forms without calibration."""
        return self._add("product", inputs, weights=True, matrix=True)[0]

    def join(self, *inputs: str) -> str:
        """A weightless operator, which ONNX Runtime makes int8 by itself where all around it is."""
        return self._add("join", inputs)[0]

    def move(self, source: str, outputs: int = 1, refusal: str = "", *, steered_by: str = "") -> list[str]:
        inputs = (source, steered_by) if steered_by else (source,)
        return self._add("move", inputs, outputs=outputs, refusal=refusal, movement=True)

    def refused(self, *inputs: str, outputs: int = 1) -> list[str]:
        return self._add("refused", inputs, outputs=outputs, refusal="no int8 kernel")

    def graph(self, *outputs: str) -> Graph:
        """The graph; tensors that nobody reads leave it too."""
        consumers = {name: tuple(b.name for b in self.blocks if name in b.inputs) for name in self.tensors}
        tensors = tuple(Tensor(name, (1, 8), 4, made_by, consumers[name]) for name, made_by in self.tensors.items())
        inputs = tuple(name for name, made_by in self.tensors.items() if made_by is None)
        loose = [name for name in self.tensors if not consumers[name] and name not in inputs]
        return Graph("made up", tuple(self.blocks), tensors, inputs, tuple(dict.fromkeys((*outputs, *loose))))

    def _add(
        self,
        kind: str,
        inputs: tuple[str, ...],
        *,
        outputs: int = 1,
        weights: bool = False,
        soft: bool = False,
        refusal: str = "",
        movement: bool = False,
        matrix: bool = False,
    ) -> list[str]:
        name = f"{kind}{len(self.blocks)}"
        written = [f"{name}.{index}" for index in range(outputs)]
        operators = (name, f"{name}/tail") if soft else (name,)
        weighted = (f"{name}.w",) if weights else ()
        self.blocks.append(
            Block(
                name,
                kind,
                operators,
                inputs,
                tuple(written),
                weighted,
                len(weighted),
                1,
                refusal,
                movement,
                soft,
                matrix=matrix,
            )
        )
        self.tensors |= dict.fromkeys(written, name)
        return written


def choosers(graph: Graph) -> list[Block]:
    """Blocks that a plan chooses a precision for."""
    return [block for block in graph.blocks if block.quantizable and not block.movement]


def carries(block: Block) -> bool:
    return block.movement and block.quantizable


def origins(graph: Graph) -> dict[str, Tensor]:
    """For every tensor the one that first held its values, before movement."""
    tensors, blocks = graph.tensor_map(), {block.name: block for block in graph.blocks}
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        here = tensor
        while here.producer is not None and carries(blocks[here.producer]):
            here = tensors[blocks[here.producer].inputs[0]]
        result[name] = here
    return result


def readings(graph: Graph) -> list[tuple[str, str]]:
    """(tensor, reading block) of everything that computes; "" reads the model's outputs."""
    inside = [(name, block.name) for block in graph.blocks if not carries(block) for name in block.inputs]
    return inside + [(name, "") for name in graph.outputs]


def edges(graph: Graph) -> list[tuple[str, str]]:
    """(flow, reader) pairs that an error model may give noise to."""
    able = {block.name for block in choosers(graph)}
    origin = origins(graph)
    return list(dict.fromkeys((origin[tensor].name, reader) for tensor, reader in readings(graph) if reader in able))


def seconds(graph: Graph, profile: Profile, chosen: Assignment) -> float:
    """What an assignment takes by the tables."""
    name = {block.name: chosen[block.name].name if block.name in chosen else "float32" for block in graph.blocks}
    total = profile.overhead_s + sum(t.seconds for t in profile.blocks if name[t.block] == t.precision)
    origin, tensors = origins(graph), graph.tensor_map()
    for glue in profile.glue:
        mine = [(tensor, reader) for tensor, reader in readings(graph) if origin[tensor].name == glue.flow]
        into_int8 = {tensor for tensor, reader in mine if name.get(reader) in READ_INT8}
        into_float = [reader for _, reader in mine if name.get(reader) not in READ_INT8]
        producer = tensors[glue.flow].producer
        form = name[producer] if producer is not None else "float32"
        if form == "int8":
            total += glue.int8_s + glue.dequantize_s * len(into_float)
        else:
            total += glue.float_s + glue.quantize_s * len(into_int8)
    return total


def noise(graph: Graph, output: OutputModel, chosen: Assignment) -> float:
    """The noise sum of one output."""
    own = {(entry.block, entry.precision): entry.own for entry in output.blocks}
    edge = {(entry.flow, entry.reader): entry.noise for entry in output.edges}
    producer = {tensor.name: tensor.producer for tensor in graph.tensors}
    total = sum(own.get((block, precision.name), 0.0) for block, precision in chosen.items())
    for flow, reader in edges(graph):
        source = producer[flow]
        in_int8 = source is not None and source in chosen and chosen[source].name == "int8"
        reads_int8 = reader in chosen and chosen[reader].name in READ_INT8
        total += edge.get((flow, reader), 0.0) if reads_int8 and not in_int8 else 0.0
    return total


def upper_error(graph: Graph, error: ErrorModel, chosen: Assignment) -> float:
    """Upper end of the predicted error."""
    guesses = [0.0]
    for output in error.outputs:
        total = noise(graph, output, chosen)
        guesses.append(exp(output.level) * total ** (output.exponent / 2) if total else 0.0)
    return max(guesses) * exp(error.upper_log)


def within(graph: Graph, error: ErrorModel, bound: float, chosen: Assignment, lenience: float) -> bool:
    """Whether the upper end keeps `bound`, with `lenience` on the noise."""
    for output in error.outputs:
        total = noise(graph, output, chosen)
        if not total:
            continue
        if not bound:
            return False
        reached = log(total) * output.exponent / 2 + output.level + error.upper_log
        if reached > log(bound) + lenience * output.exponent / 2:
            return False
    return True


def assignments(graph: Graph, limits: Limits) -> Iterator[dict[str, Precision]]:
    """Every assignment that ONNX Runtime can run and that keeps the pins, once each."""
    able = choosers(graph)
    held = {block.name for block in able} & set(limits.float_blocks)
    options = []
    for block in able:
        fitting = [precision for precision in CHOICES if precision.fits(block)]
        if block.name in held:
            fitting = [FLOAT]
        elif block.name in limits.int8_blocks:
            fitting = [precision for precision in fitting if precision.name in READ_INT8]
        options.append(fitting)
    seen: set[tuple[tuple[str, str], ...]] = set()
    for row in product(*options):
        asked = {block.name: precision for block, precision in zip(able, row) if precision is not FLOAT}
        chosen = effective(graph, asked, INT8)
        key = tuple((name, precision.name) for name, precision in chosen.items())
        # A block held in float may be int8 all the same, where it has no weights and only int8 around it.
        if key not in seen and not set(chosen) & held:
            seen.add(key)
            yield chosen


def cheapest(
    graph: Graph, profile: Profile, error: ErrorModel | None, limits: Limits, lenience: float = 0.0
) -> tuple[float, dict[str, Precision]]:
    """Least seconds over all assignments within the limits; infinite where there is none."""
    best: tuple[float, dict[str, Precision]] = (inf, {})
    for chosen in assignments(graph, limits):
        if error is None or limits.max_error is None or within(graph, error, limits.max_error, chosen, lenience):
            took = seconds(graph, profile, chosen)
            best = min(best, (took, chosen), key=lambda candidate: candidate[0])
    return best


def profile_of(
    graph: Graph,
    blocks_us: Mapping[tuple[str, str], float],
    glue_us: Mapping[str, tuple[float, ...]],
    overhead_us: float = 0.0,
) -> Profile:
    """A profile from microseconds by (block, precision), and by flow (float, int8, quantise, dequantise)."""
    machine = Machine("imagined", 1, (), 0, "none", "3")
    return Profile(
        graph.model_sha256,
        Conditions(machine, "imagined", "0", 1, False, "all"),
        DEFAULT_SCHEME,
        CHOICES,
        tuple(BlockTime(b, p, us * MICROSECOND) for (b, p), us in blocks_us.items()),
        tuple(
            Glue(flow, a * MICROSECOND, b * MICROSECOND, c * MICROSECOND, d * MICROSECOND)
            for flow, (a, b, c, d) in glue_us.items()
        ),
        overhead_us * MICROSECOND,
        0.1,
        (),
    )


def error_of(graph: Graph, outputs: tuple[OutputModel, ...], upper_log: float = 0.0) -> ErrorModel:
    return ErrorModel(graph.model_sha256, "data", DEFAULT_SCHEME, RELATIVE, outputs, upper_log, 1, 1, (), ())


def forms(block: Block) -> list[str]:
    """Names of a block's precisions."""
    return [precision.name for precision in CHOICES if precision.fits(block)]


@dataclass(frozen=True, slots=True)
class Problem:
    """All that a plan is made from."""

    graph: Graph
    profile: Profile
    error: ErrorModel
    limits: Limits


# Hypothesis draws the sizes and a seed for the rest: its own numbers crowd around zero, where every plan is float.
KINDS = ("conv", "conv", "conv", "soft", "join", "join", "join", "move", "move", "refused", "stuck")


@st.composite
def problems(
    draw: st.DrawFn, largest: int = 7, *, sparing: bool = True, kinds: Sequence[str] = KINDS, smallest: int = 2
) -> Problem:
    """A graph of `smallest` to `largest` blocks of some `kinds` with times, noises and limits; `sparing`: some changes
    of type spare time."""
    count = draw(st.sampled_from(range(smallest, largest + 1)))
    return problem_of(draw(st.randoms(use_true_random=True)), count, kinds=kinds, sparing=sparing)


def problem_of(rng: Random, count: int, *, kinds: Sequence[str] = KINDS, sparing: bool = True) -> Problem:
    """A problem of `count` blocks, as `problems` draws them."""
    graph = _graph(rng, count, kinds)
    profile, error = _profile(rng, graph, sparing), _error(rng, graph)
    return Problem(graph, profile, error, _limits(rng, graph, error))


def _graph(rng: Random, count: int, kinds: Sequence[str] = KINDS) -> Graph:
    """A chain with fan-out, joins, movement, soft tails, refused blocks, and outputs in the middle."""
    sketch, back = Sketch(), rng.randint(1, 3)
    for index in range(rng.randint(1, 2)):
        sketch.input(f"in{index}")
    for _ in range(count):
        kind = rng.choice(kinds)
        recent = list(sketch.tensors)[-back:]
        first, second = rng.choice(recent), rng.choice(recent)
        if kind in ("conv", "soft"):
            sketch.conv(first, soft=kind == "soft")
        elif kind == "product":
            sketch.product(first)
        elif kind == "join":
            sketch.join(*dict.fromkeys((first, second)))
        elif kind == "move":
            sketch.move(first, rng.randint(1, 2))
        elif kind == "stuck":
            sketch.move(first, refusal="its shape is computed while running")
        else:
            sketch.refused(*dict.fromkeys((first, second)), outputs=rng.randint(1, 2))
    written = [name for name, producer in sketch.tensors.items() if producer is not None]
    return sketch.graph(*(name for name in written if rng.random() < 0.1))


def _profile(rng: Random, graph: Graph, sparing: bool) -> Profile:
    """Whole microseconds: two plans that differ, differ by more than the solver's gap."""
    # int8 is faster more often than not, or there would be nothing to decide.
    blocks = {
        (block.name, name): 0 if block.movement else rng.randint(0, {"float32": 60, "int8-anchor": 50}.get(name, 40))
        for block in graph.blocks
        for name in forms(block)
    }
    most = rng.choice((0, 4, 12))
    flows = dict.fromkeys(tensor.name for tensor in origins(graph).values())
    least = rng.choice((0, 0, -10)) if sparing else 0
    glue = {
        flow: tuple(float(rng.randint(least if change else 0, most)) for change in (False, False, True, True))
        for flow in flows
    }
    return profile_of(graph, blocks, glue, rng.randint(0, 20))


def _error(rng: Random, graph: Graph) -> ErrorModel:
    """One to three outputs with noises of one size or over decades, some of them none."""
    decades = rng.choice((0.0, 1.0, 6.0))

    def amount() -> float:
        return 10.0 ** (-2.0 - decades * rng.random()) if rng.random() < 0.8 else 0.0

    outputs = []
    for index in range(rng.randint(1, 3)):
        own = tuple(BlockNoise(b.name, name, amount()) for b in choosers(graph) for name in forms(b)[1:])
        edge = tuple(EdgeNoise(flow, reader, amount()) for flow, reader in edges(graph))
        level, exponent = rng.uniform(-1.0, 1.0), rng.choice((0.5, 0.8, 1.0, 1.2))
        outputs.append(OutputModel(f"output{index}", own, edge, level, exponent))
    return error_of(graph, tuple(outputs), rng.choice((0.0, 0.3)))


def _limits(rng: Random, graph: Graph, error: ErrorModel) -> Limits:
    """A bound near what some subset reaches, or none; pins that do not contradict each other."""
    able = choosers(graph)
    often = rng.choice((0.0, 0.0, 0.3, 0.7))
    pins = {block.name: rng.choice(("float", "int8")) if rng.random() < often else "" for block in able}
    some = {block.name: INT8 for block in able if rng.random() < 0.5}
    reached = upper_error(graph, error, effective(graph, some, INT8))
    bound = rng.choice((1.001, 0.999, 0.3, 3.0, None))
    return Limits(
        None if bound is None or reached == 0.0 else bound * reached,
        tuple(name for name, pin in pins.items() if pin == "float"),
        tuple(name for name, pin in pins.items() if pin == "int8"),
    )
