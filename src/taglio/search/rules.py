"""Plans by simple rules, which need no solver: candidates where the tables are wrong. Times nothing."""

from collections.abc import Mapping

from taglio.model.graph import ANCHORS, Graph
from taglio.plan.result import Limits
from taglio.profile.measure import FLOAT_RUN, pure_assignments
from taglio.profile.result import Profile
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, Precision, int8_of, key_of
from taglio.search.ledger import INT8_RUN, PLAIN


def by_rules(graph: Graph, measured: Profile, limits: Limits) -> dict[str, Assignment]:
    """Distinct assignments that need no solver, by the name of their rule: float; all int8; only blocks with weights in
    int8; and for each form without calibration, all blocks that have it, unless blocks are forced into int8."""
    whole = int8_of(measured.precisions)
    pure = {
        name: {block: form for block, form in assignment.items() if block not in limits.float_blocks}
        for name, assignment in pure_assignments(graph, measured.precisions).items()
        if name != "int8-anchor"
    }
    # Weightless blocks gain little in int8, and the tables are least sure of the cost of their boundaries.
    weighted = {
        name: form
        for name, form in pure["int8"].items()
        if graph.block(name).anchor in ANCHORS or name in limits.int8_blocks
    }
    everything = pure.pop(INT8_RUN)
    rules: dict[str, Mapping[str, Precision]] = {FLOAT_RUN: {}, INT8_RUN: everything, "weights": weighted}
    if not limits.int8_blocks:
        rules |= pure
    result: dict[str, Assignment] = {}
    for rule, forms in rules.items():
        assignment = effective(graph, forms, whole)
        if rule in PLAIN or all(key_of(assignment) != key_of(other) for other in result.values()):
            result[rule] = assignment
    return result
