"""Write docs/results.md from the files in benchmarks/results. Measures nothing, and holds no figure.

Each claim names its benchmark and what the benchmark's tables say about it. A row of the page comes, for each kind of
processor, from the newest file that has the row.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.generated_page import DOCS, ROOT, main
from scripts.result_files import AVX2, NEW, ResultFile, load

PAGE = DOCS / "results.md"
RESULTS = ROOT / "benchmarks" / "results"
HEAD = """# Results

<!-- Written by `make reference` from the files in benchmarks/results: run a benchmark to change it. -->

Figures come from the newest file of a kind of processor, with machine, versions, raw figures; links have date and
commit. *Open*: not measured on that kind. Method: `benchmarks/METHOD.md`. × is speed over float in ONNX Runtime;
(a–b): 90 % interval.

"""

# The values that a file has for each row of a claim's table.
Rows = Mapping[str, Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Claim:
    """A table of the page: what it shows, the title of the files and the command that write it, what its rows are
    called, how a file's `rows` are read, how a row's values are written, whether their geometric means follow, and of
    which runtime the files are."""

    heading: str
    text: str
    benchmark: str
    command: str
    row: str
    rows: Callable[[ResultFile], Rows]
    cell: str = "{0}"
    means: bool = False
    openvino: bool | None = None

    def uses(self, result: ResultFile) -> bool:
        """Whether a file shows this claim: it is of the benchmark and, unless `openvino` is None, of that runtime."""
        is_openvino = "--runtime openvino" in result.command
        return result.benchmark == self.benchmark and self.openvino in (None, is_openvino)


def columns(key: str, *names: str, without: str = "") -> Callable[[ResultFile], Rows]:
    """The values of the named columns by that of `key`, from the first table that has all of them; rows whose key has
    the words `without` are left out."""

    def rows(result: ResultFile) -> Rows:
        values: dict[str, list[list[str]]] = {}
        header, *lines = next((table for table in result.tables() if {key, *names} <= set(table[0])), [[]])
        for line in lines:
            row = dict(zip(header, line, strict=True))
            if not (without and without in row[key]):
                values.setdefault(row[key], []).append([row[name] for name in names])
        return values

    return rows


def sentence(label: str, pattern: str) -> Callable[[ResultFile], Rows]:
    """What the groups of the pattern find in a file's text."""

    def rows(result: ResultFile) -> Rows:
        match = re.search(pattern, result.text)
        return {label: [["; ".join(match.groups())]]} if match else {}

    return rows


def intervals(result: ResultFile) -> Rows:
    """The summary of told.py, by the effort of its searches."""
    effort = re.search(r"--effort (\S+)", result.command)
    return sentence(effort[1] if effort else "0.05", r"(\d+ of \d+) reported intervals hold")(result)


def summary(result: ResultFile) -> Rows:
    """The summary of cluster.py."""
    figures = result.raw["figures"]["summary"]
    rows = {
        label: [[f"{figures[f'mean_off{of}']:.1%} in the mean, {figures[f'largest_off{of}']:.1%} at most"]]
        for label, of in (("all plans", ""), ("plans over links", "_over_links"))
    }
    if figures["streams"]:
        rows["streams"] = [[f"{figures['median_share']:.3f} in the median, {figures['least_share']:.3f} at least"]]
    return rows


