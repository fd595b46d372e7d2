"""What was built and run, and every setting that it depends on."""

from dataclasses import fields

from taglio.components.build import Manifest, Port
from taglio.report.page_markup import MISSING, Html, allowed, join, ms, percent, plural, shown, size, table, tag
from taglio.report.page_material import Absent, Material
from taglio.run.in_process import RunReport


def components(material: Material) -> Html:
    """Files, what crosses between them, and how they ran."""
    manifest = material.manifest
    assert manifest is not None
    rows: list[list[object]] = [
        [
            piece.name,
            piece.device,
            tag("code", piece.file),
            size(piece.size_bytes),
            len(piece.blocks),
            tag("code", piece.sha256[:16], title=piece.sha256),
        ]
        for piece in manifest.pieces
    ]
    files = table(["component", "device", "file", "size", "blocks", "SHA-256"], rows, words=frozenset({1, 2}))
    head = ["tensor", "from", "to", "type", "shape", "an inference"]
    crossing = table(head, _crossings(manifest), caption="What crosses", words=frozenset({1, 2, 3, 4}))
    total = sum(piece.size_bytes for piece in manifest.pieces)
    order = ", run in this order" if len(manifest.pieces) > 1 else ""
    return join(tag("p", f"{plural(len(manifest.pieces), 'component')}, {size(total)}{order}."), files, crossing)


def run_report(material: Material) -> Html:
    """The components timed beside float."""
    run = material.run
    assert run is not None
    return join(_run_table(run), tag("p", _run_text(run), class_="small"))


def configuration(material: Material) -> Html:
    """Every setting and version, in small print."""
    parts = [table([], _settings(material), class_="words", caption="Settings")]
    parts.append(table([], sorted(material.tools.items()), class_="words", caption="Versions"))
    outcome = material.outcome
    if outcome is not None:
        seconds: list[list[object]] = [[name, f"{value:.1f}\u00a0s"] for name, value in outcome.stage_seconds.items()]
        total = sum(outcome.stage_seconds.values())
        seconds.append(["all", f"{total:.1f}\u00a0s, {size(outcome.peak_memory_bytes)} of memory at most"])
        parts.append(table([], seconds, class_="words", caption="What it took"))
    if outcome is not None and outcome.schemes:
        basis = outcome.metric.basis
        rows: list[list[object]] = [
            [str(each.scheme), f"dropped: {each.dropped}", "", ""]
            if each.dropped
            else [str(each.scheme), ms(each.latency_s), shown(basis, each.error), ms(each.score_s)]
            for each in outcome.schemes
        ]
        parts.append(table(["scheme", "all int8", basis.title, "score"], rows, caption="Schemes tried"))
    return tag("div", tag("div", parts[0]), tag("div", *parts[1:]), class_="columns print")


def absent(missing: Absent) -> Html:
    """Why something is not there, and what makes it."""
    return tag("p", missing.reason, " To make it: ", tag("code", missing.command), class_="absent")


def _crossings(manifest: Manifest) -> list[list[object]]:
    source = {port.name: piece.name for piece in manifest.pieces for port in piece.outputs}
    rows: list[list[object]] = []
    for piece in manifest.pieces:
        rows += [[*_port(port, source.get(port.name, "caller"), piece.name)] for port in piece.inputs]
    for piece in manifest.pieces:
        rows += [[*_port(port, piece.name, "caller")] for port in piece.outputs if port.name in manifest.outputs]
    return rows


def _port(port: Port, source: str, target: str) -> tuple[str, ...]:
    return (port.name, source, target, port.dtype, " × ".join(map(str, port.shape)), size(port.bytes))


def _run_table(run: RunReport) -> Html:
    walls = [("float", run.float32), ("plan", run.plan)]
    walls += [(f"component {each.component}", each.wall) for each in run.components]
    rows: list[list[object]] = [
        [name, ms(wall.median_s), ms(wall.mean_s), ms(wall.p95_s), wall.runs] for name, wall in walls
    ]
    return table(["", "median", "mean", "p95", "runs"], rows, caption="How they ran")


def _run_text(run: RunReport) -> str:
    drift = f"{(run.drift - 1.0) * 100:+.1f}\u00a0%".replace("-", "−")
    return (
        f"Predicted {ms(run.predicted_s)}, measured {ms(run.plan.steady_s)}, ratio {run.ratio:.3f}; "
        f"{run.steady_ratio:.3f} with the machine's drift of {drift} since the profile taken out."
    )


def _settings(material: Material) -> list[tuple[str, object]]:
    setup, profile, plan = material.setup, material.profile, material.plan
    machine = profile.conditions.machine
    rows: list[tuple[str, object]] = [("model SHA-256", tag("code", profile.model_sha256))]
    if setup is not None:
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in setup.shapes.items())
        rows += [("model", setup.model), ("data", setup.data), ("preprocess", setup.preprocess or "none")]
        rows += [("input shapes", shapes or "as in the model"), ("seed", setup.seed)]
        rows += [("scheme asked for", setup.scheme or "auto")]
    for field in fields(profile.scheme):
        value = getattr(profile.scheme, field.name)
        shown = ("yes" if value else "no") if isinstance(value, bool) else value
        rows.append((f"scheme: {field.name.replace('_', ' ')}", shown))
    rows += [
        ("processor", f"{machine.processor}, {machine.cores} cores"),
        ("instructions", " ".join(machine.instructions)),
        ("memory", f"{machine.memory_bytes / 2**30:.1f} GiB"),
        ("system", f"{machine.system}, Python {machine.python}"),
        ("kernel clock", f"× {profile.kernel_scale:.4f} − {profile.kernel_overhead_s * 1e6:.2f} µs a kernel"),
        ("quantise", f"{profile.quantize_s_per_element * 1e9:.3f} ns an element"),
        ("dequantise", f"{profile.dequantize_s_per_element * 1e9:.3f} ns an element"),
    ]
    if plan is not None:
        limits, metric = plan.limits, plan.limits.metric
        bound = MISSING if limits.max_error is None else f"{metric.title} {allowed(metric, limits.max_error)}"
        rows += [
            ("bound", bound),
            ("held in float", ", ".join(limits.float_blocks) or "none"),
            ("held in int8", ", ".join(limits.int8_blocks) or "none"),
            ("solver", f"{plan.status}, gap {percent(plan.gap)}"),
        ]
        rows += [("note", note) for note in plan.notes]
    return rows
