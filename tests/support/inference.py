"""Requests and answers of the Open Inference Protocol with binary tensors, as bytes. Opens no connection."""

import json
from collections.abc import Mapping
from email.message import Message
from typing import Any

import numpy as np

from taglio.serve.tensors import NUMPY, datatype_of

HEADER = "Inference-Header-Content-Length"


def request(feed: Mapping[str, np.ndarray], **parameters: Any) -> tuple[bytes, dict[str, str]]:
    """The body of a request for all outputs, and its headers. Answers are binary too, unless `parameters` say not."""
    inputs = [
        {
            "name": name, "datatype": datatype_of(array), "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in feed.items()
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}).encode()
    return b"".join((head, *(array.tobytes() for array in feed.values()))), {HEADER: str(len(head))}


def answer(body: bytes, headers: Mapping[str, str] | Message) -> dict[str, np.ndarray]:
    """The outputs of an answer."""
    at = int(headers[HEADER])
    outputs = {}
    for output in json.loads(body[:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        flat = np.frombuffer(body[at : at + size], NUMPY[output["datatype"]])
        outputs[output["name"]] = flat.reshape(output["shape"])
        at += size
    return outputs
