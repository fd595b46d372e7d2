"""Bounds, pins and placements that taglio refuses, in one line, and before anything is written."""

from pathlib import Path

import pytest

from tests.end_to_end.command import Case, quick, refused, snapshot, taglio


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheme", "int8"), ("int8", "qdq")),
        (("--threads", "many"), ("--threads", "many must be a whole number")),
        (("--effort", "-1"), ("--effort", "-1 must be a number above 0")),
        (("--memory-limit", "-1GB"), ("--memory-limit", "-1GB is not a size")),
        (("--seed", "-1"), ("--seed", "-1 must be at least 0")),
        (("--threads", "100000"), ("--threads", "100000 must be at most 1024")),
        (("--keep-float", "nothing*"), ("nothing*", "taglio inspect")),
        (("--out", ""), ("--out", "must be a path, but is empty")),
        (("--swiftly",), ("--swiftly",)),
    ],
    ids=" ".join,
)
def test_options_that_are_wrong(options: tuple[str, ...], words: tuple[str, ...], tiny: Case, workspace: Path) -> None:
    before = snapshot(workspace)
    ran = taglio("optimize", *tiny.arguments(), "--max-error", 0.01, "--effort", 0.01, "-o", workspace, *options)
    refused(ran, *words)
    assert snapshot(workspace) == before


def test_a_missing_option_is_one_line(tiny: Case, tmp_path: Path) -> None:
    refused(taglio("quantize", *tiny.arguments(), "--method", "float16"), "-o/--out")
    out = ("-o", tmp_path / "out")
    refused(taglio("optimize", *tiny.arguments(), *out), "nothing is limited: give --max-error 1%", "--max-drop 1%")
    refused(taglio("plan", tmp_path), "nothing is limited")


def test_a_limit_that_does_not_suit_its_metric_is_refused_before_the_model_is_opened(tmp_path: Path) -> None:
    limit = ("--metric", "top1", "--max-error", "1%")
    ran = taglio("optimize", "no-model.onnx", "--data", "no-data.npz", "-o", tmp_path / "out", *limit)
    refused(ran, "BadOption", "--max-error 0.01: top1 is a score", "give --max-drop 0.01")


def test_pins_that_contradict_each_other(workspace: Path, tiny: Case) -> None:
    before = snapshot(workspace)
    pins = ("--keep-float", "conv0", "--force-int8", "conv*")
    refused(taglio("plan", workspace, "--max-error", 0.1, *pins), "BadOption", "conv0", "pins")
    refused(quick(tiny, workspace, "--max-error", 0.1, *pins), "BadOption", "conv0", "pins")
    assert snapshot(workspace) == before
