"""The Open Inference Protocol over gRPC. All decisions shared with REST are in service.py."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from taglio.artifact import version_of
from taglio.serve.refusals import BadRequest, Overloaded, Refusal
from taglio.serve.rest import allowed
from taglio.serve.served import ServedModel
from taglio.serve.service import EXTENSIONS, NAME, Service, step_of
from taglio.serve.tensors import BYTES, check_shape, datatype_of, from_bytes, from_json, given_for, to_bytes

_SERVICE = "inference.GRPCInferenceService"
# The message field of a tensor that is not sent as raw bytes, by its datatype. FP16 has no such field.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
Call = Callable[[Service, Any, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[Message]]


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
    limit = service.settings.request_bytes
    found = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
    )
    calls: dict[str, Call] = {
        "ServerLive": _live,
        "ServerReady": _ready,
        "ModelReady": _model_ready,
        "ServerMetadata": _server_metadata,
        "ModelMetadata": _model_metadata,
        "ModelInfer": _infer,
        "RepositoryIndex": _index,
    }
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(
            _guarded(service, call, open_to_all=name.endswith(("Live", "Ready"))),
            request_deserializer=message(f"{name}Request").FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )
        for name, call in calls.items()
    }
    found.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    return found


def _guarded(service: Service, call: Call, *, open_to_all: bool) -> Callable[[Any, Any], Awaitable[Message]]:
    async def answer(request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Message:
        shown = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not open_to_all and not allowed(service.settings.token, str(shown)):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "give the server's token as authorization: Bearer TOKEN"
            )
        try:
            return await call(service, request, context)
        except Refusal as error:
            name, version = getattr(request, "model_name", ""), getattr(request, "model_version", "")
            service.metrics.refused(name, version, error.reason)
            if isinstance(error, Overloaded):
                context.set_trailing_metadata((("retry-pushback-ms", "1000"),))
            await context.abort(grpc.StatusCode[error.code], str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            await context.abort(grpc.StatusCode.INTERNAL, "the server failed; see its log")
        raise AssertionError("abort raises")

    return answer


async def _live(_: Service, __: Any, ___: Any) -> Message:
    return message("ServerLiveResponse")(live=True)


async def _ready(service: Service, _: Any, __: Any) -> Message:
    return message("ServerReadyResponse")(ready=service.ready)


async def _model_ready(service: Service, request: Any, _: Any) -> Message:
    service.queue(request.name, request.version)
    return message("ModelReadyResponse")(ready=service.ready)


async def _server_metadata(_: Service, __: Any, ___: Any) -> Message:
    return message("ServerMetadataResponse")(name=NAME, version=version_of("taglio"), extensions=EXTENSIONS)


async def _model_metadata(service: Service, request: Any, _: Any) -> Message:
    return message("ModelMetadataResponse")(**service.metadata(request.name, request.version))


async def _index(service: Service, request: Any, _: Any) -> Message:
    rows = service.index() if service.ready or not request.ready else []
    return message("RepositoryIndexResponse")(models=rows)


async def _infer(service: Service, request: Any, context: Any) -> Message:
    queue = service.queue(request.model_name, request.model_version)
    feed = _feed(queue.model, request, service.settings.request_bytes)
    timeout = request.parameters["timeout"].int64_param if "timeout" in request.parameters else 0
    left = context.time_remaining()
    limits = [each for each in (timeout * 1e-6 if timeout > 0 else None, left) if each is not None]
    wanted = [each.name for each in request.outputs]
    step = step_of({name: _value(parameter) for name, parameter in request.parameters.items()})
    caller = dict(context.invocation_metadata() or ()).get("traceparent", "")
    answer = await service.infer(queue, feed, wanted, min(limits, default=None), caller, step=step)
    return _response(queue.model, request, answer)


def _value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice") or "int64_param")


def _feed(model: ServedModel, request: Any, limit_bytes: int) -> dict[str, np.ndarray]:
    specs = {spec.name: spec for spec in model.inputs}
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise BadRequest(f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs")
    feed: dict[str, np.ndarray] = {}
    for index, each in enumerate(request.inputs):
        spec = given_for(specs, each.name, feed)
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


def _response(model: ServedModel, request: Any, answer: Mapping[str, np.ndarray]) -> Message:
    return message("ModelInferResponse")(
        model_name=model.name,
        model_version=model.version,
        id=request.id,
        outputs=[
            {"name": name, "datatype": datatype_of(array), "shape": array.shape} for name, array in answer.items()
        ],
        raw_output_contents=[to_bytes(array) for array in answer.values()],
    )
