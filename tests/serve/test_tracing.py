"""Traces of requests: what a collector gets, and what is said where there is none."""

import http.server
import json
import threading
import urllib.request
from pathlib import Path

import pytest

from taglio.errors import BadOption
from taglio.serve.tracing import Tracing
from tests.serve.conftest import product, start, stop, workspace

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.whole
def test_a_collector_gets_a_span_within_the_callers(tmp_path: Path) -> None:
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    got: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            got.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{collector.server_port}"
        running = start(f"product={workspace(tmp_path, product())}", "--traces", url)
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "content-type": "application/json"}
        request = urllib.request.Request(
            f"{running.http}/v2/models/product/infer", json.dumps(body).encode(), headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        assert stop(running) == (0, "")
        collector.shutdown()
    (span,) = messages.ExportTraceServiceRequest.FromString(got[0]).resource_spans[0].scope_spans[0].spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("infer product", TRACE, SPAN)
    assert {each.key: each.value.string_value for each in span.attributes} == {
        "model.name": "product", "model.version": "1",
    }  # fmt: skip


@pytest.mark.parametrize("url", ["collector", "ftp://collector", "http://"])
def test_an_address_that_is_no_collectors_is_refused(url: str) -> None:
    with pytest.raises(BadOption, match=r"give the address of an OTLP collector, such as http://127\.0\.0\.1:4318"):
        Tracing(url)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(BadOption, match=r"traces need opentelemetry\S*: pip install 'taglio\[tracing\]'"):
        Tracing("http://127.0.0.1:4318")
