"""A plan served on two devices of this machine's loopback: many clients at once, and a device that is lost."""

import json
import os
import re
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest

from taglio.embedded import digits_data
from taglio.serve.served import SequenceStep, open_model
from tests import stateful
from tests.cluster.engine.devices import Bench, needs_ray, planned, until
from tests.end_to_end.command import refused
from tests.serve.conftest import Server, start, stop
from tests.support import inference

pytestmark = [needs_ray, pytest.mark.whole]


def ask(server: Server, model: str, output: str, feed: dict[str, np.ndarray], **parameters: Any) -> np.ndarray:
    """One output for a feed; of a sequence's step where `parameters` say so. Raises HTTPError for a refusal."""
    asked = urllib.request.Request(f"{server.http}/v2/models/{model}/infer", *inference.request(feed, **parameters))
    with urllib.request.urlopen(asked, timeout=120) as response:
        return inference.answer(response.read(), response.headers)[output].ravel()


def answer(server: Server, image: np.ndarray) -> np.ndarray:
    return ask(server, "digits", "logits", {"image": image})


def test_many_clients_are_answered_on_the_devices_also_while_one_is_lost(
    running: Bench, out: Path, cluster: Path
) -> None:
    plan = planned(out, cluster, "--objective", "throughput")
    assert {each["device"] for each in plan["placements"]} == {"camera", "server"}
    with np.load(digits_data()) as data:
        images = data["image"][:16, None]
    alone = open_model(out, "digits", "1")
    wanted = [alone.run({"image": image})["logits"].ravel() for image in images]
    asked = (f"digits={out}", "--cluster", str(cluster))
    refused(running.command("serve", *asked, "--threads", 1), "--threads is for one machine")
    server = start(*asked, environment=running.environment)
    try:
        refused(running.command("run", out, "--cluster", cluster), "is in use by another taglio")
        with ThreadPoolExecutor(16) as clients:
            found = list(clients.map(lambda image: answer(server, image), np.concatenate([images] * 4)))
            assert all(np.array_equal(each, wanted[index % 16]) for index, each in enumerate(found))
            coming = [clients.submit(answer, server, images[index % 16]) for index in range(400)]
            coming[40].result()
            running.kill("server")
            # Another plan may have other precisions, so its answers are near, not equal.
            assert all(each.result().argmax() == wanted[index % 16].argmax() for index, each in enumerate(coming))
        with urllib.request.urlopen(f"{server.http}/metrics") as response:
            told = response.read().decode()
        answered = re.findall(r"^taglio_requests_total\{.*\} ([\d.]+)$", told, re.MULTILINE)
        assert sum(map(float, answered)) >= 464
        assert "taglio_predicted_seconds{" in told
    finally:
        code, error = stop(server)
    assert code == 0 and "sent again after" in error
    assert running.start("server").json()["name"] == "server"


def test_without_a_plan_every_request_gets_503_with_the_reason_until_the_device_is_back(
    running: Bench, out: Path, cluster: Path
) -> None:
    """The camera may not run what the server runs."""
    planned(out, cluster, "--objective", "throughput", "--keep-off", "camera=/fine*")
    with np.load(digits_data()) as data:
        images = data["image"][:16, None]

    def status(image: np.ndarray) -> tuple[int, str]:
        try:
            answer(server, image)
        except HTTPError as error:
            return error.code, error.read().decode()
        return 200, ""

    server = start(f"digits={out}", "--cluster", str(cluster), environment=running.environment)
    try:
        with ThreadPoolExecutor(12) as clients:
            coming = [clients.submit(status, images[index % 16]) for index in range(400)]
            coming[40].result()
            running.kill("server")
            replies = [each.result() for each in coming]
        assert {code for code, _ in replies} == {200, 503}
        assert all(
            'device \\"server\\" is lost' in text and "cannot run on any device" in text
            for code, text in replies
            if code == 503
        )
        assert running.start("server").json()["name"] == "server"
        until(lambda: status(images[0])[0] == 200, 60.0, "an answer")
    finally:
        code, error = stop(server)
    assert code == 0, error


def test_sequences_keep_their_states_on_the_devices_and_are_run_again_where_one_is_lost(
    running: Bench, with_states: Path, cluster: Path
) -> None:
    """Every answer equals one process bit for bit, also behind the loss of the process with the states."""
    out, steps = with_states, 16
    alone = open_model(out, "stateful", "1")
    inputs = stateful.inputs(3 * steps).reshape(3, steps, 1, stateful.WIDE)
    wanted = [
        [alone.run({"x": x}, SequenceStep(name, start=number == 0))["y"].ravel() for number, x in enumerate(each)]
        for name, each in enumerate(inputs, 1)
    ]
    server = start(f"stateful={out}", "--cluster", str(cluster), environment=running.environment)

    def sequence(name: int) -> list[np.ndarray]:
        found = []
        for number, x in enumerate(inputs[name - 1]):
            place = {"sequence_start": number == 0, "sequence_end": number == steps - 1}
            found.append(ask(server, "stateful", "y", {"x": x}, sequence_id=name, **place))
            if (name, number) == (2, steps // 2):
                for pid in running.named("server", "ray::Host"):
                    os.kill(pid, signal.SIGKILL)
        return found

    try:
        with ThreadPoolExecutor(3) as clients:
            found = list(clients.map(sequence, (1, 2, 3)))
        assert np.array_equal(found, wanted)
        with urllib.request.urlopen(f"{server.http}/v2/models/stateful") as response:
            told = json.load(response)
        assert [[each["name"] for each in told[side]] for side in ("inputs", "outputs")] == [["x"], ["y"]]
        with pytest.raises(HTTPError) as refusal:
            ask(server, "stateful", "y", {"x": inputs[0, 0]})
        assert refusal.value.code == 400 and "give a sequence_id" in refusal.value.read().decode()
        with pytest.raises(HTTPError) as refusal:
            ask(server, "stateful", "y", {"x": inputs[0, 0]}, sequence_id=1)
        assert "has not been started" in refusal.value.read().decode()
    finally:
        code, error = stop(server)
    assert code == 0 and "sent again after" in error
