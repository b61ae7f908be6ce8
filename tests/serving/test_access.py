"""Access control, limits, metrics, and shutdown of the server."""

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from penwright.errors import UsageError
from penwright.serving.metrics import Metrics
from penwright.serving.middleware import Middleware
from penwright.serving.settings import ServingSettings

from .conftest import RunningServer, StartServer, eventually

KEY = "a secret: with a colon"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


Body = bytes | Iterator[bytes] | None


def ask(address: str, path: str, method: str = "GET", body: Body = None, **headers: str) -> Answer:
    host, port = address.removeprefix("http://").split(":")
    connection = HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        found = connection.getresponse()
        headers = {name.lower(): value for name, value in found.getheaders()}
        return Answer(found.status, headers, found.read().decode())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def key_protected(start_server: StartServer) -> str:
    """The address of a server that requires a key."""
    return start_server(api_key=KEY).address


def test_unknown_host_headers_are_refused(server: RunningServer) -> None:
    host = server.address.removeprefix("http://")
    port = host.split(":")[1]
    assert ask(server.address, "/health").status == 200
    for name in ("localhost", "LocalHost"):
        assert ask(server.address, "/health", Host=f"{name}:{port}").status == 200
    for other in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"localhost.evil.example:{port}", ""):
        assert ask(server.address, "/v1/models", Host=other).status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"])
def test_foreign_origins_are_refused(server: RunningServer, origin: str) -> None:
    assert ask(server.address, "/v1/models", Origin=origin).status == 403
    assert ask(server.address, "/v1/models", Origin=server.address).status == 200


def test_pages_of_other_sites_may_only_link_to_the_page(server: RunningServer) -> None:
    for site in ("cross-site", "same-site"):
        headers = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "no-cors"}
        for path in ("/", "/v1/models", "/classifying/calibration", "/views/dom.js"):
            assert ask(server.address, path, **headers).status == 403
        headers["Sec_Fetch_Mode"] = "navigate"
        assert ask(server.address, "/v1/models", **headers).status == 403
        assert ask(server.address, "/", **headers).status == 200
    for site in ("same-origin", "none"):
        assert ask(server.address, "/v1/models", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors").status == 200


def test_responses_have_security_headers_and_no_cors(server: RunningServer) -> None:
    for path in ("/", "/v1/models", "/nothing"):
        headers = ask(server.address, path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY" and "frame-ancestors 'none'" in headers["content-security-policy"]
        assert not [name for name in headers if name.startswith("access-control")]


def test_every_route_but_health_requires_the_key(key_protected: str) -> None:
    assert ask(key_protected, "/health").status == 200
    paths = json.loads(ask(key_protected, "/openapi.json", X_API_Key=KEY).text)["paths"]
    assert {"/v1/completions", "/translate", "/classify", "/metrics"} <= set(paths)
    for path in {*paths, "/", "/openapi.json", "/views/dom.js", "/nothing"} - {"/health"}:
        for method in ("GET", "POST"):
            assert ask(key_protected, path, method).status == 401, path


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": "Basic " + base64.b64encode(f"anybody:{KEY}".encode()).decode()},
        {"X-API-Key": KEY},
    ],
)
def test_key_is_accepted_in_each_header(key_protected: str, headers: dict[str, str]) -> None:
    assert ask(key_protected, "/v1/models", **headers).status == 200
    wrong = {name: value[:-2] + "x=" for name, value in headers.items()}
    assert ask(key_protected, "/v1/models", **wrong).status == 401


def test_libretranslate_clients_may_send_the_key_in_the_body(key_protected: str) -> None:
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(key_protected, KEY)
    assert client.languages()[0]["targets"] == ["target"]
    assert isinstance(client.translate("eins", "auto", "target"), str)
    body = json.dumps({"q": "eins", "target": "target", "api_key": KEY}).encode()
    assert ask(key_protected, "/translate", "POST", body, Content_Type="application/json").status == 200


