"""The Open Inference Protocol over gRPC. All decisions shared with REST are in service.py."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import cache
from importlib.resources import files
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from taglio.artifact import version_of
from taglio.errors import plural
from taglio.serve.refusals import BadRequest, Overloaded, Refusal
from taglio.serve.rest import allowed
from taglio.serve.served import ServedModel
from taglio.serve.service import EXTENSIONS, NAME, Held, Service, offered, step_of
from taglio.serve.tensors import BYTES, check_shape, datatype_of, from_bytes, from_json, given_for, to_buffer
from taglio.serve.wire import with_tensors, without_tensors

_LOG = logging.getLogger(__name__)
_SERVICE = "inference.GRPCInferenceService"
# How long a call waits for its turn to send its message; then it sends without.
_TURN_S = 0.5
# The message field of a tensor that is not sent as raw bytes, by its datatype. FP16 has no such field.
_CONTENTS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{name: f"{name.lower()}_contents" for name in ("BOOL", "INT64", "UINT64", "FP32", "FP64", BYTES)},
}


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    """The protocol's messages in a separate pool: a client in the same process has its own copies."""
    pool = descriptor_pool.DescriptorPool()
    compiled = (files("taglio.serve") / "open_inference.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return pool


@cache
def message(name: str) -> type[Message]:
    """The class of the protocol's message `name`."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"inference.{name}"))


def server(service: Service) -> "grpc.aio.Server":
    """A gRPC server that answers for `service`; the caller binds and starts it."""
    found = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", service.settings.request_bytes),
            ("grpc.max_send_message_length", -1),
            # A client that reads nothing answers no ping, and its connection is closed.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", int(service.settings.patience_s * 1e3)),
            ("grpc.so_reuseport", 0),
            # By default a message comes in frames of 16 kB, each of which costs both sides time.
            ("grpc.http2.max_frame_size", 2**24 - 1),
        ]
    )
    # To a client the calls are unary; here the message of a stream is received when there is room for it.
    handlers: dict[str, Any] = {
        name: grpc.stream_unary_rpc_method_handler(_guarded(service, name)) for name in ("ModelInfer", *_SHOWN)
    }
    found.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    return found


async def _received(service: Service, name: str, context: Any) -> tuple[Any, list[memoryview], Held]:
    """The message of a call, the tensors that it holds as bytes, and its bytes, held until the call ends. Raises
    BadRequest if it is no message, or does not come in time."""
    patience_s = service.settings.patience_s
    async with AsyncExitStack() as turn:
        with suppress(TimeoutError):  # calls that never send hold no memory, and must not keep others out
            async with asyncio.timeout(_TURN_S):
                await turn.enter_async_context(service.receiving)
        try:
            async with asyncio.timeout(patience_s):
                serialised = await context.read()
        except TimeoutError:
            raise BadRequest(f"the message did not come within {patience_s:g} s") from None
    if serialised is grpc.aio.EOF:
        raise BadRequest("the call has no message")
    try:
        rest, tensors = without_tensors(serialised)
        request = message(f"{name}Request").FromString(rest)
    except (DecodeError, ValueError):
        raise BadRequest(f"the message is not a {name}Request") from None
    held = Held(service, len(serialised))
    context.add_done_callback(lambda _: held.hold(0))
    return request, tensors, held


# Fields of the answers to all calls but ModelInfer.
_SHOWN: dict[str, Callable[[Service, Any], Mapping[str, Any]]] = {
    "ServerLive": lambda _, __: {"live": True},
    "ServerReady": lambda service, _: {"ready": service.ready()},
    "ModelReady": lambda service, asked: {"ready": service.ready(asked.name, asked.version)},
    "ServerMetadata": lambda _, __: {"name": NAME, "version": version_of("taglio"), "extensions": EXTENSIONS},
    "ModelMetadata": lambda service, asked: service.metadata(asked.name, asked.version),
    "ModelConfig": lambda service, asked: {"config": service.config(asked.name, asked.version)},
    "ModelStatistics": lambda service, asked: service.statistics(asked.name, asked.version),
    "RepositoryIndex": lambda service, asked: {
        "models": [each for each in service.index() if not asked.ready or each["state"] == "READY"]
    },
}


def _guarded(service: Service, name: str) -> Callable[[Any, Any], Awaitable[bytes]]:
    open_to_all = name.endswith(("Live", "Ready"))

    async def answer(_: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        shown = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not open_to_all and not allowed(service.settings.token, str(shown)):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "give the server's token as authorization: Bearer TOKEN"
            )
        request: Any = None
        try:
            request, tensors, held = await _received(service, name, context)
            if name != "ModelInfer":
                return message(f"{name}Response")(**_SHOWN[name](service, request)).SerializeToString()
            answered = await _infer(service, request, tensors, context)
            held.hold(len(answered))
            return answered
        except Refusal as error:
            model, version = getattr(request, "model_name", ""), getattr(request, "model_version", "")
            service.metrics.refused(model, version, error.reason)
            if isinstance(error, Overloaded):
                context.set_trailing_metadata((("retry-pushback-ms", "1000"),))
            await context.abort(grpc.StatusCode[error.code], str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            _LOG.exception("%s failed", name)
            await context.abort(grpc.StatusCode.INTERNAL, "the server failed; see its log")
        raise AssertionError("abort raises")

    return answer


async def _infer(service: Service, request: Any, tensors: Sequence[memoryview], context: Any) -> bytes:
    queue = service.queue(request.model_name, request.model_version)
    for tensor in (*request.inputs, *request.outputs):
        offered(tensor.parameters)
    feed = _feed(queue.model, request, tensors, service.settings.request_bytes)
    timeout = request.parameters["timeout"].int64_param if "timeout" in request.parameters else 0
    limits = [each for each in (timeout * 1e-6 if timeout > 0 else None, context.time_remaining()) if each is not None]
    wanted = [each.name for each in request.outputs]
    step = step_of({name: _value(parameter) for name, parameter in request.parameters.items()})
    caller = dict(context.invocation_metadata() or ()).get("traceparent", "")
    answer = await service.infer(queue, feed, wanted, min(limits, default=None), caller, step=step)
    return _response(queue.model, request, answer)


def _value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice") or "int64_param")


def _feed(model: ServedModel, request: Any, raw: Sequence[memoryview], limit_bytes: int) -> dict[str, np.ndarray]:
    if raw and len(raw) != len(request.inputs):
        raise BadRequest(f"{len(raw)} raw_input_contents for {plural(len(request.inputs), 'input')}")
    feed: dict[str, np.ndarray] = {}
    for index, each in enumerate(request.inputs):
        spec = given_for(model.inputs, each.name, feed)
        shape = check_shape(spec, each.datatype, list(each.shape), limit_bytes)
        if raw:
            feed[each.name] = from_bytes(spec, shape, raw[index])
            continue
        if spec.datatype not in _CONTENTS:
            raise BadRequest(f"input {each.name}: {spec.datatype} must be sent in raw_input_contents")
        values = list(getattr(each.contents, _CONTENTS[spec.datatype]))
        if spec.datatype == BYTES:
            values = [value.decode(errors="replace") for value in values]
        feed[each.name] = from_json(spec, shape, values)
    return feed


def _response(model: ServedModel, request: Any, answer: Mapping[str, np.ndarray]) -> bytes:
    told = message("ModelInferResponse")(
        model_name=model.name,
        model_version=model.version,
        id=request.id,
        outputs=[
            {"name": name, "datatype": datatype_of(array), "shape": array.shape} for name, array in answer.items()
        ],
    )
    return with_tensors(told.SerializeToString(), list(map(to_buffer, answer.values())))
