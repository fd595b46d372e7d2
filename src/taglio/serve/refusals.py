"""Why a request gets no answer, and how each protocol says so."""

import re

from taglio.errors import TaglioError, one_line
from taglio.runtimes import onnxruntime_words, openvino_words

_SOURCE_FILE = re.compile(r"\.(?:cc|cpp|cu|h|hpp|py)\b")


def shown(error: Exception) -> str:
    """What a client is told of a runtime's error: one line without source files and checks."""
    text = openvino_words.without_sources(onnxruntime_words.without_sources(error))
    return "the server's log says why" if _SOURCE_FILE.search(text) else one_line(text, 300)


class Refusal(TaglioError):
    """A request without an answer; the message is sent to the client. `status` is HTTP's, `code` gRPC's, `reason` the
    label in metrics."""

    status = 400
    code = "INVALID_ARGUMENT"
    reason = "bad request"


class BadRequest(Refusal):
    """A request that does not fit the protocol or the model."""


class TooLarge(BadRequest):
    """A request exceeds the server's size limit."""

    status = 413


class UnknownModel(Refusal):
    """No model with that name and version is served."""

    status, code, reason = 404, "NOT_FOUND", "unknown model"


class InferenceFailed(Refusal):
    """The runtime could not run a request's inputs."""

    reason = "inference failed"


class Overloaded(Refusal):
    """The queue is full; the client should try again later."""

    status, code, reason = 429, "RESOURCE_EXHAUSTED", "overloaded"


class Draining(Refusal):
    """The server is shutting down and takes no more requests."""

    status, code, reason = 503, "UNAVAILABLE", "draining"


class Unavailable(Refusal):
    """The cluster has lost the devices, or the state, that a request needs."""

    status, code, reason = 503, "UNAVAILABLE", "device lost"


class TooLate(Refusal):
    """A request's deadline passed before it ran."""

    status, code, reason = 504, "DEADLINE_EXCEEDED", "deadline"
