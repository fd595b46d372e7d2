"""A result that was chosen for a rate: the first line, the tables, the page's section, the JSON object, the README."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from taglio.flow.outcome import Outcome
from taglio.report import answer, page, terminal
from taglio.report.material import Material
from taglio.ways.result import Rate
from tests.report.conftest import Printed
from tests.report.made_up_rate import made_up_limited_rate, made_up_rate
from tests.report.seen import read

CAPACITY = "1.52 × (1.47 to 1.58) the capacity of float32 in ONNX Runtime with one caller, 1.60 × with 2 callers"
LIMITED = "149 requests/s (145 to 153), 19 of 20 answered within 43.8 ms (limit 50 ms), 1.60 × float32's 93"


def test_the_first_line_is_the_capacity(outcome: Outcome, printed: Printed) -> None:
    lines = printed(replace(outcome, rate=made_up_rate()))
    where = "error 0.800 % (limit 1 %): out/components/ for ONNX Runtime"
    assert lines[:2] == [
        f"{CAPACITY}; 163 items/s, {where}",
        "run it as: 2 runs at once, 1 thread each; the open model takes 84.0 MB",
    ]


def test_with_a_limit_the_first_line_is_the_rate_that_keeps_it(outcome: Outcome) -> None:
    rate = made_up_limited_rate()
    line = answer.sentence(replace(outcome, rate=rate), "out").replace("\u00a0", " ")
    assert line == f"{LIMITED}; capacity 163 items/s, error 0.800 % (limit 1 %): out/ for ONNX Runtime"
    assert "float32 keeps that at no rate; capacity" in str(replace(rate, base_rate_per_s=0.0))
    assert str(replace(rate, rate_per_s=None)) == f"{CAPACITY}; 163 items/s, but no rate keeps 50 ms"
    unconfirmed = f"{CAPACITY}; 163 items/s; about 149 requests/s within 50 ms, not confirmed"
    assert str(replace(rate, p95_s=None)) == unconfirmed


@pytest.mark.parametrize(
    ("rate", "head", "best"),
    [
        (made_up_rate(), "capacity p95 of runs memory", "163/s 14.0 ms 84.0 MB chosen"),
        (made_up_limited_rate(), "capacity rate p95 at that rate memory", "163/s 147/s 14.0 ms 84.0 MB chosen"),
    ],
)
def test_six_ways_are_printed_with_the_chosen_and_the_default_one(
    rate: Rate, head: str, best: str, outcome: Outcome, printed: Printed
) -> None:
    lines = [" ".join(line.split()) for line in printed(replace(outcome, rate=rate))]
    start = lines.index("Ways that were tried, best first; figures of the search, not confirmed")
    assert lines[start + 1 : start + 3] == [
        f"model way {head} role",
        f"plan 1 in ONNX Runtime 2 runs at once, 1 thread each {best}",
    ]
    default, after = lines[start + 7 : start + 9]  # one of the slowest two, and printed all the same
    assert default.startswith("plan 1 in ONNX Runtime 1 run at a time, 2 threads 98.0/s")
    assert default.endswith("default way")
    assert after.startswith("the first 6 of 8 rows")


@pytest.mark.parametrize("rate", [made_up_rate(), made_up_limited_rate()])
def test_the_page_has_a_section_on_how_to_run_it(rate: Rate, material: Material, outcome: Outcome) -> None:
    shown = read(page.render(replace(material, outcome=replace(outcome, rate=rate))))
    assert shown.wrong == []
    words = "".join(shown.sections["ways"].replace("\u00a0", " ").split("\n"))
    for expected in (
        "2 runs at once, 1 thread each",
        "84.0 MB",
        "163 items/s (158 to 168)",
        "1.60 × (1.55 to 1.66)",
        "90 %147/s80025.0 ms70.0 ms110 ms",
        "10 %16.3/s1007.00 ms9.00 ms–",
    ):
        assert expected in words
    assert ("149 requests/s (145 to 153), p95 43.8 ms" in words) is (rate.max_latency_s is not None)
    assert len(shown.charts) == 4


def test_the_json_object_has_every_figure_with_its_ends(outcome: Outcome) -> None:
    assert terminal.outcome_object(Path("out"), outcome)["rate"] is None
    limited = terminal.outcome_object(Path("out"), replace(outcome, rate=made_up_limited_rate()))["rate"]
    rate = json.loads(msgspec.json.encode(limited))
    assert (rate["capacity_per_s_low"], rate["capacity_per_s"], rate["capacity_per_s_high"]) == (158, 163, 168)
    assert (rate["over_one_low"], rate["over_many"], rate["rate_per_s_high"]) == (1.47, 1.6, 153)
    assert rate["way"] == {"threads": 1, "at_once": 2, "joined": 1, "spinning": False}
    assert (rate["callers"], rate["openings"], rate["max_latency_s"], rate["base_rate_per_s"]) == (2, 8, 0.05, 93)
    assert (rate["runtime"], rate["model"], rate["memory_bytes"]) == ("onnxruntime", "plan 1", 84_000_000)
    assert rate["loads"][0]["p99_s"] is None and rate["loads"][2]["share"] == 0.9
    assert rate["tried"][1]["way"]["joined"] == 2 and rate["tried"][1]["rate_per_s"] == pytest.approx(0.9 * 158)
    assert rate["alone"].startswith("an input") and rate["left_out"] == ["float32 with 4 runs at once"]
    unlimited = terminal.outcome_object(Path("out"), replace(outcome, rate=made_up_rate()))["rate"]
    assert [unlimited[name] for name in ("max_latency_s", "rate_per_s", "rate_per_s_low", "p95_s")] == [None] * 4