def test_key_in_the_address_is_accepted_only_from_libretranslate_clients(key_protected: str) -> None:
    assert ask(key_protected, f"/languages?api_key={quote(KEY)}").status == 200
    assert ask(key_protected, f"/v1/models?api_key={quote(KEY)}").status == 401, "addresses are often logged"


def test_oversized_body_is_refused(start_server: StartServer) -> None:
    address = start_server(max_body_bytes=2000).address
    found = ask(address, "/v1/completions", "POST", b"x" * 2001)
    assert found.status == 413 and "max_body_bytes" in found.text
    claimed = ask(address, "/v1/completions", "POST", b"{}", Content_Length="10000000000")
    assert claimed.status == 413
    chunked = ask(address, "/v1/completions", "POST", iter([b"x" * 1500] * 2))  # sent without a Content-Length
    assert chunked.status == 413


LONG, MANY = "a" * 101, ["a"] * 4


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/completions", {"prompt": LONG}, "max_characters"),
        ("/v1/completions", {"prompt": MANY}, "max_texts"),
        ("/v1/completions", {"prompt": "a", "n": 3}, "max_n"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 9}, "max_new_tokens"),
        ("/v1/completions", {"prompt": [1] * 101}, "max_characters"),
        ("/translate", {"q": LONG, "target": "target"}, "max_characters"),
        ("/translate", {"q": MANY, "target": "target"}, "max_texts"),
        ("/translate", {"q": "a", "target": "target", "alternatives": 2}, "max_n"),
        ("/detect", {"q": LONG}, "max_characters"),
        ("/classify", {"texts": [LONG]}, "max_characters"),
        ("/classify", {"texts": MANY}, "max_texts"),
        ("/score", {"text": LONG}, "max_characters"),
        ("/translating/words", {"text": LONG}, "max_characters"),
        ("/inspect/lens", {"text": LONG}, "max_characters"),
        ("/inspect/lens", {"model": "translator", "text": "a", "target": LONG}, "max_characters"),
        ("/inspect/neighbours", {"word": LONG}, "max_characters"),
        ("/inspect/compared/tokens", {"text": "a", "other_text": LONG}, "max_characters"),
    ],
)
def test_every_route_enforces_its_limits(limited: str, path: str, body: dict[str, object], limit: str) -> None:
    found = ask(limited, path, "POST", json.dumps(body).encode(), Content_Type="application/json")
    assert found.status in (400, 413) and limit in found.text


@pytest.fixture(scope="module")
def limited(start_server: StartServer) -> str:
    return start_server(max_characters=100, max_texts=3, max_n=2, max_new_tokens=8).address


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"prompt": NaN}', b"1" * 10_000, b'{"seed": 1e999}', b"null"]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/translate", "/detect", "/classify"])
def test_invalid_json_is_a_client_error(server: RunningServer, path: str, body: bytes) -> None:
    found = ask(server.address, path, "POST", body, Content_Type="application/json")
    assert 400 <= found.status < 500
    assert json.loads(found.text)["error"]


def test_full_queue_answers_429_with_retry_after(start_server: StartServer) -> None:
    running = start_server(max_waiting=3)
    worker = running.registry.get("writer")
    long = json.dumps({"prompt": "It", "max_tokens": 4000, "n": 3, "stream": True}).encode()
    host, port = running.address.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=20)) as connection:
        connection.request("POST", "/v1/completions", long, {"Content-Type": "application/json"})
        with connection.getresponse() as answer:
            assert answer.readline().startswith(b"data: {")
            refused = ask(
                running.address, "/v1/completions", "POST", b'{"prompt": "It"}', Content_Type="application/json"
            )
    assert refused.status == 429 and refused.headers["retry-after"]
    assert eventually(lambda: worker.n_inside == 0 and not worker.completion_worker.batch.busy)
    accepted = ask(running.address, "/v1/completions", "POST", b'{"prompt": "It"}', Content_Type="application/json")
    assert accepted.status == 200
    many = ask(running.address, "/v1/completions", "POST", b'{"n": 4}', Content_Type="application/json")
    assert many.status == 400


