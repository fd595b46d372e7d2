"""The sensitivity table: what each block costs in error and gives in time, and what the plan made of it."""

from dataclasses import dataclass

from taglio.model.graph import Block
from taglio.report.page_markup import MISSING, Html, breakable, figures, join, ms_decimals, shown, tag
from taglio.report.page_material import Material
from taglio.report.page_network import block_class, swatch

_FIRST = 30
_NAMES = {"float32": "float32", "int8": "int8", "int8-anchor": "int8 anchor"}
_HEAD = (
    ("block", True),
    ("error alone", False),
    ("float", False),
    ("int8", False),
    ("saved", False),
    ("saved per error", False),
    ("chosen", True),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One block's numbers; None where there is nothing to tell. `worth` is seconds saved per unit of error alone."""

    name: str
    block: Block | None
    error: float | None
    float_s: float | None
    int8_s: float | None

    @property
    def saved_s(self) -> float | None:
        return None if self.float_s is None or self.int8_s is None else self.float_s - self.int8_s

    @property
    def worth(self) -> float | None:
        return None if self.saved_s is None or not self.error else self.saved_s / self.error


def sensitivity(material: Material) -> Html:
    """Blocks ranked by their error alone in int8."""
    rows = sorted(
        _rows(material), key=lambda row: (-1.0 if row.error is None else row.error, row.float_s or 0.0), reverse=True
    )
    worst = max((row.error or 0.0 for row in rows), default=0.0)
    most = max((row.saved_s or 0.0 for row in rows), default=0.0)
    decimals = ms_decimals(max((row.float_s or 0.0 for row in rows), default=0.0)) + 1
    head = [
        tag("th", text, scope="col", data_words=words, aria_sort="descending" if text == "error alone" else None)
        for text, words in _HEAD
    ]
    body = [_written(material, row, decimals, worst, most) for row in rows]
    whole = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_="blocks", data_first=_FIRST)
    measured = sum(row.error is not None for row in rows)
    return join(tag("p", _lede(material, measured)), tag("div", whole, class_="scroll"))


def _rows(material: Material) -> list[_Row]:
    times = material.profile.block_times()
    alone = {}
    if material.error is not None:
        alone = {each.block: each.error for each in material.error.alone if each.precision == "int8"}
    blocks = {block.name: block for block in material.graph.blocks} if material.graph is not None else {}
    names = dict.fromkeys([*blocks, *(each.block for each in material.profile.blocks)])
    rows = []
    for name in names:
        moves = name in blocks and blocks[name].movement
        float_s, int8_s = (None, None) if moves else (times.get((name, "float32")), times.get((name, "int8")))
        rows.append(_Row(name, blocks.get(name), alone.get(name), float_s, int8_s))
    return rows


def _written(material: Material, row: _Row, decimals: int, worst: float, most: float) -> Html:
    block, assignment = row.block, material.plan.assignment() if material.plan is not None else {}
    chosen = assignment[row.name].name if row.name in assignment else "float32"
    about = None if block is None else " + ".join(block.kind.split("+"))
    if block is not None and block.refusal:
        about = f"{about}; {block.refusal}"
    sample = swatch(block_class(block, assignment)) if block is not None else None
    chip = tag("span", sample, _NAMES.get(chosen, chosen), class_="chip") if material.plan is not None else MISSING
    basis = material.metric.basis
    worth = None if row.worth is None else row.worth * 1e3 / basis.axis[1]  # ms for 1 % where losses are drawn in %
    return tag(
        "tr",
        tag("th", breakable(row.name), tag("small", about) if about else None, scope="row", data_v=row.name),
        _cell(shown(basis, row.error), row.error, worst, "amount harm"),
        _cell(_milliseconds(row.float_s, decimals), row.float_s),
        _cell(_milliseconds(row.int8_s, decimals), row.int8_s),
        _cell(_milliseconds(row.saved_s, decimals), row.saved_s, most, "amount"),
        _cell(MISSING if worth is None else figures(worth), worth),
        tag("td", chip, data_v=chosen),
    )


def _lede(material: Material, measured: int) -> str:
    basis = material.metric.basis
    unit = "1 %" if basis.axis[1] == 100.0 else "unit"
    text = f"Times in ms; saved is float − int8; saved per error is ms for each {unit} of {basis.title} alone."
    if material.error is None:
        return text
    return (
        f"{measured} blocks were measured alone in int8. {text} Blocks that only move values follow their producer and "
        "have no time of their own."
    )


def _cell(text: str, value: float | None, largest: float = 0.0, class_: str | None = None) -> Html:
    """A number that sorts; its share of `largest` draws under it."""
    share = value / largest if value is not None and largest > 0.0 else 0.0
    style = f"--v:{share * 100:.1f}%" if share > 0.0 else None
    return tag("td", text, class_=class_, style=style, data_v=None if value is None else f"{value:.6g}")


def _milliseconds(value: float | None, decimals: int) -> str:
    return MISSING if value is None else f"{value * 1e3:.{decimals}f}".replace("-", "−")
