"""What a link is measured with: an actor that sends tensors of any size and gives back what arrives. Fits nothing."""

import os
import time

import numpy as np

from taglio.engine.device import DEVICE
from taglio.engine.library import part
from taglio.engine.parcel import Parcel, Step

SIZE = "bytes"


class Echo:
    """One end of a link that is measured."""

    def __init__(self, buffer_bytes: int) -> None:
        self._device = os.environ.get(DEVICE, "")
        part("ray.dag").DAGContext.get_current().buffer_size_bytes = buffer_bytes

    def send(self, asked: Parcel) -> Parcel:
        """A tensor of as many bytes as `asked` says; its time starts now."""
        tensor = np.zeros(int(asked.tensors[SIZE][0]), np.uint8)
        now = time.monotonic()
        return Parcel(asked.request, 0, self._device, {"tensor": tensor}, (Step("sent", self._device, now, now, now),))

    def bounce(self, parcel: Parcel) -> Parcel:
        """Eight bytes in return."""
        size = np.array([parcel.tensors["tensor"].nbytes])
        return Parcel(parcel.request, 1, self._device, {SIZE: size}, parcel.steps)

    def land(self, parcel: Parcel) -> Parcel:
        """Seconds since the tensor was sent, by the clock of the device that sent it."""
        took = np.array([time.monotonic() - parcel.steps[0].end_s])
        return Parcel(parcel.request, 2, self._device, {"seconds": took})
