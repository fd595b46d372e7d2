"""A whole workspace as terminal tables, in the order of the flow, for `taglio report`."""

from collections.abc import Callable
from pathlib import Path

from taglio.report import terminal, terminal_cluster
from taglio.report.material import Material


def show(folder: Path, material: Material) -> None:
    """Print the tables of every artifact that the workspace holds."""
    graph, error, plan, run, outcome = material.graph, material.error, material.plan, material.run, material.outcome
    tables: list[tuple[str, Callable[[], None]]] = []
    if graph is not None:
        tables.append(("Profile", lambda: terminal.profile(graph, material.profile)))
        if error is not None:
            tables.append(("Error", lambda: terminal.error(graph, error)))
    if plan is not None:
        many = len(plan.usage) > 1 or bool(plan.crossings)
        tables.append(("Plan", lambda: terminal_cluster.one(plan) if many else terminal.plan(plan)))
    if run is not None:
        tables.append(("Run", lambda: terminal.run(run)))
    if outcome is not None:
        tables.append(("Result", lambda: terminal.outcome(folder, outcome)))
    for title, table in tables:
        terminal.say(f"\n{title}")
        table()
    for absent in material.absent.values():
        terminal.say(f"missing: {absent.reason} To make it: {absent.command}")
