"""Select blocks of a graph by name patterns. Knows no costs."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from taglio.errors import BadOption, plural
from taglio.model.graph import NO_INT8, Graph, WhyNot


def match(graph: Graph, patterns: Iterable[str], why_not: WhyNot = NO_INT8, form: str = "int8") -> tuple[str, ...]:
    """Blocks that have a `form` and whose name, or the name of one of their operators, matches a shell-style pattern.
    `why_not` says why a block lacks the form. Raises BadOption for a pattern that matches none."""
    chosen: list[str] = []
    for pattern in patterns:
        hits = [block for block in graph.blocks if any(fnmatchcase(n, pattern) for n in (block.name, *block.operators))]
        usable = [block.name for block in hits if not why_not(block)]
        if not hits:
            raise BadOption(
                f'pattern "{pattern}" matches none of {plural(len(graph.blocks), "block")}: `taglio inspect` lists them'
            )
        if not usable:
            raise BadOption(f'pattern "{pattern}" matches only blocks without an {form} form: {why_not(hits[0])}')
        chosen += usable
    return tuple(dict.fromkeys(chosen))
