"""Between a plan's words (block, device, precision) and a problem's labels. Chooses nothing."""

from collections.abc import Mapping, Sequence

from taglio.errors import BadOption
from taglio.plan.assemble import CARRY_ANCHOR, Assembled
from taglio.plan.problem import Kind
from taglio.plan.result import Placement
from taglio.quantize.precision import FLOAT32, Assignment, Precision


def labels_of(assembled: Assembled, model: int, devices: Mapping[str, str], assignment: Assignment) -> list[int]:
    """Labels of one model's nodes; a movement block carries on what its input's producer wrote.

    Raises BadOption for a device that the cluster lacks.
    """
    problem, graph = assembled.problem, assembled.workloads[model].graph
    columns = {form.name: index for index, form in enumerate(problem.forms)}
    rows = {name: index for index, name in enumerate(problem.devices)}
    tensors = graph.tensor_map()
    kinds: dict[str, Kind] = {}
    labels = []
    for block in graph.blocks:
        name = assignment[block.name].name if block.name in assignment else FLOAT32.name
        if block.movement and block.quantizable:
            kind = kinds.get(tensors[block.inputs[0]].producer or "", Kind.FLOAT)
            name = {Kind.FLOAT: FLOAT32.name, Kind.ANCHOR: CARRY_ANCHOR}.get(kind) or _carried(assembled)
        if devices[block.name] not in rows:
            raise BadOption(f'block {block.name} is placed on "{devices[block.name]}", which the cluster has not')
        kinds[block.name] = problem.forms[columns[name]].writes
        labels.append(problem.label(rows[devices[block.name]], columns[name]))
    return labels


def placements_of(
    assembled: Assembled, model: int, labels: Sequence[int], stages: Sequence[int] = ()
) -> tuple[Placement, ...]:
    """Placements of one model's blocks; `labels` are those of all nodes, and so are `stages` where there are any."""
    problem = assembled.problem
    found = []
    for node, block in zip(assembled.nodes(model), assembled.workloads[model].graph.blocks, strict=True):
        device, form = problem.split(labels[node])
        name = problem.forms[form].name
        name = FLOAT32.name if name == CARRY_ANCHOR else name
        found.append(Placement(block.name, problem.devices[device], name, stages[node] if stages else 0))
    return tuple(found)


def assignment_of(assembled: Assembled, model: int, placements: Sequence[Placement]) -> dict[str, Precision]:
    """Precision by block, those in float32 left out."""
    known = {each.name: each for each in assembled.workloads[model].precisions}
    return {each.block: known[each.precision] for each in placements if each.precision != FLOAT32.name}


def _carried(assembled: Assembled) -> str:
    """The name of the form in which movement carries int8."""
    return next(form.name for form in assembled.problem.forms if form.reads == form.writes == Kind.INT8)
