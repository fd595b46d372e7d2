"""OpenTelemetry spans of requests, sent to a collector by OTLP over HTTP. Does not affect requests."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from taglio.errors import BadOption

_PATH = "/v1/traces"  # where collectors listen (OTLP 1.0)


class Tracing:
    """Sends spans to one collector. If it does not answer, spans are lost, but no request."""

    def __init__(self, url: str) -> None:
        """`url` is the collector's, such as http://127.0.0.1:4318. Raises BadOption for any other kind of address, and
        if OpenTelemetry is not installed."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadOption(f"traces to {url!r}: give the address of an OTLP collector, such as http://127.0.0.1:4318")
        try:
            sdk = importlib.import_module("opentelemetry.sdk.trace")
            export = importlib.import_module("opentelemetry.sdk.trace.export")
            otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            resources = importlib.import_module("opentelemetry.sdk.resources")
            self._trace: Any = importlib.import_module("opentelemetry.trace")
            propagation = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        except ImportError as error:
            raise BadOption(f"traces need {error.name}: pip install 'taglio[tracing]'") from None
        target = url if parts.path.strip("/") else url.rstrip("/") + _PATH
        self._provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": "taglio"}))
        self._provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=target)))
        self._tracer = self._provider.get_tracer("taglio")
        self._context: Any = propagation.TraceContextTextMapPropagator()

    @contextmanager
    def request(self, model: str, version: str, traceparent: str) -> Iterator[None]:
        """The span of one request, within the caller's span if its W3C `traceparent` names one."""
        parent = self._context.extract({"traceparent": traceparent}) if traceparent else None
        attributes = {"model.name": model, "model.version": version}
        with self._tracer.start_as_current_span(
            f"infer {model}", parent, kind=self._trace.SpanKind.SERVER, attributes=attributes, record_exception=False
        ):
            yield

    def close(self) -> None:
        """Send the remaining spans, and end."""
        self._provider.shutdown()