def test_requests_past_the_deadline_time_out(start_server: StartServer) -> None:
    running = start_server(deadline_seconds=0.6)
    long = {"prompt": "It", "max_tokens": 4000, "logit_bias": {str(end_token_id(running)): -100}}
    found = ask(running.address, "/v1/completions", "POST", json.dumps(long).encode(), Content_Type="application/json")
    assert found.status == 504 and json.loads(found.text)["error"]["type"] == "timeout_error"
    streamed = ask(
        running.address,
        "/v1/completions",
        "POST",
        json.dumps({**long, "stream": True}).encode(),
        Content_Type="application/json",
    )
    assert streamed.status == 200 and '"error"' in streamed.text and "[DONE]" not in streamed.text
    assert eventually(lambda: not running.registry.get("writer").completion_worker.batch.busy)


def end_token_id(running: RunningServer) -> int:
    return running.registry.get("writer").generator.tokenizer.end_id


def test_metrics_count_requests_and_texts(server: RunningServer) -> None:
    def counted(name: str) -> float:
        lines = ask(server.address, "/metrics").text.split("\n")
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    name = 'penwright_requests_total{route="/classify",status="200"}'
    before = counted(name), counted('penwright_texts_total{model="classifier"}')
    body = b'{"texts": ["a fine film", "a dull film"]}'
    found = ask(server.address, "/classify", "POST", body, Content_Type="application/json")
    assert [sum(each["scores"].values()) for each in json.loads(found.text)["results"]] == pytest.approx([1, 1])
    assert (counted(name), counted('penwright_texts_total{model="classifier"}')) == (before[0] + 1, before[1] + 2)


def test_public_host_requires_a_key(server: RunningServer) -> None:
    from penwright.serving.server import Server
    from penwright.serving.settings import ServingSettings

    with pytest.raises(UsageError, match="--api-key"):
        Server(server.registry, ServingSettings(host="0.0.0.0", port=0))


def test_connections_use_tcp_nodelay() -> None:
    from penwright.serving.server import _bind

    with _bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_port_in_use_is_named_in_the_error(server: RunningServer) -> None:
    from penwright.errors import PenwrightError
    from penwright.serving.server import Server
    from penwright.serving.settings import ServingSettings

    port = int(server.address.rpartition(":")[2])
    with pytest.raises(PenwrightError, match=f"cannot listen on .*{port}.*--port"):
        Server(server.registry, ServingSettings(port=port))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_signal_lets_open_streams_finish(runs: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "penwright", "serve", str(runs / "writer"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split(": ")[0]
        host, port = address.removeprefix("http://").split(":")
        body = json.dumps({"prompt": "It", "max_tokens": 300, "stream": True, "seed": 1})
        with closing(HTTPConnection(host, int(port), timeout=30)) as connection:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            with connection.getresponse() as answer:
                assert answer.readline().startswith(b"data: {")
                process.send_signal(number)
                assert answer.read().endswith(b"data: [DONE]\n\n")
        assert process.wait(20) == code


class RecordingMetrics(Metrics):
    """Metrics that record the status codes."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def count(self, route: str, status: int, seconds: float) -> None:
        self.statuses.append(status)


def test_internal_error_has_security_headers_and_is_counted_once() -> None:
    sent: list[Any] = []
    metrics, request_was_read = RecordingMetrics(), asyncio.Event()

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    async def receive() -> Any:
        if request_was_read.is_set():
            await asyncio.sleep(60)
        request_was_read.set()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/score", "method": "POST", "headers": [(b"host", b"127.0.0.1:8000")]}
    middleware = Middleware(failing, ServingSettings(), metrics)
    # Other tests' browsers keep an event loop running in this thread, so use another thread.
    with pytest.raises(ZeroDivisionError), ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, middleware(scope, receive, send)).result()
    assert sent[0]["status"] == 500 and b"content-security-policy" in dict(sent[0]["headers"])
    assert metrics.statuses == [500]
