"""The sensitivity table: what each block costs in error and gives in time, and what the plan made of it."""

from taglio.report.page_markup import MISSING, Html, figures, join, ms_decimals, percent, tag
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


def sensitivity(material: Material) -> Html:
    """Blocks ranked by their error alone in int8."""
    times = material.profile.block_times()
    alone = (
        {each.block: each.error for each in material.error.alone if each.precision == "int8"} if material.error else {}
    )
    assignment = material.plan.assignment() if material.plan is not None else {}
    blocks = {block.name: block for block in material.graph.blocks} if material.graph is not None else {}
    names = list(dict.fromkeys([*blocks, *(each.block for each in material.profile.blocks)]))
    saved = {
        name: times[name, "float32"] - times[name, "int8"]
        for name in names
        if (name, "float32") in times and (name, "int8") in times
    }
    moving = {name for name, block in blocks.items() if block.movement}
    worst, most = max(alone.values(), default=0.0), max(saved.values(), default=0.0)
    decimals = ms_decimals(max(times.values(), default=0.0)) + 1
    rows = []
    for name in sorted(names, key=lambda each: (-alone.get(each, -1.0), -times.get((each, "float32"), 0.0))):
        block = blocks.get(name)
        about = (
            None
            if block is None
            else " + ".join(block.kind.split("+")) + (f"; {block.refusal}" if block.refusal else "")
        )
        error, gain = alone.get(name), saved.get(name) if name not in moving else None
        chosen = assignment[name].name if name in assignment else "float32"
        class_ = block_class(block, assignment) if block is not None else ""
        chip = tag("span", swatch(class_) if class_ else None, _NAMES.get(chosen, chosen), class_="chip")
        worth = gain * 1e3 / (error * 100) if gain is not None and error else None
        rows.append(
            tag(
                "tr",
                tag("th", name, tag("small", about) if about else None, scope="row", data_v=name),
                _cell(percent(error), error, (error or 0.0) / worst if worst else 0.0, "amount harm"),
                _seconds(None if name in moving else times.get((name, "float32")), decimals),
                _seconds(None if name in moving else times.get((name, "int8")), decimals),
                _cell(
                    MISSING if gain is None else f"{gain * 1e3:.{decimals}f}".replace("-", "−"),
                    gain,
                    max(0.0, gain or 0.0) / most if most > 0.0 else 0.0,
                    "amount",
                ),  # fmt: skip
                _cell(MISSING if worth is None else figures(worth), worth),
                tag("td", chip if material.plan is not None else MISSING, data_v=chosen),
            )
        )
    head = [
        tag("th", text, scope="col", data_words=words, aria_sort="descending" if text == "error alone" else None)
        for text, words in _HEAD
    ]
    body = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="blocks", data_first=_FIRST)
    return join(tag("p", _lede(material, len(alone))), tag("div", body, class_="scroll"))


def _lede(material: Material, measured: int) -> str:
    text = "Times in ms; saved is float − int8; saved per error is ms for each 1 % of error alone."
    if material.error is None:
        return text
    return f"{measured} blocks were measured alone in int8. {text} Blocks that only move values follow their producer and have no time of their own."


def _cell(text: str, value: float | None, share: float | None = None, class_: str | None = None) -> Html:
    """A number that sorts; `share` of the largest draws behind it."""
    style = f"--v:{share * 100:.1f}%" if share else None
    exact = None if value is None else f"{value:.6g}"
    return tag("td", text, class_=class_, style=style, data_v=exact)


def _seconds(value: float | None, decimals: int) -> Html:
    return _cell(MISSING if value is None else f"{value * 1e3:.{decimals}f}", value)
