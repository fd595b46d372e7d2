"""The Open Inference Protocol over HTTP, with binary tensors and repository index; metrics.

Binary tensors use Triton's format: a JSON header, whose length is in `Inference-Header-Content-Length`, then the
tensors' bytes in the order of the inputs with `binary_data_size`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taglio.errors import one_line
from taglio.serve.queue import Answer
from taglio.serve.refusals import BadRequest, Refusal, TooLarge
from taglio.serve.request import NONE, InferRequest
from taglio.serve.served import ServedModel
from taglio.serve.service import InferenceService
from taglio.serve.tensors import Buffer, datatype_of, to_buffer, to_json

HEADER_LENGTH = "inference-header-content-length"
_JSON = msgspec.json.Decoder(InferRequest)


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
        ("/v2", "GET", service.server),
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
    size = int(length) if length.isdigit() else most
    if size > most:
        raise TooLarge(f"the request has {size:,} bytes, the limit is {most:,}")
    with service.holding(size):
        body = await _body(request, most, service.settings.patience_s)
        inference, binary = _parsed(request.headers, body)
        idle = queue.idle  # a running request cannot be cancelled
        answering = service.infer(queue, inference, binary)
        answer = await (answering if idle else _unless_left(request, answering))
        return _response(queue.model, inference, answer)


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
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit_bytes:
                    raise TooLarge(f"the request exceeds the limit of {limit_bytes:,} bytes")
                if not message.get("more_body", False):
                    return b"".join(parts)
                patience.reschedule(clock() + silence_s)
    except TimeoutError:
        raise BadRequest(f"the request stopped after {size:,} bytes for {silence_s:g} s") from None


def _parsed(headers: Mapping[str, str], body: bytes) -> tuple[InferRequest, dict[str, Buffer]]:
    """A request, and the elements of its binary inputs, by name."""
    text = headers.get(HEADER_LENGTH, str(len(body)))
    if not (text.isdecimal() and len(text) < 20 and int(text) <= len(body)):
        raise BadRequest(f"{HEADER_LENGTH} is {text[:20]!r}, and the body has {len(body):,} bytes")
    view, at = memoryview(body), int(text)
    try:
        request = _JSON.decode(view[:at])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request's JSON: {one_line(error, 200)}") from None
    binary: dict[str, Buffer] = {}
    for tensor in request.inputs:
        size = (tensor.parameters or NONE).binary_data_size
        if size is not None:
            if size > len(body) - at:
                left = len(body) - at
                raise BadRequest(f"input {tensor.name[:80]}: binary_data_size is {size}, but {left:,} bytes are left")
            binary[tensor.name] = view[at : at + size]
            at += size
    if at != len(body):
        raise BadRequest(f"{len(body) - at:,} bytes after the last binary input")
    return request, binary


def _response(model: ServedModel, request: InferRequest, answer: Answer) -> Response:
    """The JSON object of an answer, and the bytes of its binary outputs."""
    everything = (request.parameters or NONE).binary_data_output
    choices = {output.name: (output.parameters or NONE).binary_data for output in request.outputs or ()}
    outputs: list[dict[str, Any]] = []
    blobs: list[Buffer] = []
    for name, array in answer.items():
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        choice = choices.get(name)
        if everything if choice is None else choice:
            blobs.append(to_buffer(array))
            output["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            output["data"] = to_json(name, array)
        outputs.append(output)
    body: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "outputs": outputs}
    if request.id is not None:
        body["id"] = request.id
    head = msgspec.json.encode(body)
    if not blobs:
        return Response(head, media_type="application/json")
    length = {HEADER_LENGTH: str(len(head))}
    return Response(b"".join((head, *blobs)), headers=length, media_type="application/octet-stream")