CLAIMS: Mapping[str, Sequence[Claim]] = {
    "One machine": (
        Claim(
            "Speed beside other tools",
            "Within each error limit: taglio, × float, and in brackets the fastest of float, bfloat16 and the "
            "quantisers of ONNX Runtime and NNCF that keeps the limit. One thread.",
            "wild_rivals",
            "wild.py --rivals",
            "network",
            columns("network", "limit", "× float 2", "× float"),
            "{0}: {1} ({2})",
            means=True,
        ),
        Claim(
            "Reported speed-ups",
            "Reported intervals that hold a longer race.",
            "told",
            "told.py",
            "`--effort`",
            intervals,
        ),
        Claim(
            "A file against its copy",
            "Intervals that hold 1.",
            "told_itself",
            "told.py --itself 20",
            "network",
            columns("network", "intervals that hold 1", "races"),
            "{0}/{1}",
        ),
        Claim(
            "Beside the code of 28 November",
            "`optimize --max-error 1%` by commit 3748b30d and by this code: how many times as fast this code's "
            "result is; seconds of the searches. One thread.",
            "versions",
            "versions.py --other PYTHON",
            "network",
            columns("network", "gain", "optimize, other", "optimize, this"),
            "{0}; {1} → {2}",
        ),
        Claim(
            "What parts of the search earn",
            "Simulated searches without one part: true time of the plan ÷ that of the fastest, with close tables; "
            "with tables off by a fifth.",
            "ablate",
            "ablate.py",
            "without",
            columns("without", "time ÷ the fastest"),
        ),
        Claim(
            "The way for a rate",
            "Float's capacity as `optimize --objective rate` runs it ÷ the best of a grid; × ONNX Runtime's defaults "
            "with one caller, and two.",
            "rate",
            "rate.py",
            "network",
            columns("network", "chosen ÷ best", "÷ default, one caller", "÷ default, two callers"),
            "{0}; {1}; {2}",
        ),
        Claim(
            "A rate within a limit",
            "Limit: five times ONNX Runtime's latency. Rate ÷ that of ONNX Runtime; capacity ÷ that of float's best "
            "way; later loads at 0.95 of the rate that kept the limit.",
            "rate_limit",
            "rate_limit.py",
            "network",
            columns("network", "÷ ONNX Runtime's", "capacity ÷ float's best way", "loads within the limit"),
            "{0}; {1}; {2}",
        ),
        Claim(
            "What is delivered",
            "Networks of which `deploy/` has the answers and speed of `result.session()`.",
            "deployed",
            "deployed.py",
            "check",
            sentence("networks", r"(\d+ of \d+) hold"),
        ),
        Claim(
            "Predicted latency",
            "Random block subsets that no fit has seen, in ONNX Runtime: median and 95th percentile of "
            "|predicted ÷ measured − 1|; in brackets the median for the sum of layers run alone.",
            "prediction",
            "prediction.py",
            "network",
            columns("network", "median", "p95", "layer sum: median"),
            "{0}, {1} ({2})",
            openvino=False,
        ),
        Claim(
            "Predicted latency in OpenVINO",
            "The same.",
            "prediction",
            "prediction.py --runtime openvino",
            "network",
            columns("network", "median", "p95", "layer sum: median"),
            "{0}, {1} ({2})",
            openvino=True,
        ),
        Claim(
            "Predicted error",
            "Unseen subsets: median of |predicted ÷ measured − 1|, and Spearman's rank correlation.",
            "error_curves",
            "error_curves.py",
            "network",
            columns("network", "median relative error", "Spearman"),
            "{0}; {1}",
        ),
        Claim(
            "Errors on unseen inputs",
            "On inputs that no part of the run had: errors below the reported upper end; above 1.1 × the limit of 1 %.",
            "unseen",
            "unseen.py",
            "check",
            sentence(
                "networks", r"(\d+ of \d+) errors lie below the reported upper end, and (\d+) above 1.1 × the limit"
            ),
        ),
        Claim(
            "The same scheme, other choices",
            "Time of the fastest rival that keeps the bound ÷ time of taglio, by bound. Rivals choose by FLOPs, by "
            "speed-up alone or by sensitivity; ONNX Runtime's quantiser builds them.",
            "quality",
            "quality.py",
            "network",
            columns("network", "bound", "rival / taglio"),
            "{0}: {1}",
        ),
        Claim(
            "Robustness",
            "Graphs from public bug reports with trained networks that work, or are refused for a real reason.",
            "wild",
            "wild.py",
            "check",
            sentence("models", r"(\d+ of \d+) work or are refused for a real reason"),
        ),
        Claim(
            "Overhead of a session",
            "Time that `result.session()` adds to the runtime's own run.",
            "overhead",
            "overhead.py",
            "network",
            columns("network", "runtime", "added"),
            "{0} {1}",
        ),
    ),
    "Several machines": (
        Claim(
            "Predicted latency and rate",
            "Plans on an emulated camera, gateway and server: |predicted ÷ measured − 1| of the latency, and measured "
            "÷ predicted rate of streams.",
            "cluster",
            "cluster.py",
            "plans",
            summary,
        ),
        Claim(
            "Faults",
            "Requests answered, of those sent, and answers that equal one process's bit for bit.",
            "cluster_faults",
            "cluster_faults.py",
            "fault",
            columns("fault", "answered", "asked", "same bits", without="head"),
            "{0}/{1}; {2}",
        ),
        Claim(
            "Planning time",
            "Blocks × devices, made-up costs: median and longest of three instances; how many were proven "
            "within 0.5 %.",
            "plan_scale",
            "plan_scale.py",
            "case",
            columns("case", "median s", "longest s", "proven to 5e-03", without="float"),
            "{0}, {1} s; {2}",
        ),
        Claim(
            "Identical devices",
            "Streams with made-up costs: predicted requests/s, gap.",
            "plan_tiers",
            "plan_tiers.py",
            "devices",
            columns("devices", "way", "predicted /s", "gap"),
            "{0}: {1}, {2}",
        ),
    ),
    "Serving": (
        Claim(
            "Overhead of a request",
            "Milliseconds more than `session.run`, 602 kB.",
            "serve",
            "serve_overhead.py",
            "client",
            columns("602 kB by", "over session.run ms", without="session.run"),
        ),
        Claim(
            "Open load",
            "gRPC at 85 % of the rate confirmed for 50 ms: asked, answered, p95 ÷ limit, core-ms each.",
            "serve_load",
            "serve_load.py --max-latency 50ms",
            "network",
            columns("network", "asked", "answered", "p95 ÷ limit", "core-ms a request"),
            "{0}, {1}; {2}; {3}",
        ),
        Claim(
            "Restarts",
            "Clients retry while the server restarts three times: requests answered, and wrongly.",
            "serve",
            "serve_restart.py",
            "requests",
            columns("requests", "answered", "wrong"),
            "{0}, {1}",
        ),
    ),
}


