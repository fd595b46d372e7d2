"""The Open Inference Protocol over gRPC. All decisions shared with REST are in service.py."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import grpc
import msgspec
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from taglio.errors import one_line, plural
from taglio.serve.refusals import BadRequest, Overloaded, Refusal
from taglio.serve.request import InferRequest, InputTensor, OutputTensor, Parameters
from taglio.serve.service import InferenceService
from taglio.serve.tensors import BYTES, Buffer, datatype_of, to_buffer

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
    "ServerMetadata": lambda service, _: service.server(),
    "ModelMetadata": lambda service, query: service.metadata(query.name, query.version),
    "ModelConfig": lambda service, query: {"config": service.config(query.name, query.version)},
    "RepositoryIndex": lambda service, query: {
        "models": [model for model in service.index() if not query.ready or model["state"] == "READY"]
    },
}


def _guarded(service: InferenceService, name: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
    needs_token = service.settings.token and not name.endswith(("Live", "Ready"))
    request_class, response_class = message(f"{name}Request"), message(f"{name}Response")

    async def answer(serialised: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        request: Any = request_class()
        try:
            if needs_token:
                service.admit(str(dict(context.invocation_metadata() or ()).get("authorization", "")))
            with service.holding(len(serialised)):
                request.ParseFromString(serialised)
                if name == "ModelInfer":
                    return await _infer(service, request, context.time_remaining())
                return response_class(**_SHOWN[name](service, request)).SerializeToString()
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


async def _infer(service: InferenceService, query: Any, left_s: float | None) -> bytes:
    queue = service.queue(query.model_name, query.model_version)
    answer = await service.infer(queue, *_converted(query), left_s)
    response = message("ModelInferResponse")(
        model_name=queue.model.name,
        model_version=queue.model.version,
        id=query.id,
        outputs=[
            {"name": name, "datatype": datatype_of(array), "shape": array.shape} for name, array in answer.items()
        ],
        raw_output_contents=[bytes(to_buffer(array)) for array in answer.values()],
    )
    return response.SerializeToString()


def _converted(query: Any) -> tuple[InferRequest, dict[str, Buffer]]:
    """The request in a ModelInferRequest, and the elements of its binary inputs, by name."""
    raw = query.raw_input_contents
    if raw and len(raw) != len(query.inputs):
        raise BadRequest(f"{len(raw)} raw_input_contents for {plural(len(query.inputs), 'input')}")
    binary: dict[str, Buffer] = {tensor.name: elements for tensor, elements in zip(query.inputs, raw, strict=False)}
    inputs = []
    for tensor in query.inputs:
        data = None if raw else list(getattr(tensor.contents, _CONTENTS.get(tensor.datatype, "bytes_contents")))
        if data and tensor.datatype == BYTES:
            binary[tensor.name], data = to_buffer(np.array(data, object)), None
        inputs.append(
            InputTensor(tensor.name, tensor.datatype, list(tensor.shape), _parameters(tensor.parameters), data)
        )
    outputs = [OutputTensor(output.name, _parameters(output.parameters)) for output in query.outputs]
    return InferRequest(inputs, query.id, _parameters(query.parameters), outputs), binary


def _parameters(parameters: Mapping[str, Any]) -> Parameters | None:
    """A message's parameters, if it has any. Raises BadRequest as REST does."""
    if not parameters:
        return None
    values = {
        name: getattr(parameter, parameter.WhichOneof("parameter_choice") or "int64_param")
        for name, parameter in parameters.items()
    }
    try:
        return msgspec.convert(values, Parameters)
    except msgspec.ValidationError as error:
        raise BadRequest(f"parameters: {one_line(error, 200)}") from None
