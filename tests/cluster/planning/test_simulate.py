"""The simulator against cases worked out by hand, and against a longest path where nothing has to wait."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.cluster.planning.simulate import ComponentTask, Pipeline, Transfer, simulate
from taglio.plan.result import Span
from tests.cluster.planning.streams import stream
from tests.examples import examples

CAMERA, SERVER = "camera", "server"
UP, DOWN = (CAMERA, SERVER), (SERVER, CAMERA)


def send(
    source: int | None, *targets: int, link: tuple[str, str] = UP, busy: float = 1.0, delay: float = 0.0
) -> Transfer:
    return Transfer(f"t{source}", source, targets, link, busy, delay)


def there_and_back(compute: float = 3.0) -> Pipeline:
    """camera 2 s, up 1 s + 0.5, server 3 s, down 0.25 s + 0.5: the answer."""
    return Pipeline(
        (ComponentTask("first", CAMERA, 2.0), ComponentTask("second", SERVER, compute)),
        (send(None, 0, busy=0.0), send(0, 1, busy=1.0, delay=0.5), send(1, link=DOWN, busy=0.25, delay=0.5)),
    )


def test_a_chain_adds_up() -> None:
    timeline = simulate(there_and_back())
    assert timeline.end_s == pytest.approx(2 + 1.5 + 3 + 0.75)
    assert timeline.spans == (
        Span(CAMERA, "first", 0, 0.0, 2.0, False),
        Span("camera -> server", "t0", 0, 2.0, 3.5, True),
        Span(SERVER, "second", 0, 3.5, 6.5, False),
        Span("server -> camera", "t1", 0, 6.5, 7.25, True),
    )
    assert there_and_back().busy_s() == {CAMERA: 2.0, SERVER: 3.0, "camera -> server": 1.0, "server -> camera": 0.25}


def test_a_device_goes_on_when_it_has_sent_what_it_wrote() -> None:
    def branches(sending_s: float) -> Pipeline:
        tasks = (
            ComponentTask("a", CAMERA, 4.0, sending_s),
            ComponentTask("b", CAMERA, 5.0, sending_s),
            ComponentTask("join", SERVER, 1.0),
        )
        return Pipeline(tasks, (send(0, 2, busy=1.0), send(1, 2, busy=1.0)))

    assert simulate(branches(0.0)).end_s == pytest.approx(4 + 5 + 1 + 1)
    timeline = simulate(branches(2.0))
    assert timeline.end_s == pytest.approx(4 + 2 + 5 + 1 + 1)  # what b wrote leaves at its end, as what a wrote does
    assert [each.start_s for each in timeline.spans] == [0.0, 4.0, 6.0, 11.0, 12.0]
    assert max(stream([branches(2.0)] * 2)) == pytest.approx(13 + 4 + 2 + 5 + 2)


@pytest.mark.parametrize(("second_s", "ends"), [(1.0, [8.0, 9.0]), (3.0, [9.0, 10.0]), (7.0, [7.0, 13.0])])
def test_a_component_stands_still_while_its_device_receives(second_s: float, ends: list[float]) -> None:
    """What a sent arrives at 5, received from 3 on; what b sent is received right after, amid c, or after c."""
    tasks = (
        ComponentTask("a", CAMERA, 1.0),
        ComponentTask("b", CAMERA, second_s),
        ComponentTask("c", SERVER, 2.0),
        ComponentTask("d", SERVER, 1.0),
    )
    sent = tuple(replace(send(source, source + 2, busy=1.0, delay=3.0), receiving_s=2.0) for source in (0, 1))
    timeline = simulate(Pipeline(tasks, sent))
    assert [each.end_s for each in timeline.spans if each.on == SERVER] == ends


def test_one_link_sends_one_tensor_at_a_time_and_delay_overlaps() -> None:
    pipeline = Pipeline(
        (ComponentTask("a", CAMERA, 1.0), ComponentTask("b", SERVER, 1.0), ComponentTask("c", SERVER, 1.0)),
        (send(0, 1, busy=2.0, delay=10.0), send(0, 2, busy=2.0, delay=10.0)),
    )
    # Up to 3 and 5, there at 13 and 15; b 13..14, c 15..16.
    assert simulate(pipeline).end_s == pytest.approx(16.0)
    other = Pipeline(
        pipeline.tasks, (pipeline.transfers[0], send(0, 2, link=("camera", "cloud"), busy=2.0, delay=10.0))
    )
    assert simulate(other).end_s == pytest.approx(15.0)  # both there at 13, the server does one after the other


def test_older_requests_go_first() -> None:
    tasks = (ComponentTask("a", CAMERA, 2.0), ComponentTask("b", SERVER, 1.0), ComponentTask("c", CAMERA, 1.0))
    pipeline = Pipeline(tasks, (send(0, 1, busy=0.0), send(1, 2, link=DOWN, busy=0.0)))
    # camera: a0 0..2, a1 2..4 (c0 is ready at 3), then c0 4..5, c1 at 5.
    assert stream([pipeline] * 2) == [5.0, 6.0]


def test_tasks_that_wait_in_a_circle_are_refused() -> None:
    tasks = (ComponentTask("a", CAMERA, 1.0), ComponentTask("b", SERVER, 1.0))
    with pytest.raises(ValueError, match="wait for each other"):
        simulate(Pipeline(tasks, (send(0, 1), send(1, 0, link=DOWN))))


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Tasks, each on a device of its own, so that only what is sent decides who waits."""
    count = draw(st.integers(1, 7))
    seconds = [draw(st.integers(0, 9)) for _ in range(count)]
    tasks = tuple(ComponentTask(f"task{index}", f"device{index}", float(each)) for index, each in enumerate(seconds))
    transfers = []
    for target in range(count):
        for source in range(target):
            if draw(st.booleans()):
                busy, delay = draw(st.integers(0, 5)), draw(st.integers(0, 5))
                link = (f"device{source}", f"device{target}")
                transfers.append(Transfer("t", source, (target,), link, float(busy), float(delay)))
    return Pipeline(tasks, tuple(transfers))


