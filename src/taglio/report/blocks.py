"""Block by block: error caused, time saved, and what the plan chose."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from taglio.error.loss import Metric
from taglio.errors import plural
from taglio.flow import workspace
from taglio.model.graph import Block
from taglio.quantize.precision import Assignment, form_of
from taglio.report.material import Material
from taglio.report.network import COLORS, block_class
from taglio.report.parts import Axis, Cell, Chart, Mark, Part, Table, Text
from taglio.report.units import MISSING, figures, ms_decimals, shown

_HEAD = ("block", "error alone", "float", "int8", "saved", "saved per error", "chosen")


def damage_and_gain(material: Material) -> list[Part]:
    """A chart with a mark per block, time saved by error alone, coloured by the form in the plan."""
    if material.error is None:
        return material.lacks(workspace.ERROR)
    rows = [row for row in _rows(material) if row.error and row.saved_s is not None]
    if not rows:
        return [Text("No block alone in int8 causes an error.")]
    basis, assignment = material.metric.basis, material.plan.assignment() if material.plan is not None else {}
    title, scale = basis.axis
    marks = []
    for row in rows:
        error, saved_s, planned_form = row.error or 0.0, row.saved_s or 0.0, form_of(assignment, row.block.name)
        text = (
            f"{row.block.name}\n{basis.title} alone {shown(basis, error)}\nsaves {saved_s * 1e6:.0f} µs\n"
            f"planned in {planned_form}"
        )
        marks.append(Mark(saved_s * 1e3, error * scale, COLORS[block_class(row.block, assignment)], text))
    slower = sum((row.saved_s or 0.0) <= 0.0 for row in rows)
    lede = f"{slower} of {plural(len(rows), 'block')} with an error alone are slower in int8."
    caption = "Right: int8 saves time. Up: int8 costs accuracy. Colours are those of the network above."
    x, y = Axis("time saved by int8, ms"), Axis(f"one block alone: {title}", "log")
    return [Text(lede), Chart("error alone against time saved, by block", x, y, marks, caption)]


def sensitivity_object(material: Material) -> dict[str, Any]:
    """What `taglio report --json` says of each block that may be int8; `damage` is a loss, `value` the same in its
    metric's unit. Empty without an error model."""
    if material.error is None:
        return {}
    basis = material.error.metric.basis
    listed = [
        {
            "block": row.block.name,
            "kind": row.block.kind,
            "damage": row.error,
            "value": None if row.error is None else basis.value(row.error),
            "float_s": row.float_s,
            "int8_s": row.int8_s,
        }
        for row in sorted(_rows(material), key=lambda row: -(row.error or 0.0))
        if row.block.quantizable and not row.block.movement
    ]
    return {"metric": basis.name, "sensitivity": listed}


@dataclass(frozen=True, slots=True)
class _BlockRow:
    """One block's numbers; None if unknown. `worth` is seconds saved per unit of error alone."""

    block: Block
    error: float | None
    float_s: float | None
    int8_s: float | None

    @property
    def saved_s(self) -> float | None:
        return None if self.float_s is None or self.int8_s is None else self.float_s - self.int8_s

    @property
    def worth(self) -> float | None:
        return None if self.saved_s is None or not self.error else self.saved_s / self.error


def ranked(material: Material) -> list[Part]:
    """Every block with its error alone in int8 and its times, the largest error first; slow blocks before fast ones
    where that is not known."""
    rows = sorted(_rows(material), key=lambda row: (-1.0 if row.error is None else row.error, row.float_s or 0.0))
    rows.reverse()
    worst = max((row.error or 0.0 for row in rows), default=0.0)
    most = max((row.saved_s or 0.0 for row in rows), default=0.0)
    decimals = ms_decimals(max((row.float_s or 0.0 for row in rows), default=0.0)) + 1
    assignment = material.plan.assignment() if material.plan is not None else None
    body = [_written(row, assignment, material.metric.basis, decimals, worst, most) for row in rows]
    measured = sum(row.error is not None for row in rows)
    columns = [index for index in range(len(_HEAD)) if not body or any(row[index].text != MISSING for row in body)]
    head, cells = [_HEAD[index] for index in columns], [[row[index] for index in columns] for row in body]
    words = frozenset({head.index("chosen")} if "chosen" in head else ())
    key = "error alone" if measured else "float"
    return [
        Text(_lede(material, measured)),
        Table(head, cells, look="blocks", words=words, first=30, sorted_by=key),
    ]


def _rows(material: Material) -> list[_BlockRow]:
    times = material.profile.block_times()
    alone = {}
    if material.error is not None:
        alone = {
            block_error.block: block_error.error
            for block_error in material.error.alone
            if block_error.precision == "int8"
        }
    rows = []
    for block in material.graph.blocks:
        seconds = [None if block.movement else times.get((block.name, form)) for form in ("float32", "int8")]
        rows.append(_BlockRow(block, alone.get(block.name), *seconds))
    return rows


def _written(
    row: _BlockRow, assignment: Assignment | None, basis: Metric, decimals: int, worst: float, most: float
) -> list[Cell]:
    block, planned_form, sample = row.block, MISSING, ""
    if assignment is not None:
        planned_form = form_of(assignment, block.name)
        sample = block_class(block, assignment)
    about = block.kind.replace("+", " + ") + (f"; {block.refusal}" if block.refusal else "")
    worth = None if row.worth is None else row.worth * 1e3 / basis.axis[1]  # ms for 1 % where losses are drawn in %
    return [
        Cell(block.name, note=about, sort=block.name),
        _cell(shown(basis, row.error), row.error, worst, "amount harm"),
        _cell(_milliseconds(row.float_s, decimals), row.float_s),
        _cell(_milliseconds(row.int8_s, decimals), row.int8_s),
        _cell(_milliseconds(row.saved_s, decimals), row.saved_s, most, "amount"),
        _cell(MISSING if worth is None else figures(worth), worth),
        Cell(planned_form, swatch=sample, sort=planned_form),
    ]


def _lede(material: Material, measured: int) -> str:
    basis = material.metric.basis
    unit = "1 %" if basis.axis[1] == 100.0 else "unit"
    text = f"Times in ms; saved is float − int8; saved per error is ms per {unit} of {basis.title} alone."
    if material.error is None:
        return text
    return (
        f"{plural(measured, 'block')} measured alone in int8. {text} Blocks that only move values have their "
        "producer's form and no time of their own."
    )


def _cell(text: str, value: float | None, largest: float = 0.0, look: str = "") -> Cell:
    """A sortable number, with its share of `largest` drawn below."""
    share = value / largest if value is not None and isfinite(value) and largest > 0.0 else 0.0
    return Cell(text, look, sort=None if value is None else f"{value:.6g}", share=share)


def _milliseconds(value: float | None, decimals: int) -> str:
    if value is None or not isfinite(value):
        return MISSING if value is None else figures(value)
    return f"{value * 1e3:.{decimals}f}".replace("-", "−")
