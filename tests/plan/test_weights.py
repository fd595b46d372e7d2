"""The weights' program answers beside other solvers of the process."""

import highspy

from taglio.cluster.file import parse
from taglio.plan.assemble import assemble
from taglio.plan.critical import _master, _taken
from taglio.plan.evaluate import evaluate
from taglio.plan.local_search import LocalSearch
from taglio.plan.quiet import Quiet
from taglio.plan.result import Limits
from taglio.plan.workload import Goal, Workload
from tests.plan.test_assemble import PAIR, chain


def test_weights_are_found_whatever_solved_before() -> None:
    """A program with integers starts as many threads as there are cores, and the next one has to take these."""
    before = Quiet()
    before.addVar(0.0, 2.5)
    before.changeColCost(0, -1.0)
    before.changeColIntegrality(0, highspy.HighsVarType.kInteger)
    before.run()
    graph, profiles = chain()
    assembled = assemble([Workload("m", graph, profiles, None, Limits(None))], parse(PAIR), Goal())
    search = LocalSearch(assembled, Goal())
    totals = evaluate(assembled.problem, [0] * len(assembled.problem.nodes))
    assert search.offer(totals)
    master = _master(search)
    master.add(_taken(search, totals))
    # Of a chain on one device the longest path is all of it: no weights are worth more, and the best are worth that.
    seconds = sum(assembled.problem.seconds.reshape(len(totals.labels), -1)[:, 0])
    assert seconds * (1 - 1e-6) <= master.best()[1] <= search.value * (1 + 1e-6)
