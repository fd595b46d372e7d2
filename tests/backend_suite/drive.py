"""All cases or a sample of them, in processes, and what became of each. Judges nothing."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from tests.backend_suite import exporters
from tests.backend_suite.case import Case, node_cases
from tests.backend_suite.check import CRASH, STATUSES, TIMEOUT, Outcome, check
from tests.backend_suite.compose import compose
from tests.backend_suite.pool import Died, run_all
from tests.backend_suite.variants import variants

GRAPHS = 2000
# Of a case that takes a second on a quiet core.
TIMEOUT_S = 60.0


def all_cases(graphs: int = GRAPHS) -> Iterator[Case]:
    """The node cases, their variants, graphs as exporters make them, and so many composed graphs."""
    for case in node_cases():
        yield from variants(case)
    yield from exporters.cases()
    yield from map(compose, range(graphs))


def sample(count: int, always: Collection[str]) -> list[Case]:
    """One variant each of `count` node cases, evenly spaced, and the cases called `always`."""
    whole, chosen = list(node_cases()), list[Case]()
    turns = {index * len(whole) // count: index for index in range(count)}
    known = {name.partition("+")[0] for name in always}
    for index, case in enumerate(whole):
        if index in turns or case.name in known:
            made = list(variants(case))
            chosen += [each for each in made if each.name in always]
            if index in turns and (drawn := made[turns[index] % len(made)]) not in chosen:
                chosen.append(drawn)
    return chosen


def outcomes(
    cases: Iterable[Case], workers: int = 2, tell: Callable[[str, Outcome], None] | None = None
) -> dict[str, Outcome]:
    """Outcome by name of case."""
    found = {}
    for case, result in run_all(check, cases, workers=workers, timeout_s=TIMEOUT_S):
        if isinstance(result, Died):
            ended = "" if result.timeout else f"exit code {result.exit_code}"
            found[case.name] = Outcome(TIMEOUT if result.timeout else CRASH, ended)
        else:
            found[case.name] = result
        if tell is not None:
            tell(case.name, found[case.name])
    return found


def table(found: Mapping[str, Outcome]) -> str:
    """How many cases ended how: as they are, by variant, composed."""
    groups: dict[str, Counter[str]] = {}
    for name, outcome in found.items():
        group = name.partition("+")[2] or ("graphs" if name.startswith("graph-") else "as it is")
        groups.setdefault(group, Counter())[outcome.status] += 1
    head = "".join(f"{name:>12}" for name in ("", *STATUSES))
    lines = (
        f"{group:>12}" + "".join(f"{counts[status] or '':>12}" for status in STATUSES)
        for group, counts in groups.items()
    )
    return "\n".join([head, *lines])
