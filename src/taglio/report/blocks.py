"""Block by block: error caused, time saved, what to leave out, and what the plan chose."""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import msgspec

from taglio.error.loss import Metric
from taglio.errors import plural
from taglio.flow import workspace
from taglio.flow.sensitivity import Sensitivity
from taglio.flow.sensitivity import sensitivity as sensitivities
from taglio.model.graph import Block
from taglio.quantize.precision import Assignment, form_of
from taglio.report.material import Material
from taglio.report.network import block_class
from taglio.report.parts import Axis, Cell, Chart, Columns, Mark, Part, Table, Text
from taglio.report.units import MISSING, figures, ms_decimals, shown

_FIRST, _REASONS = 30, 12
_HEAD = ("block", "error alone", "float", "int8", "saved", "saved per error", "chosen")


def damage_and_gain(material: Material) -> list[Part]:
    """A chart with a mark per block, time saved by error alone (hollow: better kept in float), and the list of those to
    leave out."""
    if material.error is None:
        return material.lacks(workspace.ERROR)
    rows = [row for row in sensitivities(material.graph, material.profile, material.error) if row.damage]
    if not rows:
        return [Text("No block alone in int8 causes an error.")]
    basis = material.metric.basis
    title, scale = basis.axis
    left_out = sorted((row for row in rows if row.leave_out), key=lambda row: -row.noise_share)
    marks = []
    for row in rows:
        look = "float" if row.leave_out else "int8"
        error, text = (row.damage or 0.0) * scale, _describe(row, basis)
        marks.append(Mark(row.saved_s * 1e3, error, look, text, hollow=bool(row.leave_out)))
    caption = "Right: int8 saves time. Up: int8 costs accuracy. Hollow: better kept in float."
    x, y = Axis("time saved by int8, ms"), Axis(f"one block alone: {title}", "log")
    chart = Chart("error alone against time saved, by block", x, y, marks, caption)
    lede = (
        f"{len(left_out)} of {plural(len(rows), 'block')} are slower in int8, or add too much error for the time saved."
    )
    reasons = [[row.block, shown(basis, row.damage), row.leave_out] for row in left_out[:_REASONS]]
    listed: list[Part] = [Table(["leave out", "error alone", "why"], reasons, look="dense")] if reasons else []
    return [Text(lede), Columns([[chart], listed])]


def _describe(row: Sensitivity, basis: Metric) -> str:
    verdict = f"leave out: {row.leave_out}" if row.leave_out else "quantise"
    return (
        f"{row.block}\n{basis.title} alone {shown(basis, row.damage)}, {row.noise_share:.1%} of all noise\n"
        f"saves {row.saved_s * 1e6:.0f} µs\n{verdict}"
    )


def sensitivity_object(material: Material) -> dict[str, Any]:
    """What `taglio report --json` says of each block that may be int8; `damage` is a loss, `value` the same in its
    metric's unit. Empty without an error model."""
    if material.error is None:
        return {}
    basis = material.error.metric.basis
    listed = [
        {**msgspec.to_builtins(row), "value": None if row.damage is None else basis.value(row.damage)}
        for row in sensitivities(material.graph, material.profile, material.error)
    ]
    return {"metric": basis.name, "sensitivity": listed}


@dataclass(frozen=True, slots=True)
class _Row:
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

    def order(self, by: str) -> float:
        """The value to sort by; below all others if it is unknown."""
        value = {"damage": self.error, "saved": self.saved_s, "worth": self.worth}[by]
        return -inf if value is None else value


def ranked(material: Material, by: str = "damage") -> list[Part]:
    """Every block with its error alone in int8 and its times, the largest by its `damage`, the time that it `saved`,
    or its `worth` first; slow blocks before fast ones where that is not known."""
    rows = sorted(_rows(material), key=lambda row: (row.order(by), row.float_s or 0.0), reverse=True)
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
        Table(head, cells, look="blocks", words=words, first=_FIRST, sorted_by=key),
    ]


def _rows(material: Material) -> list[_Row]:
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
        rows.append(_Row(block, alone.get(block.name), *seconds))
    return rows


def _written(
    row: _Row, assignment: Assignment | None, basis: Metric, decimals: int, worst: float, most: float
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
