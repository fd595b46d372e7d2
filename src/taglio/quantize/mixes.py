"""Random mixes of forms, which profiles and error models are fitted to. Measures nothing."""

import random
from collections.abc import Iterator, Sequence
from itertools import count

from taglio.model.graph import Graph
from taglio.quantize.effective import effective
from taglio.quantize.precision import BFLOAT16, FLOAT32, Assignment, Precision, first_fit, int8_of

# The precision of blocks that are not quantised, and those that some of them have too.
_BESIDE_INT8 = ((BFLOAT16,), (FLOAT32, BFLOAT16), (BFLOAT16,), (BFLOAT16, FLOAT32))


def draw_mixes(graph: Graph, choices: Sequence[Precision], seed: int) -> Iterator[dict[str, Precision]]:
    """Random assignments without end: half draw every block independently, half draw runs of neighbours, as plans have;
    densities from sparse to dense."""
    rng = random.Random(seed)
    int8 = int8_of(choices)
    quantized = [choice for choice in choices if choice not in (FLOAT32, BFLOAT16)]
    for index in count():
        density = rng.uniform(0.03, 1.0)
        stay = 0.0 if index % 2 == 0 else 0.8
        # A model computes in one precision beside int8, or mixes both.
        others = _BESIDE_INT8[index % len(_BESIDE_INT8)] if BFLOAT16 in choices else (FLOAT32,)
        forms = [*quantized, *others[1:]]
        assignment: dict[str, Precision] = {}
        current: Precision | None = None
        for block in graph.choices():
            if rng.random() >= stay:
                current = rng.choice(forms) if rng.random() < density else None
            form = first_fit(block, (current, *forms) if current is not None else others[:1])
            if form is not None and form != FLOAT32:
                assignment[block.name] = form
        yield effective(graph, assignment, int8)


def random_mixes(graph: Graph, choices: Sequence[Precision], number: int, seed: int) -> dict[str, Assignment]:
    """So many random mixes, by name."""
    drawn = zip(range(number), draw_mixes(graph, choices, seed), strict=False)
    return {f"mix{index}": mix for index, mix in drawn}
