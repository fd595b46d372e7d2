"""A plan served on two devices of this machine's loopback: many clients at once, and a device that is lost."""

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.embedded import digits_data
from taglio.serve.served import open_model
from tests.cluster.engine.conftest import cluster, out
from tests.cluster.engine.devices import Bench, needs_ray, planned, two_devices
from tests.end_to_end.command import refused
from tests.serve.conftest import Server, start, stop

pytestmark = [needs_ray, pytest.mark.whole]
__all__ = ["cluster", "out"]


@pytest.fixture(scope="module")
def devices() -> Iterator[Bench]:
    with two_devices() as here:
        yield here


def answer(server: Server, image: np.ndarray) -> np.ndarray:
    given = {"name": "image", "datatype": "FP32", "shape": list(image.shape), "data": image.ravel().tolist()}
    body = json.dumps({"inputs": [given]}).encode()
    with urllib.request.urlopen(f"{server.http}/v2/models/digits/infer", body, timeout=120) as response:
        told: Any = json.load(response)
    return np.array(told["outputs"][0]["data"], np.float32)


def test_many_clients_are_answered_on_the_devices_also_while_one_is_lost(
    devices: Bench, out: Path, cluster: Path
) -> None:
    plan = planned(out, cluster, "--objective", "throughput")
    assert {each["device"] for each in plan["placements"]} == {"camera", "server"}
    with np.load(digits_data()) as data:
        images = data["image"][:16, None]
    alone = open_model(out, "digits", "1")
    wanted = [alone.run({"image": image})["logits"].ravel() for image in images]
    asked = (f"digits={out}", "--cluster", str(cluster))
    refused(devices.command("serve", *asked, "--threads", 1), "--threads is for one machine")
    server = start(*asked, environment=devices.environment)
    try:
        refused(devices.command("run", out, "--cluster", cluster), "taglio serve")
        with ThreadPoolExecutor(16) as clients:
            found = list(clients.map(lambda image: answer(server, image), np.concatenate([images] * 4)))
            assert all(np.array_equal(each, wanted[index % 16]) for index, each in enumerate(found))
            coming = [clients.submit(answer, server, images[index % 16]) for index in range(400)]
            coming[40].result()
            devices.kill("server")
            # Another plan may have other precisions, so its answers are near, not equal.
            assert all(each.result().argmax() == wanted[index % 16].argmax() for index, each in enumerate(coming))
        with urllib.request.urlopen(f"{server.http}/status") as response:
            (model,) = json.load(response)["models"]
        assert model["requests"] >= 464 and model["predicted_s"] > 0 and len(model["components"]) > 1
    finally:
        code, error = stop(server)
    assert code == 0 and "sent again after" in error
