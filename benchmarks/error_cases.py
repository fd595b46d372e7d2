"""Networks for the benchmarks of the error model, with a meter on their held-out inputs. Judges nothing.

Photographs are few, and the outputs of a detector are nearly zero but for a handful of cells: measured on five
pictures, the error of one output jumps by 20 % when any early block is rounded differently. So the held-out photographs
(never the calibration ones) are also shown in parts, each enlarged to the input's size: VIEWS inputs a photograph.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from PIL import Image

from cases import open_case
from taglio.data.dataset import Split
from taglio.error.measure import ErrorMeter
from taglio.lab.work import Work
from taglio.quantize.scheme import DEFAULT_SCHEME

NETWORKS = ("ultraface-rfb-320", "yunet-n-640", "digits")
# Where a part begins, as a share of height and width; each is 0.6 of both.
PARTS = ((0.0, 0.0), (0.4, 0.4), (0.0, 0.4), (0.4, 0.0))
PART_SIZE = 0.6
VIEWS = 3
DIGITS = 64


def open_network(name: str, views: int) -> tuple[Work, ErrorMeter]:
    """The network `name`, and a meter on its held-out inputs."""
    work = open_case(name)
    samples = work.data.held_out.samples
    if name == "digits":
        samples = samples[:DIGITS]
    else:
        samples = tuple(view for sample in samples for view in views_of(sample, views))
    held_out = replace(work.data.held_out, samples=samples)
    work = work.but(data=Split(work.data.calibration, held_out, work.data.seed))
    return work, ErrorMeter(work.switchable(DEFAULT_SCHEME), samples, work.model.outputs, None)


def views_of(sample: Mapping[str, np.ndarray], count: int) -> list[Mapping[str, np.ndarray]]:
    """A picture whole and in parts, `count` in all."""
    ((name, picture),) = sample.items()
    height, width = picture.shape[2:]
    result: list[Mapping[str, np.ndarray]] = [sample]
    for top, left in PARTS[: count - 1]:
        rows = slice(int(top * height), int((top + PART_SIZE) * height))
        columns = slice(int(left * width), int((left + PART_SIZE) * width))
        channels = [
            np.asarray(Image.fromarray(channel[rows, columns]).resize((width, height), Image.Resampling.BILINEAR))
            for channel in picture[0]
        ]
        result.append({name: np.stack(channels)[None].astype(picture.dtype)})
    return result
