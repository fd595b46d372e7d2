"""What was built and run, with all settings."""

from collections.abc import Mapping

from taglio.components.build import Manifest
from taglio.errors import plural
from taglio.flow.outcome import Outcome
from taglio.profile.wall_time import WallTime
from taglio.report.material import Material
from taglio.report.parts import Columns, Part, Table, Text
from taglio.report.units import MISSING, allowed, ms, percent, shown, size
from taglio.run.in_process import RunReport


def built(material: Material) -> list[Part]:
    """The components of the workspace; empty if none were built."""
    return components(material.manifest) if material.manifest is not None else []


def run(material: Material) -> list[Part]:
    """The last timed run of the components; empty if there was none of this plan."""
    return run_report(material.run) if material.run is not None else []


def components(manifest: Manifest) -> list[Part]:
    """The component files."""
    rows: list[list[object]] = []
    for piece in manifest.pieces:
        runtime = f"{piece.runtime} {piece.runtime_version}".strip()
        contents = [size(piece.size_bytes), len(piece.blocks), piece.sha256[:16]]
        rows.append([piece.name, piece.device, runtime, piece.file, *contents])
    head = ["component", "device", "runtime", "file", "size", "blocks", "SHA-256"]
    total = sum(piece.size_bytes for piece in manifest.pieces)
    order = ", run in this order" if len(manifest.pieces) > 1 else ""
    return [
        Text(f"{plural(len(manifest.pieces), 'component')}, {size(total)}{order}."),
        Table(head, rows, words=frozenset({1, 2, 3})),
    ]


def run_report(run: RunReport) -> list[Part]:
    """The components timed beside float."""
    walls = {"float": run.float32, "plan": run.plan}
    walls |= {f"component {component.component}": component.wall for component in run.components}
    elsewhere = "" if run.runtime == run.profiled_in else f" for {run.profiled_in}, run by {run.runtime}"
    if run.here:
        elsewhere = " for one process on this machine, without the cluster's devices and links"
    drift = f"{(run.drift - 1.0) * 100:+.1f}\u00a0%".replace("-", "−")
    text = (
        f"Predicted {ms(run.predicted_s)}{elsewhere}, measured {ms(run.plan.steady_s)}, ratio {run.ratio:.3f}; "
        f"{run.steady_ratio:.3f} corrected for the machine's drift of {drift} since profiling."
    )
    notes = [Text(f"Note: {run.note}.", "note")] if run.note else []
    return [timed(walls, "Timed runs"), Text(text, "small"), *notes]


def timed(walls: Mapping[str, WallTime], caption: str = "") -> Table:
    """Timed runs by name."""
    rows = [[name, ms(wall.median_s), ms(wall.mean_s), ms(wall.p95_s), wall.runs] for name, wall in walls.items()]
    return Table(["", "median", "mean", "p95", "runs"], rows, caption)


def _races(outcome: Outcome) -> list[Part]:
    """Every form that was raced on all blocks that have it, and int8 under every scheme, by place."""
    basis = outcome.metric.basis
    rows: list[list[object]] = []
    for row in outcome.forms:
        where = [row.form, row.runtime, row.scheme or MISSING]
        verdict = f"dropped: {row.refused}" if row.refused else "planned with" if row.kept else "left out"
        rows.append([*where, ms(row.float_s), ms(row.seconds), shown(basis, row.error), verdict])
    head = ["form", "runtime", "scheme", "float", "all blocks that have it", basis.title, ""]
    return [Table(head, rows, "Forms and schemes raced", words=frozenset({1, 2, 6}))] if rows else []


def configuration(material: Material) -> list[Part]:
    """Every setting and version, in small print."""
    parts: list[Part] = [Table([], sorted(material.tools.items()), "Versions", "words")]
    if (outcome := material.outcome) is not None:
        seconds = [[name, f"{value:.1f}\u00a0s"] for name, value in outcome.stage_seconds.items()]
        total = sum(outcome.stage_seconds.values())
        seconds.append(["all", f"{total:.1f}\u00a0s, peak memory {size(outcome.peak_memory_bytes)}"])
        parts.append(Table([], seconds, "Time by stage", "words"))
        parts += _races(outcome)
    return [Columns([[Table([], _settings(material), "Settings", "words")], parts], "print")]


def _settings(material: Material) -> list[tuple[str, object]]:
    setup, profile, plan = material.setup, material.profile, material.plan
    machine = profile.conditions.machine
    rows: list[tuple[str, object]] = [("model SHA-256", profile.model_sha256)]
    if setup is not None:
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in setup.shapes.items())
        rows += [("model", setup.model), ("data", setup.data), ("preprocess", setup.preprocess or "none")]
        rows += [("input shapes", shapes or "as in the model"), ("seed", setup.seed)]
        rows += [("scheme requested", setup.scheme or "auto")]
    rows += [
        ("processor", f"{machine.processor}, {plural(machine.cores, 'core')}"),
        ("instructions", " ".join(machine.instructions)),
        ("memory", f"{machine.memory_bytes / 2**30:.1f} GiB"),
        ("system", f"{machine.system}, Python {machine.python}"),
    ]
    if plan is not None:
        limits, metric = plan.limits, plan.limits.metric
        bound = MISSING if limits.max_error is None else f"{metric.title} {allowed(metric, limits.max_error)}"
        also = [f"{limit.metric.title} {allowed(limit.metric, limit.max_error)}" for limit in limits.also]
        rows += [
            ("limit", ", ".join([bound, *also])),
            ("kept in float", ", ".join(limits.float_blocks) or "none"),
            ("forced to int8", ", ".join(limits.int8_blocks) or "none"),
            ("solver", f"{plan.status}, gap {percent(plan.gap)}"),
        ]
        rows += [("note", note) for note in plan.notes]
    return rows