def render() -> str:
    """The whole page."""
    results = sorted(map(load, RESULTS.glob("*.md")), key=lambda result: result.order)
    kinds = list(dict.fromkeys([NEW, AVX2, *(result.kind for result in results)]))
    parts = [HEAD, older()]
    for area, claims in CLAIMS.items():
        parts.append(f"## {area}\n\n")
        parts += [section(claim, [result for result in results if claim.uses(result)], kinds) for claim in claims]
    return "".join(parts).rstrip("\n") + "\n"


def older() -> str:
    """Which results are of the released version or of code before it."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    release = re.search(r"^## ([\d.]+) \((.+)\)$", changelog, re.MULTILINE)
    if release is None:
        raise ValueError("CHANGELOG.md names no release")
    version, date = release.groups()
    return f"Files up to {date} are of release {version} or before.\n\n"


def section(claim: Claim, results: Sequence[ResultFile], kinds: Sequence[str]) -> str:
    """A claim's text, table and files; `results` are in the order of their dates."""
    rows: dict[str, dict[str, tuple[ResultFile, Sequence[Sequence[str]]]]] = {}
    for result in results:
        for name, values in claim.rows(result).items():
            if any(value for line in values for value in line):
                rows.setdefault(name, {})[result.kind] = (result, values)
    shown = {result.path: result for row in rows.values() for result, _ in row.values()}
    numbers = {path: number for number, path in enumerate(shown, start=1)}
    lines = [cells([claim.row, *kinds]), cells(["---"] * (1 + len(kinds)))]
    for name, row in rows.items():
        lines.append(cells([name, *(cell(claim, *row[kind], numbers) if kind in row else "open" for kind in kinds)]))
    if claim.means:
        by_kind = [[row[kind][1] for row in rows.values() if kind in row] for kind in kinds]
        lines.append(cells(["geometric mean", *(mean(claim, values) for values in by_kind)]))
    if not rows:
        lines.append(cells(["–", *("open" for _ in kinds)]))
    files = [
        f"{numbers[path]} [{result.moment}{result.commit and f', {result.commit}'}](../{path.relative_to(ROOT)})"
        for path, result in shown.items()
    ]
    source = f"`python benchmarks/{claim.command}`" + "".join(f"; {file}" for file in files)
    return f"**{claim.heading}.** {claim.text}\n\n{''.join(lines)}\n{source}\n\n"


def cell(claim: Claim, result: ResultFile, values: Sequence[Sequence[str]], numbers: Mapping[Path, int]) -> str:
    """The values of a row for one kind of processor, with the number of their file."""
    text = "; ".join(claim.cell.format(*line).strip(" ;:") for line in values)
    return re.sub(r" × \((\S+) to (\S+)\)", r" (\1–\2)", text) + f"<sup>{numbers[result.path]}</sup>"


def mean(claim: Claim, rows: Sequence[Sequence[Sequence[str]]]) -> str:
    """Geometric means over rows, for each value of the first column."""
    grouped: dict[str, list[list[float]]] = {}
    for line in (line for values in rows for line in values):
        grouped.setdefault(line[0], []).append([float(value) for value in line[1:]])
    means = [
        claim.cell.format(first, *(f"{prod(column) ** (1 / len(column)):.2f}" for column in zip(*lines, strict=True)))
        for first, lines in grouped.items()
    ]
    return f"{'; '.join(means)}; of {len(rows)}" if rows else "open"


def cells(texts: Sequence[str]) -> str:
    return f"|{'|'.join(texts)}|\n"


if __name__ == "__main__":
    sys.exit(main(PAGE, render, __doc__))
