"""The Open Inference Protocol over gRPC. All decisions shared with REST are in service.py."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from taglio.artifact import version_of
from taglio.serve.refusals import BadRequest, Overloaded, Refusal
from taglio.serve.rest import allowed
from taglio.serve.served import ServedModel
from taglio.serve.service import EXTENSIONS, NAME, Service, offered, step_of
from taglio.serve.tensors import BYTES, check_shape, datatype_of, from_bytes, from_json, given_for, to_bytes
from taglio.serve.wire import without_tensors

_LOG = logging.getLogger(__name__)
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
            # A client that reads nothing answers no ping, and its connection is closed.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", int(service.settings.patience_s * 1e3)),
            ("grpc.so_reuseport", 0),
            # By default a message comes in frames of 16 kB, each of which costs both sides time.
            ("grpc.http2.max_frame_size", 2**24 - 1),
        ]
    )
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(
            _guarded(service, name),
            request_deserializer=partial(_parsed, message(f"{name}Request")),
            response_serializer=lambda response: response.SerializeToString(),
        )
        for name in ("ModelInfer", *_SHOWN)
    }
    found.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    return found


def _parsed(kind: type[Message], serialised: bytes) -> tuple[Message, list[memoryview]] | None:
    """A message and the tensors that it holds as bytes. None if it is none: gRPC would tell the client in Python's
    words."""
    try:
        rest, tensors = without_tensors(serialised)
        return kind.FromString(rest), tensors
    except (DecodeError, ValueError):
        return None


def _model_ready(service: Service, asked: Any) -> dict[str, Any]:
    service.queue(asked.name, asked.version)
    return {"ready": service.ready}


# Fields of the answers to all calls but ModelInfer.
_SHOWN: dict[str, Callable[[Service, Any], Mapping[str, Any]]] = {
    "ServerLive": lambda _, __: {"live": True},
    "ServerReady": lambda service, _: {"ready": service.ready},
    "ModelReady": _model_ready,
    "ServerMetadata": lambda _, __: {"name": NAME, "version": version_of("taglio"), "extensions": EXTENSIONS},
    "ModelMetadata": lambda service, asked: service.metadata(asked.name, asked.version),
    "ModelConfig": lambda service, asked: {"config": service.config(asked.name, asked.version)},
    "ModelStatistics": lambda service, asked: service.statistics(asked.name, asked.version),
    "RepositoryIndex": lambda service, asked: {"models": service.index() if service.ready or not asked.ready else []},
}


def _guarded(service: Service, name: str) -> Callable[[Any, Any], Awaitable[Message]]:
    open_to_all = name.endswith(("Live", "Ready"))

    async def answer(
        received: tuple[Any, list[memoryview]] | None, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> Message:
        shown = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not open_to_all and not allowed(service.settings.token, str(shown)):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "give the server's token as authorization: Bearer TOKEN"
            )
        if received is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is no {name}Request")
        request, tensors = received
        try:
            if name == "ModelInfer":
                return await _infer(service, request, tensors, context)
            return message(f"{name}Response")(**_SHOWN[name](service, request))
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


async def _infer(service: Service, request: Any, tensors: Sequence[memoryview], context: Any) -> Message:
    queue = service.queue(request.model_name, request.model_version)
    for tensor in (*request.inputs, *request.outputs):
        offered(tensor.parameters)
    feed = _feed(queue.model, request, tensors, service.settings.request_bytes)
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


def _feed(model: ServedModel, request: Any, raw: Sequence[memoryview], limit_bytes: int) -> dict[str, np.ndarray]:
    specs = {spec.name: spec for spec in model.inputs}
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
