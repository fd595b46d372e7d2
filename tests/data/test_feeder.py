"""Samples become feeds: arrays that fit pass as they are, whatever else is converted or refused as always."""

import numpy as np
import pytest

from taglio.data.spec import InputSpec
from taglio.data.values import Feeder
from taglio.errors import BadData

IMAGE = InputSpec("image", (1, 3, 4, 4), "float32")
IDS = InputSpec("ids", ("batch", "tokens"), "int64")
MASK = InputSpec("mask", ("batch", "tokens"), "int64")


def test_arrays_that_fit_are_neither_copied_nor_read() -> None:
    feeder, image = Feeder([IMAGE]), np.full((1, 3, 4, 4), np.nan, np.float32)
    assert feeder({"image": image})["image"] is image
    assert feeder(image)["image"] is image


def test_dynamic_sizes_pass_once_they_were_checked() -> None:
    feeder = Feeder([IDS, MASK])
    for tokens in (5, 5, 7, 5):
        sample = {"ids": np.ones((1, tokens), np.int64), "mask": np.ones((1, tokens), np.int64)}
        feed = feeder(sample)
        assert all(feed[name].shape == (1, tokens) for name in sample)
    assert feeder(sample)["ids"] is sample["ids"]
    with pytest.raises(BadData, match=r"`sample` has \[5\] for input|give each sample|takes \[batch, tokens\]"):
        feeder({"ids": np.ones((1, 2, 5), np.int64), "mask": sample["mask"]})


def test_what_does_not_fit_is_converted_or_refused_also_after_one_that_fitted() -> None:
    feeder = Feeder([IMAGE])
    feeder(np.zeros((1, 3, 4, 4), np.float32))
    assert feeder(np.zeros((3, 4, 4)))["image"].shape == (1, 3, 4, 4)
    assert feeder({"image": np.ones((1, 3, 4, 4))})["image"].dtype == np.float32
    assert feeder({"picture": np.ones((3, 4, 4), np.float32)})["image"].shape == (1, 3, 4, 4)
    assert feeder([[[[1.0] * 4] * 4] * 3])["image"].shape == (1, 3, 4, 4)
    with pytest.raises(BadData, match="raw pixels need preprocessing"):
        feeder(np.zeros((1, 3, 4, 4), np.uint8))
    with pytest.raises(BadData, match="1 NaN or infinite"):
        feeder(np.array([np.nan] + [0.0] * 47).reshape(1, 3, 4, 4))
    with pytest.raises(BadData, match=r"has \[1, 3, 5, 4\] for input 'image'"):
        feeder(np.zeros((1, 3, 5, 4), np.float32))
