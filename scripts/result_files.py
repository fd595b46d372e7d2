"""Read the files of benchmarks/results: when and on what kind of processor they were measured, and their tables."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

NEW, AVX2, UNKNOWN = "VNNI and bfloat16", "AVX2 only", "machine not recorded"
# How benchmarks/cases.py writes a file; the time of day and the commit are there since 29 November 2026.
TITLE = r"^# (.+)$"
MEASURED = r", (\d{4}-\d\d-\d\d(?: \d\d:\d\d)?)(?:, commit (\S+))?\.$"
COMMAND = r"^Command: `(.*?)`"
RAW = re.compile(r"```json\n(.*?)\n```", re.DOTALL)
# When files that have rows in common, and no time of day, entered the repository.
COMMITTED = {
    "wild_rivals_amd-epyc-2c_2026-11-26_unseen": "16:38",
    "wild_rivals_amd-epyc-2c_2026-11-26_nudenet": "23:28",
    "wild_rivals_amd-epyc-2c_2026-11-27_ch_PP-OCRv4": "08:36",
    "wild_rivals_amd-epyc-2c_2026-11-27_yunet": "22:34",
    "wild_rivals_amd-epyc-2c_2026-11-27_silero": "23:45",
}


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file of benchmarks/results: its benchmark, moment (a date, perhaps with a time), commit ("" if not recorded),
    kind of processor, command, text, and the raw figures with their configuration (empty if not recorded)."""

    path: Path
    benchmark: str
    moment: str
    commit: str
    kind: str
    command: str
    text: str
    raw: Mapping[str, Any]

    @property
    def order(self) -> tuple[str, str]:
        """Where it stands among the results, the oldest first."""
        times = (time for name, time in COMMITTED.items() if self.path.name.startswith(name))
        return " ".join([self.moment, *times]), self.path.stem

    def tables(self) -> list[list[list[str]]]:
        """Its tables: rows of cells, the header first. The second column of one name is called `name 2`."""
        tables = []
        for is_table, lines in groupby(self.text.splitlines(), key=lambda line: line.startswith("| ")):
            if is_table:
                rows = [[cell.strip(" *") for cell in re.split(r" ?\| ?", line)[1:-1]] for line in lines]
                names = rows[0]
                counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
                header = [name if count == 1 else f"{name} {count}" for name, count in zip(names, counts, strict=True)]
                tables.append([header, *rows[2:]])
        return tables


def load(path: Path) -> ResultFile:
    """A file of benchmarks/results. Raises ValueError for a file without title or date."""
    text = path.read_text(encoding="utf-8")
    title, measured, command = (re.search(pattern, text, re.MULTILINE) for pattern in (TITLE, MEASURED, COMMAND))
    if title is None or measured is None:
        raise ValueError(f"{path.name}: a result file begins with a title and a line that ends with a date")
    moment, commit = measured.groups("")
    match = RAW.search(text)
    raw = json.loads(match.group(1)) if match else {}
    processor = kind(raw["machine"]["instructions"] if raw else None)
    return ResultFile(path, title.group(1), moment, commit, processor, command.group(1) if command else "", text, raw)


def kind(instructions: Sequence[str] | None) -> str:
    """The kind of processor that has these instruction sets; None: not recorded."""
    if instructions is None:
        return UNKNOWN
    if not any("vnni" in name or name == "amx_int8" for name in instructions):
        return AVX2
    return NEW if any(name.endswith("bf16") for name in instructions) else "VNNI without bfloat16"
