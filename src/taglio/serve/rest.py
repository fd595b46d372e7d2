"""The Open Inference Protocol over HTTP, with binary tensors and repository index; metrics.

Binary tensors use Triton's format: a JSON header, whose length is in `Inference-Header-Content-Length`, then the
tensors' bytes in the order of the inputs with `binary_data_size`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taglio.artifact import version_of
from taglio.errors import one_line
from taglio.serve.queue import Answer
from taglio.serve.refusals import BadRequest, Refusal, TooLarge
from taglio.serve.served import ServedModel
from taglio.serve.service import EXTENSIONS, NAME, InferenceService, offered, step_of
from taglio.serve.tensors import check_shape, datatype_of, from_bytes, from_json, given_for, to_buffer, to_json

HEADER_LENGTH = "inference-header-content-length"


def application(service: InferenceService) -> Starlette:
    """The ASGI application of a service."""

    def ready(name: str = "", version: str = "") -> Response:
        model = {"name": service.queue(name, version).model.name} if name else {}
        is_ready = service.ready(name, version)
        return JSONResponse({**model, "ready": is_ready}, 200 if is_ready else 503)

    def metrics() -> Response:
        return Response(service.metrics.text(service.queues), media_type="text/plain; version=0.0.4; charset=utf-8")

    # Path, verb, and what it shows of the model in the path.
    table: list[tuple[str, str, Callable[..., Any]]] = [
        ("/v2", "GET", lambda: {"name": NAME, "version": version_of("taglio"), "extensions": EXTENSIONS}),
        ("/v2/health/live", "GET", lambda: {"live": True}),
        ("/v2/health/ready", "GET", ready),
        ("/v2/repository/index", "POST", service.index),
        ("/metrics", "GET", metrics),
    ]
    paths = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    views = ("", service.metadata), ("/config", service.config), ("/ready", ready)
    table += [(f"{path}{view}", "GET", show) for path in paths for view, show in views]
    routes = [Route(f"{path}/infer", partial(_infer, service), methods=["POST"]) for path in paths]
    routes += [Route(path, partial(_view, service, show), methods=[verb]) for path, verb, show in table]
    handlers: dict[Any, Any] = {
        Refusal: partial(_refused, service),
        ClientDisconnect: _left,
        404: _no_path,
        405: _no_path,
        500: _failed,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


async def _view(service: InferenceService, show: Callable[..., Any], request: Request) -> Response:
    if not request.url.path.endswith(("/live", "/ready")):  # health is shown to everybody
        service.admit(request.headers.get("authorization", ""))
    shown = show(**request.path_params)
    return shown if isinstance(shown, Response) else JSONResponse(shown)


async def _refused(service: InferenceService, request: Request, error: Refusal) -> Response:
    service.metrics.refused(**{"name": "", "version": "", **request.path_params}, reason=error.reason)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}
    return JSONResponse({"error": str(error)}, error.status, headers.get(error.status))


async def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


async def _no_path(request: Request, _: Exception) -> Response:
    text = f"unknown path {request.method} {request.url.path[:200]}: POST /v2/repository/index names the models"
    return JSONResponse({"error": text}, 404)


async def _failed(_: Request, __: Exception) -> Response:
    return JSONResponse({"error": "the server failed; see its log"}, 500)


async def _infer(service: InferenceService, request: Request) -> Response:
    service.admit(request.headers.get("authorization", ""))
    queue = service.queue(**request.path_params)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise BadRequest("a compressed request is not offered: leave Content-Encoding out")
    most, length = service.settings.request_bytes, request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise TooLarge(f"the request has {int(length):,} bytes, the limit is {most:,}")
    with service.holding(int(length) if length.isdigit() else most):
        header, tail = _header(request.headers, await _body(request, most, service.settings.patience_s))
        feed = _feed(queue.model, header, tail, most)
        wanted, binary = _wanted(header)
        idle = queue.idle  # a running request cannot be cancelled
        answering = service.infer(queue, feed, list(wanted), _timeout_s(header), step_of(_parameters(header)))
        answer = await (answering if idle else _unless_left(request, answering))
        return _response(queue.model, header, answer, wanted, binary)


async def _unless_left(request: Request, answering: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer. Cancels it, and raises ClientDisconnect, if the client closes its connection before."""
    answer, leaving = asyncio.ensure_future(answering), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, limit_bytes: int, silence_s: float) -> bytes:
    """The request's body. Raises TooLarge before buffering more than `limit_bytes`, BadRequest for a client that stops
    sending for `silence_s`."""
    parts: list[bytes] = []
    size = 0
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(silence_s) as patience:
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise TooLarge(f"the request exceeds the limit of {limit_bytes:,} bytes")
                parts.append(part)
                patience.reschedule(clock() + silence_s)
    except TimeoutError:
        raise BadRequest(f"the request stopped after {size:,} bytes for {silence_s:g} s") from None
    return b"".join(parts)


