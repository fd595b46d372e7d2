"""A model that is timed in parts, each with a session of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from taglio import weights
from taglio.cluster.engine import parts as of_parts
from taglio.cluster.engine.deploy import send
from taglio.cluster.engine.parts import Parts, _cut, ranges
from taglio.cluster.engine.remote_profile import Job, Profiler, written
from taglio.cluster.planning.schedule import components
from taglio.flow.workspace import reopen_profiled
from taglio.profile.attribution import Attributor
from taglio.profile.measure import pure_assignments
from taglio.profile.stopwatch import Effort, Timed, time_models
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.conftest import Staged

ROOM = 1_200_000  # bytes, for four parts of a network with 1.3 MB of weights


@pytest.fixture(scope="module")
def opened(digits_staged: Staged) -> tuple[Any, Any]:
    return reopen_profiled(digits_staged.folder)


def run(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [value.name for value in proto.graph.output]
    return dict(zip(names, open_session(proto, SessionOptions(1)).run(names, feed), strict=True))


def test_parts_are_consecutive_blocks_that_fit(opened: tuple[Any, Any]) -> None:
    graph = opened[0].graph
    of = ranges(graph, ROOM)
    names = [*dict.fromkeys(of.values())]
    assert len(names) > 2 and list(of.values()) == sorted(of.values(), key=names.index)
    held = {name: [block.weight_bytes(32) for block in graph.blocks if of[block.name] == name] for name in names}
    assert all(sum(each) <= ROOM / 3 or sum(map(bool, each)) == 1 for each in held.values())
    assert len(set(components(graph, of).values())) == len(names)


@pytest.mark.parametrize("form", ["float32", "int8", "int8-anchor"])
def test_parts_run_one_after_another_answer_as_the_whole_does(opened: tuple[Any, Any], form: str) -> None:
    work, known = opened
    forms = {"float32": {}, **pure_assignments(work.graph, known.precisions)}
    whole, feed = work.builder(known.scheme).build(forms[form]), dict(work.timed[0])
    values, expected = dict(feed), run(whole, feed)
    for part in _cut(work.model, work.graph, whole, ranges(work.graph, ROOM)).values():
        values |= run(part.proto, {name: values[name] for name in part.inputs})
    for name, wanted in expected.items():
        assert np.allclose(values[name], wanted, rtol=1e-4, atol=1e-4)


def test_kernels_of_all_parts_belong_to_the_blocks_to_which_those_of_the_whole_do(opened: tuple[Any, Any]) -> None:
    work, known = opened
    of, feeds = ranges(work.graph, ROOM), [dict(each) for each in work.timed[:2]]
    parts = Parts.opened(work.model, work.graph, of, feeds, 1)
    forms = pure_assignments(work.graph, known.precisions)
    builder, attributor = work.builder(known.scheme), Attributor(work.model, work.graph)
    models = {"float32": lambda: builder.build({}), "int8": lambda: builder.build(forms["int8"])}
    given = (models, feeds, SessionOptions(1), Effort(budget_s=0.1))
    whole, found = time_models(*given, kernels=True), parts.time(*given, kernels=True)
    for name in models:
        before, now = (attributor.attribute(each[name].optimized, each[name].kernels) for each in (whole, found))
        assert now.blocks_s.keys() >= before.blocks_s.keys() and not now.orphans  # a cut may keep an Add from fusing
        assert sum(now.block_kernels.values()) >= sum(before.block_kernels.values())
        assert len(found[name].kernels) == sum(now.block_kernels.values()) + sum(now.tensor_kernels.values())
    assert parts.once_s > 0.0


def test_a_device_without_memory_for_the_whole_never_opens_more_than_a_part(
    opened: tuple[Any, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, known = opened
    seen: list[int] = []

    def timed(models: dict[str, Callable[[], onnx.ModelProto]], *given: Any, **how: Any) -> dict[str, Timed]:
        seen.extend(weights.weight_bytes(build()) for build in models.values())
        return time_models(models, *given, **how)

    monkeypatch.setattr(of_parts, "time_models", timed)
    scheme, profiler = known.scheme, Profiler("far", 1, tmp_path / "store")
    feeds = [dict(each) for each in work.timed[:1]]
    job = Job(
        written(work.model, tmp_path), work.model, work.graph, work.ranges(scheme), scheme, feeds, SessionOptions(1),
        0.01, 0, memory_bytes=ROOM,
    )  # fmt: skip
    send(profiler, {sha256: tmp_path / name for name, sha256 in job.files.items()})
    found = profiler.profile(job)
    largest = max(block.weight_bytes(32) for block in work.graph.blocks)
    assert seen and max(seen) < max(ROOM / 3, largest) + 4096
    assert {each.block for each in found.blocks} == {each.block for each in known.blocks}
    assert 0.0 <= found.overhead_s < found.runs[0].wall.median_s
