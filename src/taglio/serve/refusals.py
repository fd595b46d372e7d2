"""Why a request gets no answer, and how each protocol says so."""

from taglio.errors import BadData, BadDevice, TaglioError
from taglio.runtimes.session import why_failed

# Exceptions of a run that no inputs explain. The runtimes' own share no useful base class.
_OWN = (AssertionError, AttributeError, LookupError, MemoryError, NameError, OSError, TypeError)


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


class Unauthenticated(Refusal):
    """The client has not sent the server's token."""

    status, code, reason = 401, "UNAUTHENTICATED", "token"


class UnknownModel(Refusal):
    """No model with that name and version is served."""

    status, code, reason = 404, "NOT_FOUND", "unknown model"


class InferenceFailed(Refusal):
    """The runtime could not run a request's inputs."""

    reason = "inference failed"


class ServerFailed(Refusal):
    """The server failed on a request that may be correct."""

    status, code, reason = 500, "INTERNAL", "server failed"


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


def failed(error: Exception, *, on_cluster: bool) -> Refusal:
    """The refusal for an error of a run: the client's fault only if its inputs are. A cluster says so with BadData,
    since there most errors are those of devices."""
    if isinstance(error, BadDevice):
        return Unavailable(why_failed(error))
    if isinstance(error, _OWN) or (on_cluster and not isinstance(error, BadData)):
        return ServerFailed("the server failed on this request: its log says why")
    return InferenceFailed(f"the model cannot run these inputs: {why_failed(error)}")
