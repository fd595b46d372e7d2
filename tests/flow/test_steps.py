"""Models with state: the pairs, the data of their steps, where a state lives, and what steps leave in it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

import taglio
from taglio.cluster.engine.wiring import wire
from taglio.cluster.file import parse
from taglio.data.spec import InputSpec
from taglio.flow.run import run_steps
from taglio.lab.work import Work
from taglio.model.inputs import spec_of
from taglio.model.state import suggested
from tests.conftest import TWO_DEVICES
from tests.stateful import PRESENT, STATES, WIDE, inputs, network

STEPS = 12
SCHEME = "qdq-u8s8-asym-pc-rr"


@pytest.fixture(scope="module")
def opened() -> Work:
    return taglio.Model(network(), {"x": inputs(STEPS)}, threads=1, runtime="onnxruntime", state=STATES)


@pytest.fixture(scope="module")
def staged(opened: Work) -> tuple[Any, Any]:
    profile = taglio.profile_model(opened, scheme=SCHEME, effort=0.01)
    return profile, taglio.error_model(opened, profile, effort=0.01)


def in_one_process(steps: np.ndarray) -> list[dict[str, np.ndarray]]:
    """What the float model itself answers and leaves, step by step."""
    session = ort.InferenceSession(network().SerializeToString())
    names = [each.name for each in session.get_outputs()]
    h, cache = np.zeros((1, WIDE), np.float32), np.zeros((1, 0, WIDE), np.float32)
    found = []
    for x in steps:
        answers = session.run(names, {"x": x, "h0": h, "past_key_values.0.key": cache})
        found.append(dict(zip(names, answers, strict=True)))
        h, cache = found[-1]["hn"], found[-1][PRESENT]
    return found


def test_pairs_are_suggested_by_name_and_shape() -> None:
    def named(*names: str) -> list[InputSpec]:
        return [InputSpec(name, (1, 8), "float32") for name in names]

    def told(outputs: str, known: str) -> list[tuple[str, str]]:
        values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 8)) for name in outputs.split()]
        nodes = [onnx.helper.make_node("Identity", ["mask"], ["mask_out"])]
        return list(suggested(named(*known.split()), onnx.helper.make_graph(nodes, "g", [], values)))

    assert told("y stateN", "x state") == [("stateN", "state")]
    assert told("hn cn y", "x h0 c0") == [("hn", "h0"), ("cn", "c0")]
    assert told("present.0.key present.0.value", "past_key_values.0.key past_key_values.0.value ids") == [
        ("present.0.key", "past_key_values.0.key"), ("present.0.value", "past_key_values.0.value"),
    ]  # fmt: skip
    assert told("r1o r2o fgr", "src r1i r2i") == [("r1o", "r1i"), ("r2o", "r2i")]
    assert told("y present", "x past") == [("present", "past")]
    assert told("output scores", "input image") == []
    assert told("mask_out y", "x mask") == []  # only passed on
    assert told("output", "input") == told("hn cn", "h0 c0") == []  # nothing is left to give data for


def test_lengths_are_no_states_unless_a_state_is_there() -> None:
    def told(text: str) -> list[tuple[str, str]]:
        proto = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]> g {text}""")
        return list(suggested([spec_of(value) for value in proto.graph.input], proto.graph))

    lengths = "int64[batch] lens, float[batch, 8] x"
    out = "float[batch, 8] y, int64[batch] out_lens"
    body = "one = Constant <value_int = 1> () out_lens = Add (lens, one) y = Relu (x)"
    assert told(f"({lengths}) => ({out}) {{ {body} }}") == []
    cached = f"({lengths}, float[batch, 8] past) => ({out}, float[batch, 8] present)"
    assert told(f"{cached} {{ {body} present = Add (past, x) }}") == [("out_lens", "lens"), ("present", "past")]


