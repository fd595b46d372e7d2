"""What arrives of a message equals what was sent, with its times."""

import pickle

import numpy as np

from taglio.cluster.engine.parcel import Hop, Parcel, SessionStep, Step, merged

LARGE = np.random.default_rng(0).standard_normal((3, 240, 320)).astype(np.float32)


def arrived(parcel: Parcel) -> Parcel:
    copy = pickle.loads(pickle.dumps(parcel, protocol=5))
    assert isinstance(copy, Parcel)
    return copy


def test_tensors_steps_hops_and_session_arrive() -> None:
    tensors = {"large": LARGE.T, "pieces": [LARGE, LARGE[0]], "x": np.ones(4, np.float32)}
    steps, hops = (Step("0", "camera", 0.0, 1.0, 2.0),), (Hop(0, "gateway", "camera", 1.0, 2.0),)
    got = arrived(Parcel(3, 1, "camera", tensors, steps, hops, session=SessionStep("a", 4)))
    assert np.array_equal(got.tensors["large"], LARGE.T) and got.tensors["x"].tolist() == [1.0] * 4
    assert all(map(np.array_equal, got.tensors["pieces"], (LARGE, LARGE[0])))
    assert (got.steps, got.session) == (steps, SessionStep("a", 4))
    assert got.hops[0] == hops[0] and (got.hops[1].message, got.hops[1].source) == (1, "camera")
    assert got.hops[1].sent_s <= got.hops[1].read_s


def test_what_two_messages_share_counts_once() -> None:
    before = Hop(0, "", "camera", 1.0, 2.0)
    step = Step("0", "camera", 2.0, 2.0, 3.0)
    parcels = [arrived(Parcel(3, i, "camera", {f"x{i}": LARGE}, (step,), (before,))) for i in (1, 2)]
    tensors, steps, hops = merged(parcels, "server")
    assert list(tensors) == ["x1", "x2"] and steps == (step,)
    assert [(hop.message, hop.target) for hop in hops] == [(0, "camera"), (1, "server"), (2, "server")]
