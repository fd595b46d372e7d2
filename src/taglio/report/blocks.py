"""Block by block: error caused, time saved, and what the plan chose."""

from dataclasses import dataclass
from typing import Any

from taglio.error.loss import Metric
from taglio.errors import plural
from taglio.model.graph import Block
from taglio.quantize.precision import Assignment, form_of
from taglio.report.material import Material
from taglio.report.network import block_class
from taglio.report.parts import Cell, Part, Table, Text
from taglio.report.units import MISSING, figures, shown

_HEAD = ("block", "error alone", "float", "int8", "saved", "saved per error", "chosen")


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
    assignment = material.plan.assignment() if material.plan is not None else None
    body = [_written(row, assignment, material.metric.basis) for row in rows]
    measured = sum(row.error is not None for row in rows)
    columns = [index for index in range(len(_HEAD)) if not body or any(row[index].text != MISSING for row in body)]
    head, cells = [_HEAD[index] for index in columns], [[row[index] for index in columns] for row in body]
    words = frozenset({head.index("chosen")} if "chosen" in head else ())
    return [Text(_lede(material, measured)), Table(head, cells, look="blocks", words=words, first=30)]


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


def _written(row: _BlockRow, assignment: Assignment | None, basis: Metric) -> list[Cell]:
    block, planned_form, sample = row.block, MISSING, ""
    if assignment is not None:
        planned_form = form_of(assignment, block.name)
        sample = block_class(block, assignment)
    about = block.kind.replace("+", " + ") + (f"; {block.refusal}" if block.refusal else "")
    worth = None if row.worth is None else row.worth * 1e3 / basis.axis[1]  # ms for 1 % where losses are drawn in %
    return [
        Cell(block.name, note=about),
        Cell(shown(basis, row.error)),
        Cell(_milliseconds(row.float_s)),
        Cell(_milliseconds(row.int8_s)),
        Cell(_milliseconds(row.saved_s)),
        Cell(MISSING if worth is None else figures(worth)),
        Cell(planned_form, swatch=sample),
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


def _milliseconds(seconds: float | None) -> str:
    return MISSING if seconds is None else figures(seconds * 1e3)
