"""Compare the memory that every placement needs with that of the devices. A bound: it may miss a shortfall."""

from itertools import combinations

import numpy as np

from taglio.cluster.planning.costs import Costs, over
from taglio.cluster.planning.problem import Problem
from taglio.errors import Infeasible


def memory_shortfall(problem: Problem) -> Infeasible | None:
    """Why the memories are too small for every placement; None if this bound does not show it."""
    if problem.memory is None or not np.isfinite(problem.memory.capacity).any():
        return None
    return _of_one_block(problem) or _of_weights(problem)


def _of_one_block(problem: Problem) -> Infeasible | None:
    """A block that fits no device: its weights, and while it runs its inputs and outputs."""
    assert problem.memory is not None
    costs, room = Costs(problem), problem.memory.capacity
    needed = np.where(problem.allowed, costs.needed_bytes()[:, None], np.inf).min(axis=2)
    for node, name in enumerate(problem.nodes):
        places = np.flatnonzero(np.isfinite(needed[node]))
        if len(places) and all(over(needed[node, place], room[place]) for place in places.tolist()):
            where = " and ".join(
                f"{_mb(needed[node, place])} on {problem.devices[place]} (memory_mb = {_mb(room[place], unit='')})"
                for place in places.tolist()
            )
            return _refusal(f"block {name} needs at least {where} for its weights, inputs and outputs")
    return None


def _of_weights(problem: Problem) -> Infeasible | None:
    """Devices whose memories together are smaller than the weights of the blocks that no other device may run."""
    memory = problem.memory
    assert memory is not None
    count = len(problem.devices)
    least = np.where(problem.allowed, memory.weights[:, None], np.inf).min(axis=(1, 2))
    usable = problem.allowed.any(axis=2)
    sizes = range(1, count + 1) if count <= 8 else (1, count)  # of groups: 255 at most are compared
    for size in sizes:
        for group in combinations(range(count), size):
            inside = np.isin(np.arange(count), group)
            needed = float(least[~(usable & ~inside).any(axis=1)].sum())
            if over(needed, float(memory.capacity[list(group)].sum())):
                names = [problem.devices[place] for place in group]
                has = " + ".join(f"{memory.capacity[place] / 1e6:.4g}" for place in group)
                only = "all blocks" if size == count else f"the blocks that may run only on {' or '.join(names)}"
                return _refusal(
                    f"the weights of {only} need at least {_mb(needed)}, and {' and '.join(names)} "
                    f"{'have' if size > 1 else 'has'} {has} MB"
                )
    return None


def _mb(size: float, unit: str = " MB") -> str:
    return f"{size / 1e6:.4g}{unit}"


def _refusal(shortfall: str) -> Infeasible:
    return Infeasible(f"{shortfall}: raise memory_mb, or add a device", ["memory_bytes"])
