"""What a link is measured with: an actor that sends tensors to another and waits for its word. Fits nothing."""

import os
import time
from typing import Any

import numpy as np

from taglio.engine.device import DEVICE
from taglio.engine.library import ray
from taglio.engine.parcel import Parcel


class Echo:
    """One end of a link that is measured."""

    def __init__(self) -> None:
        self._device = os.environ.get(DEVICE, "")

    def there(self, parcel: Parcel) -> int:
        """A tensor arrives; its bytes."""
        return int(parcel.tensors["tensor"].nbytes)

    def seconds(self, other: Any, size: int, runs: int) -> list[float]:
        """Until the actor `other` (None: this process) has answered to a tensor of `size` bytes, `runs` times."""
        tensor = np.zeros(size, np.uint8)
        found = []
        for index in range(runs):
            start = time.monotonic()
            parcel = Parcel(index, 0, self._device, {"tensor": tensor})
            if other is None:
                self.there(parcel)
            else:
                ray().get(other.there.remote(parcel))
            found.append(time.monotonic() - start)
        return found
