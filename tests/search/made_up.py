"""A chain of convolutions, and a truth that differs from its error model."""

import random
from dataclasses import replace

from taglio.error.measure import Evidence
from taglio.error.model import BlockNoise, ErrorModel, OutputModel
from taglio.model.graph import Graph
from taglio.profile.result import Profile
from taglio.quantize.precision import FLOAT32, Assignment, Forms, key_of
from tests.plan.made_up import Sketch, choosers, error_of, forms, profile_of


def chain(blocks: int = 12, upper_log: float = 0.3) -> tuple[Graph, Profile, ErrorModel]:
    """Convolutions in a row, each with its own gain and noise, so that a bound decides how many are int8."""
    sketch, rng = Sketch(), random.Random(1)
    tensor = sketch.input("x")
    for _ in range(blocks):
        tensor = sketch.conv(tensor)
    graph = sketch.graph()
    times = {
        (b.name, name): float(rng.randint(60, 99) if name == "float32" else rng.randint(20, 50))
        for b in graph.blocks
        for name in forms(b)
    }
    own = tuple(BlockNoise(block.name, "int8", 1e-4 * rng.uniform(0.5, 2.0)) for block in choosers(graph))
    glue = {tensor.name: (0.0, 0.0, 3.0, 3.0) for tensor in graph.tensors}
    error = error_of(graph, (OutputModel("y", own, (), 0.0, 1.0),), upper_log)
    return graph, profile_of(graph, times, glue), error


def paying(profile: Profile) -> Profile:
    """The profile as if every block took 1 ms in float, and half of that in any other form."""
    blocks = tuple(replace(each, seconds=1e-3 if each.precision == FLOAT32.name else 5e-4) for each in profile.blocks)
    glue = tuple(each.times(0.0) for each in profile.glue)
    return replace(profile, blocks=blocks, glue=glue, overhead_s=0.0)


class Hidden:
    """A truth that differs from the error model by a factor, the same for all assignments or one for each."""

    def __init__(self, graph: Graph, error: ErrorModel, factor: float, spread: float = 0.0) -> None:
        self.graph, self.error, self.factor, self.spread = graph, error, factor, spread
        self.measured = dict[Forms, Evidence]()
        self.asked: list[Forms] = []

    def evidence(self, assignment: Assignment) -> Evidence:
        """As an ErrorMeter."""
        forms = key_of(assignment)
        if forms not in self.measured:
            self.asked.append(forms)
            error = self.truth(assignment)
            l2 = {output.output: error for output in self.error.outputs}
            self.measured[forms] = Evidence(assignment, error, error, l2)
        return self.measured[forms]

    def truth(self, assignment: Assignment) -> float:
        own = random.Random(str(named(assignment))).gauss(0.0, self.spread)
        return self.error.predict(self.graph, assignment) * self.factor * (1.0 + max(-0.9, own))


def named(assignment: Assignment) -> list[tuple[str, str]]:
    return sorted((block, precision.name) for block, precision in assignment.items())
