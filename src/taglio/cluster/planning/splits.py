"""Ways to split the blocks of placements into components (schedule.py: levels), with lower bounds on their latency.

A component waits for all that its blocks read, and its outputs leave when it ends. A split costs an overhead, and lets
some outputs leave earlier. Does not schedule: a device may also be busy with another component.
"""

from collections.abc import Sequence

import numpy as np

from taglio.cluster.planning.bounds import Bounds, Rows

# Most ways that are listed.
_MOST = 20_000


def splits(sources: Sequence[Sequence[int]], places: Sequence[int], most: Sequence[int]) -> np.ndarray | None:
    """The levels of every split into at most so many components of each place (split, node), each once; None if there
    are too many. `sources` are the nodes that each node reads from; those of one place may share a component."""
    top = sum(most[place] for place in set(places))
    levels = np.zeros((1, 0), dtype=np.int8)
    for node, place in enumerate(places):
        low = np.zeros(len(levels), dtype=np.int8)
        for source in sources[node]:
            low = np.maximum(low, levels[:, source] + (places[source] != place))
        split, level = np.nonzero(np.arange(top) >= low[:, None])
        levels = np.column_stack([levels[split], level.astype(np.int8)])
        mine = [other for other in range(node + 1) if places[other] == place]
        levels = levels[_distinct(levels[:, mine]) <= most[place]]
        if len(levels) > _MOST:
            return None
    return np.asarray(levels[_distinct(levels) == levels.max(axis=1, initial=-1) + 1])


def components(levels: np.ndarray, places: Sequence[int], count: int) -> np.ndarray:
    """The number of components of each of `count` places (split, place)."""
    held = np.array(places)
    return np.stack([_distinct(levels[:, held == place]) for place in range(count)], axis=1)


def _distinct(levels: np.ndarray) -> np.ndarray:
    """How many levels each row has."""
    ordered = np.sort(levels, axis=1)
    return np.asarray((np.diff(ordered, axis=1) > 0).sum(axis=1) + (ordered.shape[1] > 0))


def latencies_s(bounds: Bounds, rows: Rows, levels: np.ndarray) -> np.ndarray:
    """A lower bound on the seconds of a request (row, model): complete placements on the same devices, each with its
    levels (row, node)."""
    ends, last = np.zeros(levels.shape), np.zeros((len(rows), len(bounds.paths)))
    device = bounds.device[rows.labels[0]]
    for model in range(len(bounds.paths)):
        nodes, overhead_s = bounds.assembled.nodes(model), bounds.assembled.overhead_s[model]
        came = {node: _reads(bounds, rows, model, node) for node in nodes}
        answered = {node: _answer_s(bounds, rows, model, node) for node in nodes}
        for level in range(int(levels.max(initial=-1)) + 1):
            for place in sorted({int(device[node]) for node in nodes}):
                mine = [node for node in nodes if device[node] == place]
                now = levels[:, mine] == level
                start, arrived = np.zeros(len(rows)), np.zeros(len(rows))
                for column, node in enumerate(mine):
                    for producer, seconds, after_s in came[node]:
                        begun = seconds
                        if producer is not None:
                            inside = (device[producer] == place) & (levels[:, producer] == level)
                            begun = np.where(inside, 0.0, ends[:, producer] + seconds)
                        start = np.where(now[:, column], np.maximum(start, begun), start)
                        arrived = np.where(now[:, column], np.maximum(arrived, begun - after_s), arrived)
                whole = overhead_s[place] + rows.sums[:, bounds.columns.busy[model, place]]
                whole = np.zeros(len(rows)) if bounds.columns.spares else whole
                end = start + np.maximum(0.0, overhead_s[place] + (now * rows.seconds[:, mine]).sum(axis=1))
                ends[:, mine] = np.where(now, end[:, None], ends[:, mine])
                for column, node in enumerate(mine):
                    seconds, before_s = answered[node]
                    last[:, model] = np.maximum(last[:, model], np.where(now[:, column], end + seconds, 0.0))
                    # One component does all that its device has to do, changes of type included.
                    done = np.where(now.all(axis=1), arrived + whole + seconds - before_s, 0.0)
                    last[:, model] = np.maximum(last[:, model], done)
    return last


def _reads(bounds: Bounds, rows: Rows, model: int, node: int) -> list[tuple[int | None, np.ndarray, np.ndarray]]:
    """What a node reads: its producer, None for an input; seconds by row from the end of the producer's component, or
    from the request, to the earliest start of the node; and how many of them its own component takes."""
    paths, first = bounds.paths[model], bounds.assembled.first_node[model]
    label, here = rows.labels[:, node], int(bounds.device[rows.labels[0, node]])
    found: list[tuple[int | None, np.ndarray, np.ndarray]] = []
    for edge in paths.reads[node - first]:
        producer = None if edge.producer is None else first + edge.producer
        made = np.zeros_like(label) if producer is None else rows.labels[:, producer]
        far = producer is None or bounds.device[made[0]] != here
        begun = float(bounds.assembled.overhead_s[model][here]) if far else 0.0
        copies = rows.copies[:, edge.value, here]
        seconds, after_s = (table[copies, made, label] - begun for table in (edge.seconds, edge.after_s))
        found.append((producer, seconds, after_s))
    return found


def _answer_s(bounds: Bounds, rows: Rows, model: int, node: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds by row from the end of a node's component to the last answer made of the node's outputs (0 without any),
    and the most of them that its device changes types."""
    paths, first = bounds.paths[model], bounds.assembled.first_node[model]
    seconds, before_s = np.zeros(len(rows)), np.zeros(len(rows))
    for edge in paths.answers[node - first]:
        at = rows.copies[:, edge.value, paths.table.home], rows.labels[:, node], 0
        seconds, before_s = np.maximum(seconds, edge.seconds[at]), np.maximum(before_s, edge.before_s[at])
    return seconds, before_s
