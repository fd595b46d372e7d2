"""Measure links with an actor that sends tensors to another and waits for its reply. Fits nothing.

A device that gets a message runs a component next, and on a device that was idle even the smallest takes a while. So
each end runs one operator on what arrives, and hop times include it.
"""

import time
from typing import Any

import numpy as np
from onnx.parser import parse_model

from taglio.cluster.engine.library import ray
from taglio.cluster.engine.parcel import Joint, Parcel
from taglio.cluster.engine.resident import Resident
from taglio.runtimes.onnxruntime import SessionOptions, open_session

_FEW = 8
_SMALLEST = f"""<ir_version: 8, opset_import: ["" : 13]>
    smallest (uint8[{_FEW}] x) => (float[{_FEW}] y) <float scale = {{1.0}}> {{ y = DequantizeLinear (x, scale) }}"""


class Echo(Resident):
    """One end of a link being measured."""

    def __init__(self) -> None:
        super().__init__()
        self._session = open_session(parse_model(_SMALLEST), SessionOptions(1))
        self._joint = Joint()

    def there(self, parcel: Parcel) -> int:
        """Receive a tensor; returns its bytes, 0 while parts are missing."""
        whole = self._joint.whole(parcel)
        if whole is None:
            return 0
        tensor = whole.tensors["tensor"]
        self._run(tensor)
        return int(tensor.nbytes)

    def seconds(self, other: Any, size: int, runs: int, together: int = 1) -> list[float]:
        """Seconds until the actor `other` (None: this process) has replied to a tensor of `size` bytes, or to
        `together` tensors sent back to back; `runs` measurements."""
        tensor = np.zeros(size, np.uint8)
        found = []
        for index in range(runs):
            start = time.monotonic()
            parcels = [Parcel(index, each, self.device, {"tensor": tensor}) for each in range(together)]
            if other is None:
                for parcel in parcels:
                    self.there(parcel)
            else:
                ray().get([other.there.remote(part) for parcel in parcels for part in parcel.parts()])
                self._run(tensor)
            found.append(time.monotonic() - start)
        return found

    def _run(self, tensor: np.ndarray) -> None:
        self._session.run(None, {"x": tensor[:_FEW]})
