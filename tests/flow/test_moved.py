"""A plan that was profiled on a processor with VNNI says so where it runs on one without."""

from dataclasses import replace

import pytest

from taglio.flow.run import moved
from taglio.plan.result import Interval, Limits, Placement, Plan
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import parse_scheme
from tests.search.made_up import chain

VNNI, AVX2 = ("avx2", "avx512f", "avx512_vnni"), ("avx2",)


@pytest.mark.parametrize(
    ("there", "here", "scheme", "form", "told"),
    [
        (VNNI, AVX2, "qdq-u8s8-asym-pc", "int8", True),
        (VNNI, AVX2, "qdq-u8s8-asym-pc-rr-dyn", "int8", False),
        (VNNI, VNNI, "qdq-u8s8-asym-pc", "int8", False),
        (AVX2, AVX2, "qdq-u8s8-asym-pc", "int8", False),  # its errors were measured so
        (AVX2, VNNI, "qdq-u8s8-asym-pc-rr", "int8", False),
        ((), AVX2, "qdq-u8s8-asym-pc", "int8", False),  # nothing is known
        (VNNI, AVX2, "qdq-u8s8-asym-pc", "float32", False),
    ],
)
def test_int8_sums_that_saturate_here_alone_are_told(
    there: tuple[str, ...], here: tuple[str, ...], scheme: str, form: str, told: bool
) -> None:
    graph, profile, _ = chain(2)
    conditions = profile.conditions
    machine = replace(conditions.machine, processor="Sapphire", instructions=there)
    profile = replace(profile, conditions=replace(conditions, machine=machine))
    parsed, none = parse_scheme(scheme), Interval(0.0, 0.0, 0.0, 0.9)
    placed = tuple(Placement(block.name, "local", form) for block in graph.blocks)
    plan = Plan("m", parsed, precisions(parsed), Limits(0.01), placed, "optimal", 0.0, none, none)
    note = moved(profile, plan, here)
    assert bool(note) == told
    assert not told or ("no VNNI" in note and str(parsed.narrow) in note and "profiled on Sapphire" in note)