def _header(headers: Mapping[str, str], body: bytes) -> tuple[dict[str, Any], memoryview]:
    """The JSON object of a request, and the bytes after it."""
    text = headers.get(HEADER_LENGTH)
    if text is not None and not (text.isdecimal() and len(text) < 20 and int(text) <= len(body)):
        raise BadRequest(f"{HEADER_LENGTH} is {text[:20]!r}, and the body has {len(body):,} bytes")
    length = int(text) if text is not None else len(body)
    view = memoryview(body)
    try:
        header = msgspec.json.decode(view[:length])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request is not valid JSON: {one_line(error, 120)}") from None
    if not isinstance(header, dict):
        raise BadRequest("the request must be a JSON object with inputs")
    return header, view[length:]


def _feed(model: ServedModel, header: Mapping[str, Any], tail: memoryview, limit_bytes: int) -> dict[str, np.ndarray]:
    tensors = header.get("inputs")
    if not isinstance(tensors, list) or not all(isinstance(tensor, dict) for tensor in tensors):
        raise BadRequest("the request must have a list of inputs")
    feed: dict[str, np.ndarray] = {}
    at = 0
    for tensor in tensors:
        spec = given_for(model.inputs, tensor.get("name"), feed)
        shape = check_shape(spec, tensor.get("datatype"), tensor.get("shape"), limit_bytes)
        size = _parameters(tensor).get("binary_data_size")
        if size is None:
            feed[spec.name] = from_json(spec, shape, tensor.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(tail) - at:
            raise BadRequest(f"input {spec.name}: binary_data_size is {size!r}, but {len(tail) - at:,} bytes are left")
        feed[spec.name] = from_bytes(spec, shape, tail[at : at + size])
        at += size
    if at != len(tail):
        raise BadRequest(f"{len(tail) - at:,} bytes after the last binary input")
    return feed


def _wanted(header: Mapping[str, Any]) -> tuple[dict[str, bool], bool]:
    """Whether each requested output is to be binary, by name; and the default if no output is named."""
    everything = _parameters(header).get("binary_data_output") is True
    outputs = header.get("outputs") or []
    named = isinstance(outputs, list) and all(isinstance(output, dict) for output in outputs)
    if not named or not all(isinstance(output.get("name"), str) for output in outputs):
        raise BadRequest("outputs must be a list of objects with a name")
    binary = {output["name"]: _parameters(output).get("binary_data", everything) is True for output in outputs}
    return binary, everything


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = entry.get("parameters")
    return offered(parameters) if isinstance(parameters, dict) else {}


def _timeout_s(header: Mapping[str, Any]) -> float | None:
    """The request's `timeout` in seconds (sent in microseconds, as in Triton); None for 0 or no timeout."""
    timeout = _parameters(header).get("timeout", 0)
    if type(timeout) is not int or not 0 <= timeout < 2**63:
        raise BadRequest(f"timeout is {str(timeout)[:40]}: give microseconds")
    return timeout * 1e-6 if timeout else None


def _response(
    model: ServedModel,
    header: Mapping[str, Any],
    answer: Mapping[str, np.ndarray],
    wanted: Mapping[str, bool],
    binary: bool,
) -> Response:
    """The JSON object of an answer, and the bytes of its binary outputs."""
    outputs: list[dict[str, Any]] = []
    blobs: list[bytes | memoryview] = []
    for name, array in answer.items():
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if wanted.get(name, binary):
            blobs.append(to_buffer(array))
            output["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            output["data"] = to_json(name, array)
        outputs.append(output)
    body: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "outputs": outputs}
    if isinstance(header.get("id"), str):
        body["id"] = header["id"]
    head = msgspec.json.encode(body)
    if not blobs:
        return Response(head, media_type="application/json")
    length = {HEADER_LENGTH: str(len(head))}
    return Response(b"".join((head, *blobs)), headers=length, media_type="application/octet-stream")
