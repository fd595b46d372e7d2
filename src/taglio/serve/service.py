"""Shared by REST and gRPC: models by name, checking and queueing of requests, readiness. Reads no socket."""

import asyncio
import hmac
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from taglio.artifact import version_of
from taglio.serve.metrics import Metrics
from taglio.serve.queue import Answer, ModelQueue
from taglio.serve.refusals import BadRequest, Overloaded, Unauthenticated, UnknownModel
from taglio.serve.request import EXTENSIONS, NONE, InferRequest, feed_of
from taglio.serve.served import ServedModel
from taglio.serve.tensors import BYTES, Buffer

PLATFORM = "onnx_onnxv1"


@dataclass(frozen=True, slots=True)
class Settings:
    """`request_bytes`: the largest request. `token`: required from clients, "" for none. `patience_s`: how long
    accepted requests may take at shutdown, and how long a client may be silent within a request. `queue`: the most
    waiting requests of a model."""

    request_bytes: int = 64 * 10**6
    token: str = ""
    patience_s: float = 30.0
    queue: int = 64


class InferenceService:
    """All models that are served. `held_bytes` are those of requests in memory."""

    def __init__(self, models: Sequence[ServedModel], settings: Settings) -> None:
        self.settings = settings
        self.held_bytes = 0
        self.metrics = Metrics()
        self.queues = [ModelQueue(model, settings.queue, self.metrics.add(model)) for model in models]
        self._by_name: dict[str, dict[str, ModelQueue]] = {}
        for queue in self.queues:
            self._by_name.setdefault(queue.model.name, {})[queue.model.version] = queue

    def admit(self, authorization: str) -> None:
        """Compare a client's token in constant time. Raises Unauthenticated for a wrong one."""
        if not self.settings.token:
            return
        scheme, _, token = authorization.partition(" ")
        client_token = token if scheme.lower() == "bearer" else ""
        if not hmac.compare_digest(client_token.encode(), self.settings.token.encode()):
            raise Unauthenticated("give the server's token as Authorization: Bearer TOKEN")

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Count a request's bytes while it is answered. Raises Overloaded where all requests together would hold more
        than 16 of the largest."""
        most = 16 * self.settings.request_bytes
        if self.held_bytes + size_bytes > most:
            raise Overloaded(f"requests hold {self.held_bytes:,} of {most:,} bytes: try again later")
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes

    def queue(self, name: str, version: str = "") -> ModelQueue:
        """The queue of the model `name`; without a version of the newest. Raises UnknownModel."""
        versions = self._by_name.get(name, {})
        wanted = version or max(versions, key=int, default="")
        if wanted in versions:
            return versions[wanted]
        served = ", ".join(f"{queue.model.name} {queue.model.version}" for queue in self.queues)
        raise UnknownModel(
            f"no model {name[:80]!r}{f' version {version[:20]!r}' if version else ''}: available are {served}"
        )

    def ready(self, name: str = "", version: str = "") -> bool:
        """Whether a model, or each, answers requests. Raises UnknownModel."""
        return all(queue.ready for queue in ([self.queue(name, version)] if name else self.queues))

    def server(self) -> dict[str, Any]:
        """The protocol's description of the server."""
        return {"name": "taglio", "version": version_of("taglio"), "extensions": EXTENSIONS}

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """The protocol's description of a model. Raises UnknownModel."""
        model = self.queue(name, version).model
        return {
            "name": model.name,
            "versions": sorted(self._by_name[model.name], key=int),
            "platform": PLATFORM,
            "inputs": [asdict(spec) for spec in model.inputs],
            "outputs": [asdict(spec) for spec in model.outputs],
        }

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's configuration in Triton's format, in which its load generator asks for it. Raises UnknownModel."""
        model = self.queue(name, version).model
        inputs, outputs = (
            [
                {
                    "name": spec.name,
                    "data_type": "TYPE_STRING" if spec.datatype == BYTES else f"TYPE_{spec.datatype}",
                    "dims": list(spec.shape),
                }
                for spec in specs
            ]
            for specs in (model.inputs, model.outputs)
        )
        # The sizes of tensors include the batch.
        return {"name": model.name, "platform": PLATFORM, "max_batch_size": 0, "input": inputs, "output": outputs}

    def index(self) -> list[dict[str, str]]:
        """The protocol's list of models."""
        return [
            {
                "name": queue.model.name,
                "version": queue.model.version,
                "state": "READY" if queue.ready else "UNAVAILABLE",
                "reason": "" if queue.ready else "the server is shutting down",
            }
            for queue in self.queues
        ]

    async def infer(
        self, queue: ModelQueue, request: InferRequest, binary: Mapping[str, Buffer], left_s: float | None = None
    ) -> Answer:
        """The outputs that are asked for. `binary` has the elements of inputs that were sent so, `left_s` is the time
        until the client's deadline. Raises BadRequest for what does not fit the model, and the queue's errors.
        Cancelling removes the request from the queue."""
        began = time.perf_counter()
        parameters = request.parameters or NONE
        step = parameters.step
        inputs, outputs = queue.model.needed(step)
        feed = feed_of(inputs, request.inputs, binary, self.settings.request_bytes)
        queue.model.check_rows(feed)
        names = [spec.name for spec in outputs]
        wanted = [output.name for output in request.outputs or ()]
        if unknown := [name for name in wanted if name not in names]:
            raise BadRequest(f"no output {unknown[0][:80]!r}: outputs are {', '.join(names)}")
        timeout_s = parameters.timeout * 1e-6 or None
        limits_s = [limit_s for limit_s in (timeout_s, left_s) if limit_s is not None]
        answer = await queue.answer(feed, min(limits_s, default=None), step)
        self.metrics.answered(queue.model, time.perf_counter() - began)
        return {name: answer[name] for name in wanted or names}

    async def close(self) -> int:
        """Accept no more requests and answer the accepted ones; returns how many were not answered in time."""
        return sum(await asyncio.gather(*(queue.close(self.settings.patience_s) for queue in self.queues)))
