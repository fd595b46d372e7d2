"""The Open Inference Protocol over HTTP, with binary tensors, repository index and statistics; metrics; a status page.

Binary tensors use Triton's format: a JSON header, whose length is in `Inference-Header-Content-Length`, then the
tensors' bytes in the order of the inputs with `binary_data_size`.
"""

import asyncio
import base64
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from statistics import median
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from taglio.artifact import version_of
from taglio.errors import one_line
from taglio.serve.http import BODY, Body
from taglio.serve.lingering import lingering
from taglio.serve.refusals import BadRequest, Refusal, TooLarge
from taglio.serve.served import ServedModel
from taglio.serve.service import EXTENSIONS, NAME, Held, Service, offered, step_of
from taglio.serve.tensors import check_shape, datatype_of, from_bytes, from_json, given_for, to_bytes, to_json

_LOG = logging.getLogger(__name__)
HEADER_LENGTH = "inference-header-content-length"
# What is asked for often is not looked up in Starlette's routes, which would take a tenth of a short request's time.
_INFER = re.compile("/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
# A smaller answer is copied into one part, which takes less time than parts do.
_SMALL_BYTES = 16384
Handler = Callable[[Request], Awaitable[ASGIApp]]


def application(service: Service) -> ASGIApp:
    """The ASGI application of a service."""
    page = (files("taglio.serve") / "status.html").read_text(encoding="utf-8")

    infer = _guarded(service, partial(_infer, service))

    def ready(name: str = "", version: str = "") -> Response:
        model = {"name": service.queue(name, version).model.name} if name else {}
        found = service.ready(name, version)
        return JSONResponse({**model, "ready": found}, 200 if found else 503)

    def metrics() -> Response:
        return Response(service.metrics.text(service.queues), media_type="text/plain; version=0.0.4; charset=utf-8")

    # Path, verb, and what it shows of the model in the path.
    table: list[tuple[str, str, Callable[..., Any]]] = [
        ("/v2", "GET", lambda: {"name": NAME, "version": version_of("taglio"), "extensions": EXTENSIONS}),
        ("/v2/health/live", "GET", lambda: {"live": True}),
        ("/v2/health/ready", "GET", ready),
        ("/v2/repository/index", "POST", service.index),
        ("/v2/models/stats", "GET", service.statistics),
        ("/metrics", "GET", metrics),
        ("/", "GET", lambda: HTMLResponse(page)),
        ("/status", "GET", lambda: _status(service)),
    ]
    paths = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    views = ("", service.metadata), ("/config", service.config), ("/ready", ready), ("/stats", service.statistics)
    table += [(f"{path}{view}", "GET", what) for path in paths for view, what in views]
    routes = []
    for path, verb, what in table:  # health is shown to everybody
        handler = _guarded(service, _shown(what), open_to_all=path.endswith(("/live", "/ready")))
        routes.append(Route(path, handler, methods=[verb]))
    routed = Starlette(routes=routes, exception_handlers={404: _no_path, 405: _no_path})

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        asked = _INFER.fullmatch(scope["path"]) if scope["method"] == "POST" else None
        if asked is None:
            await routed(scope, receive, send)
            return
        scope["path_params"] = asked.groupdict("")
        found = await infer(Request(scope, receive, send))
        await found(scope, receive, send)

    # Of a request that is a little too large the rest is read, so that its client learns why.
    return lingering(answer, 2 * service.settings.request_bytes, service.settings.patience_s)


def _shown(what: Callable[..., Any]) -> Handler:
    async def answer(request: Request) -> Response:
        found = what(**request.path_params)
        return found if isinstance(found, Response) else JSONResponse(found)

    return answer


def _guarded(service: Service, handler: Handler, *, open_to_all: bool = False) -> Handler:
    async def answer(request: Request) -> ASGIApp:
        if not open_to_all and not allowed(service.settings.token, request.headers.get("authorization", "")):
            return _error(401, "give the server's token as Authorization: Bearer TOKEN")
        try:
            return await handler(request)
        except Refusal as error:
            service.metrics.refused(**{"name": "", "version": "", **request.path_params}, reason=error.reason)
            response = _error(error.status, str(error))
            if error.status in (429, 503):
                response.headers["Retry-After"] = "1"
            return response
        except (ClientDisconnect, ConnectionResetError):
            return Response(status_code=499)
        except Exception:
            _LOG.exception("%s failed", request.url.path)
            return _error(500, "the server failed; see its log")

    return answer


def allowed(token: str, authorization: str) -> bool:
    """Whether a client sent the right token, as a bearer or, as browsers do, as a password with any user name; compared
    in constant time."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
    known = scheme.lower() in ("basic", "bearer")
    return not token or (hmac.compare_digest(token.encode(), given.encode()) and known)


def _error(code: int, text: str) -> Response:
    response = JSONResponse({"error": text}, status_code=code)
    if code == 401:  # for the status page a browser then asks
        response.headers["WWW-Authenticate"] = 'Basic realm="the server\'s token as password", charset="UTF-8"'
    return response


async def _no_path(request: Request, _: Exception) -> Response:
    return _error(404, f"unknown path {request.method} {request.url.path[:200]}: GET / names the models")


def _status(service: Service) -> dict[str, Any]:
    rows = []
    for queue in service.queues:
        recent = sorted(service.metrics.recent_s(queue.model))
        counts = service.metrics.statistics(queue.model)
        rows.append(
            {
                "model": queue.model.name,
                "version": queue.model.version,
                "components": [
                    {"name": piece.name, "device": piece.device, "bytes": piece.size_bytes, "blocks": len(piece.blocks)}
                    for piece in queue.model.executor.manifest.pieces
                ],
                "runtime": queue.model.executor.manifest.pieces[0].runtime,
                "predicted_s": queue.model.predicted_s,
                "measured_s": median(recent) if recent else None,
                "p95_s": recent[int(0.95 * (len(recent) - 1))] if recent else None,
                "requests": counts["inference_count"],
                "failures": counts["inference_stats"]["fail"]["count"],
                "waiting": len(queue),
                "alone": queue.alone,
                "recent_s": service.metrics.recent_s(queue.model)[-100:],
            }
        )
    return {"ready": service.ready(), "since_s": service.metrics.started_s, "models": rows}


async def _infer(service: Service, request: Request) -> ASGIApp:
    queue = service.queue(**request.path_params)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise BadRequest("a compressed request is not offered: leave Content-Encoding out")
    most, length = service.settings.request_bytes, request.headers.get("content-length", "")
    held = Held(service, min(int(length), most) if length.isdigit() else most)
    try:
        body = await _body(request, most, service.settings.patience_s)
        header, rest = _header(request.headers, body)
        feed = _feed(queue.model, header, rest, most)
        wanted, binary = _wanted(header)
        step, caller = step_of(_parameters(header)), request.headers.get("traceparent", "")
        waits = partial(_gone, request)
        answer = await service.infer(queue, feed, list(wanted), _timeout_s(header), caller, step=step, gone=waits)
        return _Answer(*_response(queue.model, header, answer, wanted, binary), held)
    except BaseException:
        held.hold(0)
        raise


class _Answer:
    """An answer in parts, held until the client has read most of it: meanwhile its connection's next request waits."""

    def __init__(self, head: bytes, blobs: Sequence[bytes], held: Held) -> None:
        size = sum(map(len, blobs))
        # Behind a large part is an empty one, which is sent when there is room.
        self._parts = [head, *blobs, b""] if size > _SMALL_BYTES else [b"".join((head, *blobs))]
        self._held = held
        kind = "octet-stream" if blobs else "json"
        fields = {"content-type": f"application/{kind}", "content-length": len(head) + size}
        if blobs:
            fields[HEADER_LENGTH] = len(head)
        self._headers = [(name.encode(), str(value).encode()) for name, value in fields.items()]
        held.hold(size)

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            for part in self._parts[:-1]:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": self._parts[-1]})
        finally:
            self._held.hold(0)


async def _gone(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, limit_bytes: int, silence_s: float) -> bytes | memoryview:
    """The request's body. Raises TooLarge before buffering more than `limit_bytes`, BadRequest for a client that stops
    sending for `silence_s`."""
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise TooLarge(f"the request has {int(announced):,} bytes, the limit is {limit_bytes:,}")
    body: Body | None = request.scope.get("extensions", {}).get(BODY)
    if body is not None:
        try:
            return await body.read(silence_s)
        except TimeoutError as error:
            raise BadRequest(f"the request {error} for {silence_s:g} s") from None
    parts: list[bytes] = []
    size = 0
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(silence_s) as patience:
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise TooLarge(f"the request exceeds the limit of {limit_bytes:,} bytes")
                if part:
                    parts.append(part)
                patience.reschedule(clock() + silence_s)
    except TimeoutError:
        raise BadRequest(f"the request stopped after {size:,} bytes for {silence_s:g} s") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _header(headers: Mapping[str, str], body: bytes | memoryview) -> tuple[dict[str, Any], memoryview]:
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


def _feed(model: ServedModel, header: Mapping[str, Any], rest: memoryview, limit_bytes: int) -> dict[str, np.ndarray]:
    given = header.get("inputs")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise BadRequest("the request must have a list of inputs")
    feed: dict[str, np.ndarray] = {}
    at = 0
    for each in given:
        spec = given_for(model.inputs, each.get("name"), feed)
        shape = check_shape(spec, each.get("datatype"), each.get("shape"), limit_bytes)
        size = _parameters(each).get("binary_data_size")
        if size is None:
            feed[spec.name] = from_json(spec, shape, each.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(rest) - at:
            raise BadRequest(f"input {spec.name}: binary_data_size is {size!r}, but {len(rest) - at:,} bytes are left")
        feed[spec.name] = from_bytes(spec, shape, rest[at : at + size])
        at += size
    if at != len(rest):
        raise BadRequest(f"{len(rest) - at:,} bytes after the last binary input")
    return feed


def _wanted(header: Mapping[str, Any]) -> tuple[dict[str, bool], bool]:
    """Whether each requested output is to be binary, by name; and the default if no output is named."""
    everything = _parameters(header).get("binary_data_output") is True
    asked = header.get("outputs") or []
    named = isinstance(asked, list) and all(isinstance(each, dict) for each in asked)
    if not named or not all(isinstance(each.get("name"), str) for each in asked):
        raise BadRequest("outputs must be a list of objects with a name")
    return {each["name"]: _parameters(each).get("binary_data", everything) is True for each in asked}, everything


def _parameters(each: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = each.get("parameters")
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
) -> tuple[bytes, list[bytes]]:
    """The JSON object of an answer, and the bytes of its binary outputs."""
    outputs: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for name, array in answer.items():
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if wanted.get(name, binary):
            blobs.append(to_bytes(array))
            output["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            output["data"] = to_json(name, array)
        outputs.append(output)
    body: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "outputs": outputs}
    if isinstance(header.get("id"), str):
        body["id"] = header["id"]
    return msgspec.json.encode(body), blobs