@pytest.mark.parametrize("read", ["Identity (h)", "Reshape (h, one)"])
def test_a_batch_without_a_name_is_not_taken_for_a_dimension_that_grows(read: str) -> None:
    """The first cell runs on a batch of 0 and leaves it so; the second refuses it. The cache does grow."""
    proto = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]>
        unnamed (float[?, 16] x, float[1, ?, 16] h, float[1, ?, 16] past)
        => (float[?, ?, 16] y, float[1, ?, 16] hn, float[1, ?, 16] present)
        <int64[1] zero = {{0}}, int64[3] one = {{1, 1, 16}}> {{
            row = Unsqueeze (x, zero)
            before = {read}
            hn = Add (row, before)
            present = Concat <axis = 1> (past, row)
            y = Add (present, hn)
        }}""")
    opened = taglio.Model(proto, {"x": inputs(4)}, threads=1, runtime="onnxruntime", state=["hn=h", "present=past"])
    assert {name: value.shape for name, value in opened.first_states.items()} == {"h": (1, 1, 16), "past": (1, 0, 16)}
    everything = [*opened.data.calibration.samples, *opened.data.held_out.samples]
    assert sorted(each["past"].shape[1] for each in everything) == [0, 1, 2, 3]


def test_every_step_finds_what_those_before_left(opened: Work) -> None:
    wanted = in_one_process(inputs(STEPS))
    everything = [*opened.data.calibration.samples, *opened.data.held_out.samples]
    assert sorted(each["past_key_values.0.key"].shape[1] for each in everything) == list(range(STEPS))
    for each in everything:
        before = each["past_key_values.0.key"].shape[1]
        assert np.array_equal(each["x"], inputs(STEPS)[before])
        if before:
            assert np.array_equal(each["h0"], wanted[before - 1]["hn"])
    assert [set(each) for each in opened.steps] == [{"x"}] * STEPS


def test_one_block_keeps_a_state_and_a_planner_sees_no_crossing(opened: Work) -> None:
    graph = opened.graph
    for present, past in graph.states:
        tensors = graph.tensor_map()
        assert tensors[past].consumers == (tensors[present].producer,)
        assert "keeps a state" in graph.block(str(tensors[present].producer)).refusal
    alone = graph.placeable(steps=100)
    assert (alone.inputs, alone.outputs) == (("x",), ("y",))
    held = {block.name: block.state_bytes for block in alone.blocks if block.state_bytes}
    grown = 100 * 4 * WIDE
    assert sorted(held.values()) == [4 * WIDE, grown]
    assert alone.placeable(7) is alone


@pytest.mark.whole
def test_a_state_stays_on_its_device_and_the_session_answers_as_one_process(
    opened: Work, staged: tuple[Any, Any], tmp_path: Path
) -> None:
    """The cell on the camera, the cache on the server; a plan in float answers as the model does, to the bit."""
    profile, error = staged
    tensors = opened.graph.tensor_map()
    cell, cache, head = (tensors[name].producer for name in ("hn", PRESENT, "y"))
    pins = (f"camera={cell}", f"server={cache}", f"server={head}")
    candidate = taglio.candidate(opened, profile, error, max_error=0.0, pins=pins, max_steps=50)
    plan = taglio.place(candidate, parse(TWO_DEVICES), time_limit_s=0.5).plans[0]
    names = {name for pair in opened.graph.states for name in pair}
    assert not {each.tensor for each in plan.crossings} & {past for _, past in opened.graph.states}
    built = taglio.build(opened, plan)
    wiring = wire(built.write(tmp_path))
    assert len({piece.device for piece in built.parts}) == 2
    sent = {name for message in wiring.messages for name in message.names}
    assert "x" in sent and not sent & {past for _, past in opened.graph.states}
    assert all(message.device for message in wiring.messages if names & set(message.names))
    session = built.session(threads=1)
    for step, wanted in zip(inputs(STEPS), in_one_process(inputs(STEPS)), strict=True):
        answer = session.step({"x": step})
        assert set(answer) == {"y"} and np.array_equal(answer["y"], wanted["y"])
        other = session.step({"x": step}, "another")
        assert np.array_equal(other["y"], wanted["y"])
    session.end()
    assert np.array_equal(session.step({"x": inputs(1)[0]})["y"], in_one_process(inputs(1))[0]["y"])
    report = run_steps(opened, profile, plan, built, steps=30)
    assert (report.steps, report.error) == (30, 0.0) and report.state_bytes == 4 * WIDE * 31
