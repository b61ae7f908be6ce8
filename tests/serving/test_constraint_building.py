"""Constraints are built in a thread beside the model's, and building stops when no client waits."""

import json
import threading
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

from penwright.config import DecodingSettings
from penwright.decoding.constraints import constraints
from penwright.decoding.constraints.constraints import CompletionConstraint
from penwright.errors import PenwrightError
from penwright.serving.checks import ClientsDisconnected

from .conftest import ApiCall, RunningServer, StartServer, eventually

MANY = "".join(c for c in map(chr, range(0xA0, 0x3000)) if c.isalpha() and c.lower() != c.upper())[:980]
PATTERNS = {
    "letters of two cases": f"(?i){MANY}",
    "nested counts": "(a{1,500}){1,500}",
    "counts in counts in counts": "((a{1,50}){1,50}){1,50}",
    "many ways": "(.*a.{0,20}){3}",
    "sets": "".join(f"[{chr(97 + n % 26)}-{chr(600 + n)}]" for n in range(190)),
    "sets of two cases": "(?i)" + "".join(f"[{chr(97 + n % 26)}-{chr(600 + n)}]" for n in range(189)),
    "all but": "".join(f"[^{chr(97 + n)}]" for n in range(240)),
    "alternatives": "|".join(f"{n}x" for n in range(250)),
    "maybe": "a?" * 480,
    "deep": "(" * 300 + ")" * 300,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_building_a_pattern_can_be_cancelled(name: str, server: RunningServer) -> None:
    """Little work is done between two checks for waiting clients, and the total work is bounded."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ClientsDisconnected("gone")

    tokenizer = server.copies.get("writer").generator.tokenizer
    settings = DecodingSettings(pattern=PATTERNS[name])
    with pytest.raises(PenwrightError) as finished:
        CompletionConstraint(settings, tokenizer, ["a"], 100, tokenizer.end_ids, check)
    assert finished.type is ClientsDisconnected or calls < 3


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_causes_a_server_error(name: str, start_server: StartServer) -> None:
    running = start_server(build_seconds=0.5)
    body = json.dumps({"text": "a", "settings": {"pattern": PATTERNS[name], "max_new_tokens": 4}})
    host, port = running.address.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.request("POST", "/write", body)
        assert connection.getresponse().status in (200, 400)


def test_model_generates_while_a_pattern_is_built(
    call_api: ApiCall, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, may_continue, finished = threading.Event(), threading.Event(), threading.Event()
    original_automaton = constraints.Automaton

    def slow(*arguments: Any) -> Any:
        started.set()
        assert may_continue.wait(30)
        return original_automaton(*arguments)

    def request_constrained() -> None:
        status, _ = 0, None
        body = json.dumps({"text": "It", "settings": {"pattern": "[a-z]+", "max_new_tokens": 4}})
        host, port = server.address.removeprefix("http://").split(":")
        with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
            connection.request("POST", "/write", body)
            status = connection.getresponse().status
        assert status == 200
        finished.set()

    monkeypatch.setattr(constraints, "Automaton", slow)
    thread = threading.Thread(target=request_constrained)
    thread.start()
    try:
        assert started.wait(30)
        assert call_api("v1/completions", {"prompt": "It", "max_tokens": 4})[0] == 200
        assert call_api("health")[0] == 200
        assert not finished.is_set()
    finally:
        may_continue.set()
        thread.join(60)
    assert finished.is_set()


def test_disconnecting_client_cancels_building(server: RunningServer) -> None:
    worker = server.registry.get("writer")
    body = json.dumps({"text": "a", "settings": {"pattern": PATTERNS["nested counts"]}})
    host, port = server.address.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.request("POST", "/write", body)
        assert eventually(lambda: worker.n_inside == 1)
    assert eventually(lambda: worker.n_inside == 0)
    assert worker._builder.submit(int).result(timeout=8) == 0  # the thread is free before its deadline of 10 s


@pytest.mark.parametrize(
    ("settings", "forbidden"),
    [
        ({"pattern": "[0-9]+"}, lambda text: not text.isdecimal()),
        ({"pattern": "[a-z]{2}[0-9]"}, lambda text: not text.islower()),
        ({"banned_words": ["a"], "required_words": ["b"], "max_new_tokens": 1}, lambda text: text != "b"),
        ({"min_new_tokens": 1}, lambda text: text == ""),
    ],
)
def test_next_token_obeys_the_constraints(
    call_api: ApiCall, settings: dict[str, Any], forbidden: Callable[[str], bool]
) -> None:
    """The chance of each token that the constraints forbid is 0."""
    body = {"text": "It was ", "settings": {"temperature": 5, **settings}}
    status, found = call_api("next", body)
    assert status == 200
    free = call_api("next", {**body, "settings": {"temperature": 5}})[1]
    assert 1 <= found["n_kept"] < free["n_kept"]
    assert all(each["chance"] == 0 for each in found["likeliest"] if forbidden(each["text"]))
    best = call_api("next", {**body, "settings": {**settings, "temperature": 0}})[1]
    assert best["n_kept"] == 1
    refused = call_api("next", {**body, "settings": {"pattern": "("}})
    assert refused[0] == 400
    assert "pattern" in refused[1]["error"]["message"]


def test_next_token_completes_a_character(call_api: ApiCall) -> None:
    """After the first byte of "é", only the 64 bytes that complete a character have a chance."""
    status, found = call_api("next", {"text": "It was ", "tokens": [0xC3], "settings": {"temperature": 5}})
    assert (status, found["n_kept"]) == (200, 64)
