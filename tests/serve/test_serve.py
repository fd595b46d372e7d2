"""A server process, asked by the ecosystem's clients and by hand."""

import http.client
import json
import select
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from taglio.serve.grpc import message
from taglio.serve.refusals import Overloaded
from taglio.serve.service import InferenceService, Settings
from tests.built import SCALE, product, workspace
from tests.end_to_end.command import refused, taglio
from tests.serve.conftest import Server, start, stop
from tests.serve.test_served import halves
from tests.support import inference
from tests.support.sockets import listening

ROWS = np.array([[1, -2, 3, 4], [9, 1, 1, 1]], np.float32)


def ask(server: Server, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Status and body of one request; JSON where it is."""
    request = urllib.request.Request(server.http + path, body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            code, raw = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            code, raw = error.code, error.read()
    try:
        return code, json.loads(raw)
    except ValueError:
        return code, raw


def request(**changes: Any) -> dict[str, Any]:
    given = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": ROWS.tolist(), **changes}
    return {"inputs": [given]}


def infer(server: Server, body: object) -> tuple[int, Any]:
    return ask(server, "/v2/models/product/infer", json.dumps(body).encode())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient_reads_metadata_and_infers(server: Server, protocol: str) -> None:
    client_module = pytest.importorskip(f"tritonclient.{protocol}", reason="tritonclient is not installed")
    address = server.http.removeprefix("http://") if protocol == "http" else server.grpc
    client = client_module.InferenceServerClient(address)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("product", "1")
    metadata = client.get_model_metadata("product")
    described = metadata["inputs"][0] if protocol == "http" else metadata.inputs[0]
    shape = described["shape"] if protocol == "http" else list(described.shape)
    assert shape == [-1, 4]
    given = client_module.InferInput("x", [2, 4], "FP32")
    given.set_data_from_numpy(ROWS)
    asked = [client_module.InferRequestedOutput("y"), client_module.InferRequestedOutput("index")]
    answer = client.infer("product", [given], outputs=asked, request_id="7")
    assert np.array_equal(answer.as_numpy("y"), ROWS * SCALE)
    assert answer.as_numpy("index").tolist() == (ROWS * SCALE).argmax(axis=1).tolist()
    told = answer.get_response()
    assert (told["id"] if protocol == "http" else told.id) == "7"
    options = {"as_json": True} if protocol == "grpc" else {}
    config = client.get_model_config("product", **options)
    config = config.get("config", config)
    assert config["input"][0]["data_type"] == "TYPE_FP32" and config["output"][1]["data_type"] == "TYPE_INT64"
    index = client.get_model_repository_index()
    name = index[0]["name"] if protocol == "http" else index.models[0].name
    assert name == "product"
    given.set_data_from_numpy(ROWS)
    with pytest.raises(Exception, match="no model 'nothing'"):
        client.infer("nothing", [given])


def test_plain_json_as_curl_sends_it(server: Server) -> None:
    code, answer = infer(server, {**request(), "id": "a", "outputs": [{"name": "index"}]})
    assert code == 200
    assert answer == {
        "model_name": "product",
        "model_version": "1",
        "id": "a",
        "outputs": [{"name": "index", "datatype": "INT64", "shape": [2], "data": [3, 0]}],
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "Expected `object`, got `array`"),
        ({"inputs": []}, "input 'x' is missing"),
        (request(name="z"), "is none of x"),
        ({"inputs": request()["inputs"] * 2}, "given twice"),
        (request(shape=[2, 5]), r"shape [2, 5]"),
        (request(shape=[True, 4]), "Expected `int`"),
        (request(parameters={"binary_data_size": 32}), "0 bytes are left"),
        ({**request(), "outputs": [{"name": "q"}]}, "no output 'q'"),
        ({**request(), "parameters": {"timeout": 10**400}}, "timeout"),
        (request(parameters={"shared_memory_region": "r"}), "shared_memory_region is not offered"),
    ],
)
def test_a_wrong_request_is_refused_in_words(server: Server, body: object, said: str) -> None:
    code, answer = infer(server, body)
    assert code == 400
    assert said in answer["error"] and "Traceback" not in answer["error"]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"inputs": ' + b"[" * 100_000, b'{"inputs": NaN}'])
def test_no_json_is_refused(server: Server, raw: bytes) -> None:
    code, answer = ask(server, "/v2/models/product/infer", raw)
    assert code == 400 and "JSON" in answer["error"]


@pytest.mark.parametrize("length", ["-1", "100000", "\xb2", "9" * 5000])
def test_a_wrong_header_length_is_refused(server: Server, length: str) -> None:
    body = json.dumps(request()).encode()
    code, _ = ask(server, "/v2/models/product/infer", body, {"Inference-Header-Content-Length": length})
    assert code == 400


def call(server: Server, request: bytes) -> Any:
    """The answer to a ModelInferRequest."""
    with grpc.insecure_channel(server.grpc) as channel:
        ask: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        return message("ModelInferResponse").FromString(ask(request, timeout=30))


def test_values_may_stand_in_a_message_instead_of_bytes(server: Server) -> None:
    rows = {"name": "x", "datatype": "FP32", "shape": [2, 4], "contents": {"fp32_contents": ROWS.ravel().tolist()}}
    request = message("ModelInferRequest")(model_name="product", id="7", inputs=[rows])
    answer = call(server, request.SerializeToString())
    assert (answer.id, [output.name for output in answer.outputs]) == ("7", ["y", "index"])
    assert np.array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 4), ROWS * SCALE)


def test_what_is_no_request_is_refused_in_words_over_grpc(server: Server) -> None:
    wrong = message("ModelInferRequest")(model_name="product", parameters={"timeout": {"string_param": "soon"}})
    for request, words in (
        (b"\xff", "the message is not a ModelInferRequest"),
        (wrong.SerializeToString(), "Expected `int`, got `str` - at `$.timeout`"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(server, request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in str(refused.value.details())


@pytest.mark.whole
def test_clients_get_no_source_file_of_a_runtime_and_the_log_has_all(tmp_path: Path) -> None:
    running = start(f"halves={workspace(tmp_path, halves(), shapes={'x': (1, 6)})}")
    given = {"name": "x", "datatype": "FP32", "shape": [1, 5], "data": [1, 2, 3, 4, 5]}
    code, answer = ask(running, "/v2/models/halves/infer", json.dumps({"inputs": [given]}).encode())
    exit_code, logged = stop(running)
    assert code == 400
    assert answer["error"].startswith("the model cannot run these inputs: Reshape halves: The input tensor cannot be")
    (line,) = map(json.loads, logged.splitlines())
    assert exit_code == 0 and line["level"] == "warning" and "reshape_helper.h" in line["message"]


def test_a_nan_is_answered_in_binary_and_refused_in_json(server: Server) -> None:
    rows = ROWS.copy()
    rows[0, 0] = np.nan
    for output, wanted in ((True, 200), (False, 400)):
        code, answer = ask(
            server, "/v2/models/product/infer", *inference.request({"x": rows}, binary_data_output=output)
        )
        assert code == wanted
        assert output or "NaN" in answer["error"]


def test_what_is_announced_too_large_is_refused_at_once(server: Server) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    connection.putrequest("POST", "/v2/models/product/infer")
    connection.putheader("Content-Length", str(2 * 1024**3))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system does not end such connections")
def test_a_client_that_does_not_read_is_disconnected_and_costs_nobody_else(
    serving: Callable[..., Server], tmp_path: Path
) -> None:
    running = serving(f"product={workspace(tmp_path / 'w', product())}", "--drain-s", "1")
    body, headers = inference.request({"x": np.ones((60_000, 4), np.float32)})
    told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    start_line = f"POST /v2/models/product/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{told}\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(0.5)
        deaf.connect(running.address)
        with suppress(OSError):  # the server stops reading, and may have ended the connection already
            for _ in range(20):
                deaf.sendall(start_line.encode() + body)
        ended = select.poll()
        ended.register(deaf, select.POLLHUP)
        assert ended.poll(20_000)
    assert infer(running, request())[0] == 200


def test_requests_are_bounded_together() -> None:
    service = InferenceService([], Settings(request_bytes=10))
    with service.holding(80), service.holding(80), pytest.raises(Overloaded, match="hold 160 of 160 bytes"):
        service.holding(1).__enter__()
    assert service.held_bytes == 0


def test_only_the_addresses_asked_for_listen(server: Server) -> None:
    ports = {int(address.rpartition(":")[2]) for address in (server.http, server.grpc)}
    assert listening([server.process.pid]) == {("127.0.0.1", port) for port in ports}


def test_a_token_is_asked_for_by_both_protocols(serving: Callable[..., Server], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    running = serving(str(workspace(tmp_path / "w", product())), "--token-file", str(token))
    assert ask(running, "/v2/health/ready")[0] == 200
    assert ask(running, "/v2")[0] == 401
    assert ask(running, "/v2", headers={"Authorization": "Bearer wrong"})[0] == 401
    assert ask(running, "/v2", headers={"Authorization": "Bearer secret"})[0] == 200
    grpc_client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    client = grpc_client.InferenceServerClient(running.grpc)
    assert client.is_server_ready()
    with pytest.raises(grpc_client.InferenceServerException, match="token"):
        client.get_server_metadata()
    assert client.get_server_metadata(headers={"authorization": "Bearer secret"}).name == "taglio"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed: no certificate can be made")
def test_both_protocols_over_tls(serving: Callable[..., Server], tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *made.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=60
    )
    running = serving(f"product={workspace(tmp_path / 'w', product())}", "--tls", str(certificate), str(key))
    rows = np.ones((60_000, 4), np.float32)
    asked = urllib.request.Request(f"{running.http}/v2/models/product/infer", *inference.request({"x": rows}))
    with urllib.request.urlopen(asked, timeout=30, context=ssl.create_default_context(cafile=certificate)) as answer:
        assert (rows * SCALE).tobytes() in answer.read()
    client_module = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    client = client_module.InferenceServerClient(running.grpc, ssl=True, root_certificates=str(certificate))
    assert client.is_server_ready()


def test_a_directory_of_workspaces_serves_names_and_versions(serving: Callable[..., Server], tmp_path: Path) -> None:
    for name in ("a/1", "a/10", "b"):
        workspace(tmp_path / name, product())
    running = serving(str(tmp_path))
    _, index = ask(running, "/v2/repository/index", b"")
    assert [(each["name"], each["version"]) for each in index] == [("a", "1"), ("a", "10"), ("b", "1")]
    assert ask(running, "/v2/models/a")[1]["versions"] == ["1", "10"]
    body = json.dumps(request()).encode()
    assert ask(running, "/v2/models/a/infer", body)[1]["model_version"] == "10"
    assert ask(running, "/v2/models/a/versions/1/infer", body)[1]["model_version"] == "1"


def test_what_cannot_be_served_is_refused_in_one_line(tmp_path: Path, server: Server) -> None:
    folder, token = workspace(tmp_path / "w", product()), tmp_path / "token"
    token.write_text("secret")
    port = server.http.rpartition(":")[2]
    for arguments, said in (
        ([str(tmp_path / "nothing")], "holds no built model"),
        ([str(folder), str(folder)], "a second model"),
        ([str(folder), "--http-port", port], "cannot listen on 127.0.0.1"),
        ([str(folder), "--http-port", "0", "--grpc-port", port], "choose another port, or stop what uses it"),
        ([str(folder), "--http-port", "65536"], "must be at most 65535"),
        ([str(folder), "--http-port", "8123", "--grpc-port", "8123"], "cannot share port 8123"),
        ([str(folder), "--host", "nowhere.invalid", "--token-file", str(token)], "give an address of this machine"),
        (["product="], "names no directory"),
        ([str(folder), "--host", "0.0.0.0"], "give a token"),
        ([str(folder), "--tls", str(tmp_path / "c"), str(tmp_path / "k")], "no such file"),
        ([str(folder), "--tls", str(folder / "setup.json"), str(folder / "setup.json")], "cannot be used"),
        ([str(folder), "--token-file", str(tmp_path / "t")], "cannot be read"),
    ):
        refused(taglio("serve", *arguments), said)
    (folder / "components" / "model.onnx").write_bytes(b"other")
    refused(taglio("serve", str(folder)), "was changed")
