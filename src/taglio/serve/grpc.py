"""The Open Inference Protocol over gRPC. All decisions shared with REST are in service.py."""

import logging
from collections.abc import Awaitable, Callable, Mapping
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
from taglio.serve.served import ServedModel
from taglio.serve.service import EXTENSIONS, NAME, InferenceService, offered, step_of
from taglio.serve.tensors import BYTES, check_shape, datatype_of, from_bytes, from_json, given_for, to_buffer

_LOG = logging.getLogger(__name__)
_SERVICE = "inference.GRPCInferenceService"
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


def server(service: InferenceService) -> "grpc.aio.Server":
    """A gRPC server that answers for `service`; the caller binds and starts it."""
    grpc_server = grpc.aio.server(
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
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(_guarded(service, name)) for name in ("ModelInfer", *_SHOWN)
    }
    grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    return grpc_server


# Fields of the answers to all calls but ModelInfer.
_SHOWN: dict[str, Callable[[InferenceService, Any], Mapping[str, Any]]] = {
    "ServerLive": lambda _, __: {"live": True},
    "ServerReady": lambda service, _: {"ready": service.ready()},
    "ModelReady": lambda service, query: {"ready": service.ready(query.name, query.version)},
    "ServerMetadata": lambda _, __: {"name": NAME, "version": version_of("taglio"), "extensions": EXTENSIONS},
    "ModelMetadata": lambda service, query: service.metadata(query.name, query.version),
    "ModelConfig": lambda service, query: {"config": service.config(query.name, query.version)},
    "RepositoryIndex": lambda service, query: {
        "models": [model for model in service.index() if not query.ready or model["state"] == "READY"]
    },
}


def _guarded(service: InferenceService, name: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
    open_to_all = name.endswith(("Live", "Ready"))

    async def answer(serialised: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        request: Any = message(f"{name}Request")()
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        try:
            if not open_to_all:
                service.admit(metadata.get("authorization", ""))
            with service.holding(len(serialised)):
                request.ParseFromString(serialised)
                if name == "ModelInfer":
                    return await _infer(service, request, context.time_remaining())
                return message(f"{name}Response")(**_SHOWN[name](service, request)).SerializeToString()
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is not a {name}Request")
        except Refusal as error:
            model, version = getattr(request, "model_name", ""), getattr(request, "model_version", "")
            service.metrics.refused(model, version, error.reason)
            if isinstance(error, Overloaded):
                context.set_trailing_metadata((("retry-pushback-ms", "1000"),))
            await context.abort(grpc.StatusCode[error.code], str(error))
        except Exception:
            _LOG.exception("%s failed", name)
            await context.abort(grpc.StatusCode.INTERNAL, "the server failed; see its log")
        raise AssertionError("abort raises")

    return answer


async def _infer(service: InferenceService, request: Any, left_s: float | None) -> bytes:
    queue = service.queue(request.model_name, request.model_version)
    for tensor in (*request.inputs, *request.outputs):
        offered(tensor.parameters)
    feed = _feed(queue.model, request, service.settings.request_bytes)
    timeout = request.parameters["timeout"].int64_param if "timeout" in request.parameters else 0
    limits_s = [limit_s for limit_s in (timeout * 1e-6 if timeout > 0 else None, left_s) if limit_s is not None]
    wanted = [output.name for output in request.outputs]
    step = step_of({name: _value(parameter) for name, parameter in request.parameters.items()})
    return _response(queue.model, request, await service.infer(queue, feed, wanted, min(limits_s, default=None), step))


def _value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice") or "int64_param")


def _feed(model: ServedModel, request: Any, limit_bytes: int) -> dict[str, np.ndarray]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadRequest(f"{len(raw)} raw_input_contents for {plural(len(request.inputs), 'input')}")
    feed: dict[str, np.ndarray] = {}
    for index, tensor in enumerate(request.inputs):
        spec = given_for(model.inputs, tensor.name, feed)
        shape = check_shape(spec, tensor.datatype, list(tensor.shape), limit_bytes)
        if raw:
            feed[tensor.name] = from_bytes(spec, shape, raw[index])
            continue
        if spec.datatype not in _CONTENTS:
            raise BadRequest(f"input {tensor.name}: {spec.datatype} must be sent in raw_input_contents")
        values = list(getattr(tensor.contents, _CONTENTS[spec.datatype]))
        if spec.datatype == BYTES:
            values = [value.decode(errors="replace") for value in values]
        feed[tensor.name] = from_json(spec, shape, values)
    return feed


def _response(model: ServedModel, request: Any, answer: Mapping[str, np.ndarray]) -> bytes:
    response = message("ModelInferResponse")(
        model_name=model.name,
        model_version=model.version,
        id=request.id,
        outputs=[
            {"name": name, "datatype": datatype_of(array), "shape": array.shape} for name, array in answer.items()
        ],
        raw_output_contents=[bytes(to_buffer(array)) for array in answer.values()],
    )
    return response.SerializeToString()
