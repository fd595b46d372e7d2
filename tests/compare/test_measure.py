"""What a comparison reads before any back end runs."""

from functools import partial
from pathlib import Path

import numpy as np

from taglio.compare.measure import _opened
from taglio.data.files import load
from tests.models import Sketch, saved


def test_data_of_several_shapes_is_compared_at_the_most_frequent(tmp_path: Path) -> None:
    """Most back ends compile for one shape."""
    g = Sketch()
    x = g.op("Relu", g.conv(g.input("x", 1, 3, "h", "w"), 3, 4))
    model, folder = saved(g.model(g.rename(x, "y")), tmp_path), tmp_path / "data"
    folder.mkdir()
    for index, size in enumerate((8, 6, 8, 7, 8, 8)):
        np.savez(folder / f"{index}.npz", x=g.rng.normal(0, 1, (1, 3, size, 8)).astype(np.float32))
    network, _, data = _opened(model, {}, partial(load, folder), 0)
    assert network.inputs[0].sizes() == (1, 3, 8, 8)
    assert len(data.calibration.samples) + len(data.held_out.samples) == 4
