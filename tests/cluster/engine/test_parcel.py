"""What is sent of a message, and what is made of it where it arrives."""

import pickle

import numpy as np
import pytest

from taglio.cluster.engine.parcel import Hop, Joint, Parcel, Step

DRAW = np.random.default_rng(0)
LARGE = DRAW.standard_normal((3, 240, 320)).astype(np.float32)


def carried(parcel: Parcel) -> list[Parcel]:
    """Its parts as they arrive."""
    return [pickle.loads(pickle.dumps(part, protocol=5)) for part in parcel.parts()]


def test_a_small_message_goes_as_it_is() -> None:
    sent = Parcel(3, 1, "camera", {"x": np.ones(4, np.float32)}, (Step("0", "camera", 0.0, 1.0, 2.0),))
    (got,) = carried(sent)
    whole = Joint().whole(got)
    assert whole is got and whole.tensors["x"].tolist() == [1.0] * 4
    assert whole.steps == sent.steps and [hop.message for hop in whole.hops] == [1]


def test_a_sequence_of_tensors_goes_as_it_is() -> None:
    (got,) = carried(Parcel(3, 1, "camera", {"pieces": [LARGE, LARGE[0]], "x": np.ones(4, np.float32)}))
    assert list(map(np.array_equal, got.tensors["pieces"], (LARGE, LARGE[0]))) == [True, True]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "large", [LARGE, LARGE.T, LARGE.repeat(3) > 0, (LARGE * 9).astype(np.int8).repeat(3), np.zeros(500_000, np.uint8)]
)
def test_a_large_tensor_goes_in_two_parts_that_may_arrive_either_way_round(large: np.ndarray, turned: bool) -> None:
    hop = Hop(0, "gateway", "camera", 1.0, 2.0)
    joint, small = Joint(), np.arange(5)
    got = carried(Parcel(3, 1, "camera", {"small": small, "large": large}, hops=(hop,)))
    assert len(got) == 2
    assert sum(each.nbytes for part in got for each in part.tensors.values()) == large.nbytes + small.nbytes
    first, second = reversed(got) if turned else got
    assert joint.whole(first) is None
    whole = joint.whole(second)
    assert whole is not None and whole.cut is None
    assert whole.tensors["large"].dtype == large.dtype and np.array_equal(whole.tensors["large"], large)
    assert np.array_equal(whole.tensors["small"], small)
    # The way of a message begins with its first part and ends with its last.
    assert whole.hops[0] == hop and len(whole.hops) == 2
    assert whole.hops[1].sent_s == got[0].hops[-1].sent_s
    assert whole.hops[1].read_s == max(part.hops[-1].read_s for part in got)


def test_parts_of_several_messages_are_told_apart() -> None:
    joint = Joint()
    sent = {
        (request, message): np.full(150_000, request + message, np.float32) for request in (0, 5) for message in (1, 2)
    }
    halves = [carried(Parcel(*key, "camera", {"x": value})) for key, value in sent.items()]
    assert [joint.whole(each[0]) for each in halves] == [None] * 4
    for half in reversed(halves):
        whole = joint.whole(half[1])
        assert whole is not None
        assert np.array_equal(whole.tensors["x"], sent[whole.request, whole.message])


@pytest.mark.parametrize("which", [0, 1])
def test_parts_that_make_no_such_tensor_are_refused(which: int) -> None:
    halves = carried(Parcel(0, 0, "camera", {"x": LARGE}))
    halves[which].tensors["x"] = halves[which].tensors["x"][:-4]
    joint = Joint()
    with pytest.raises(ValueError, match="could not broadcast"):
        [joint.whole(each) for each in halves]