@examples(200)
@given(pipelines())
def test_with_a_device_each_the_latency_is_the_longest_path(pipeline: Pipeline) -> None:
    end: list[float] = []
    for index, task in enumerate(pipeline.tasks):
        arrivals = [
            end[t.source] + t.busy_s + t.delay_s
            for t in pipeline.transfers
            if index in t.targets and t.source is not None
        ]
        end.append(max(arrivals, default=0.0) + task.seconds)
    timeline = simulate(pipeline)
    assert timeline.end_s == pytest.approx(max(end))
    assert timeline == simulate(pipeline)


@st.composite
def shared(draw: st.DrawFn) -> Pipeline:
    """Tasks on three devices, which send and receive, over the links between them."""
    count = draw(st.integers(2, 8))
    devices = [draw(st.sampled_from("abc")) for _ in range(count)]
    tasks = tuple(
        ComponentTask(f"task{index}", device, float(draw(st.integers(0, 9))), float(draw(st.integers(0, 2))))
        for index, device in enumerate(devices)
    )
    transfers = []
    for target in range(count):
        for source in range(target):
            if draw(st.booleans()):
                busy, delay, receiving = (float(draw(st.integers(0, 5))) for _ in range(3))
                link = devices[source], devices[target]
                receiving_s = receiving if link[0] != link[1] else 0.0
                name = f"{source} to {target}"
                transfers.append(Transfer(name, source, (target,), link, busy, delay, receiving_s=receiving_s))
    return Pipeline(tasks, tuple(transfers))


def overlap_s(start_s: float, end_s: float, intervals: list[tuple[float, float]]) -> float:
    """Seconds between two times that are in at least one interval."""
    total_s, until_s = 0.0, start_s
    for begin_s, stop_s in sorted(intervals):
        total_s += max(0.0, min(stop_s, end_s) - max(begin_s, until_s))
        until_s = max(until_s, stop_s)
    return total_s


@examples(200)
@given(shared())
def test_devices_and_links_can_keep_the_timeline(pipeline: Pipeline) -> None:
    """Nothing starts before its inputs have arrived, all takes as long as it says, and nothing does two things at once.
    A device that receives pauses what it runs."""
    spans = {span.what: span for span in simulate(pipeline).spans}
    receiving, occupied = defaultdict(list), defaultdict(list)
    for transfer in pipeline.transfers:
        assert transfer.source is not None
        sent_s, took_s = spans[pipeline.tasks[transfer.source].name].end_s, transfer.busy_s + transfer.delay_s
        arrived_s = sent_s
        if took_s > 0.0:
            way = spans[transfer.name]
            assert way.start_s >= sent_s and way.end_s - way.start_s == pytest.approx(took_s)
            occupied[way.on].append((way.start_s, way.start_s + transfer.busy_s))
            receiving[transfer.link[1]].append((way.end_s - min(transfer.receiving_s, took_s), way.end_s))
            arrived_s = way.end_s
        assert all(spans[pipeline.tasks[target].name].start_s >= arrived_s for target in transfer.targets)
    for task in pipeline.tasks:
        run = spans[task.name]
        paused_s = overlap_s(run.start_s, run.end_s, receiving[task.device])
        assert run.end_s - run.start_s == pytest.approx(task.seconds + paused_s)
        occupied[task.device].append((run.start_s, run.end_s + task.sending_s))
    for intervals in occupied.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(intervals)))
