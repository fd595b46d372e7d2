"""One sentence that says which row to use, with the figures that carry it. Pure."""

from collections.abc import Sequence

from taglio.compare.row import Row


def best(rows: Sequence[Row], max_error: float) -> Row | None:
    """The fastest measured row whose error from the original is within `max_error`."""
    fit = [
        row
        for row in rows
        if row.latency is not None and row.checked is not None and (row.checked.error_to_original or 0.0) <= max_error
    ]
    return min(fit, key=lambda row: row.latency.median_s if row.latency else 0.0, default=None)


def recommend(rows: Sequence[Row], max_error: float) -> str:
    """The sentence."""
    row = best(rows, max_error)
    if row is None or row.latency is None or row.checked is None:
        return f"No row was measured within an error of {max_error:.2%}: see the reasons in the table."
    floats = [
        each
        for each in rows
        if each.wanted.method == "float32" and each.latency is not None and within(each, max_error)
    ]
    latency, checked = row.latency, row.checked
    head = f"Use {name(row)}: {latency.median_s * 1e3:.2f} ms (± {latency.deviation_s * 1e3:.2f})"
    error = (
        f"error {checked.error_to_original or 0.0:.3%} of {max_error:.2%} allowed, {checked.size_bytes / 1e6:.2f} MB"
    )
    fastest = min(floats, key=lambda each: each.latency.median_s if each.latency else 0.0, default=None)
    gain = ""
    if fastest is not None and fastest.latency is not None and fastest is not row:
        ratio = fastest.latency.median_s / latency.median_s
        gain = (
            f", {ratio:.2f} x as fast as the fastest float32 ({name(fastest)}, {fastest.latency.median_s * 1e3:.2f} ms)"
        )
    close = [
        name(each)
        for each in rows
        if each is not row and each.latency is not None and within(each, max_error)
        and each.latency.median_s - each.latency.deviation_s <= latency.median_s + latency.deviation_s
    ]  # fmt: skip
    tie = f"; within the noise of it: {', '.join(close[:3])}" if close else ""
    return f"{head}{gain}, {error}{tie}."


def within(row: Row, max_error: float) -> bool:
    """Whether a row was checked and its outputs are near enough to the original's."""
    return row.checked is not None and (row.checked.error_to_original or 0.0) <= max_error


def name(row: Row) -> str:
    """A row as a person would call it."""
    return row.wanted.id
