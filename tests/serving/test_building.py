"""Patterns and words are prepared beside the model, which goes on meanwhile; and it ends when nobody waits."""

import json
import threading
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

from penwright.config import DecodingSettings
from penwright.decoding.constraints import constraints
from penwright.decoding.constraints.constraints import CompletionConstraint
from penwright.serving.batching import ClientsDisconnected

from .conftest import Asked, Running, Serving, eventually

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
def test_while_a_pattern_is_prepared_it_can_be_ended(name: str, server: Running) -> None:
    """Between two looks at whether somebody waits, little is done; what it takes in all is bounded."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ClientsDisconnected("gone")

    tokenizer = server.registry.get("writer").generator.tokenizer
    settings = DecodingSettings(pattern=PATTERNS[name])
    with pytest.raises(Exception) as ended:
        CompletionConstraint(settings, tokenizer, ["a"], 100, check)
    assert ended.type is ClientsDisconnected or calls < 3


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_is_a_failure_of_the_server(name: str, serving: Serving) -> None:
    running = serving(build_seconds=0.5)
    body = json.dumps({"text": "a", "settings": {"pattern": PATTERNS[name], "max_new_tokens": 4}})
    host, port = running.address.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.request("POST", "/write", body)
        assert connection.getresponse().status in (200, 400)


def test_the_model_writes_while_a_pattern_is_prepared(
    asked: Asked, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    plain = constraints.Automaton

    def slow(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return plain(*given)

    def constrained() -> None:
        status, _ = 0, None
        body = json.dumps({"text": "It", "settings": {"pattern": "[a-z]+", "max_new_tokens": 4}})
        host, port = server.address.removeprefix("http://").split(":")
        with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
            connection.request("POST", "/write", body)
            status = connection.getresponse().status
        assert status == 200
        ended.set()

    monkeypatch.setattr(constraints, "Automaton", slow)
    thread = threading.Thread(target=constrained)
    thread.start()
    try:
        assert begun.wait(30)
        assert asked("v1/completions", {"prompt": "It", "max_tokens": 4})[0] == 200
        assert asked("health")[0] == 200
        assert not ended.is_set()
    finally:
        go_on.set()
        thread.join(60)
    assert ended.is_set()


def test_a_client_that_leaves_ends_what_is_prepared_for_it(server: Running) -> None:
    served = server.registry.get("writer")
    body = json.dumps({"text": "a", "settings": {"pattern": PATTERNS["nested counts"]}})
    host, port = server.address.removeprefix("http://").split(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.request("POST", "/write", body)
        assert eventually(lambda: served.n_inside == 1)
    assert eventually(lambda: served.n_inside == 0)
    assert served._builder.submit(int).result(timeout=8) == 0  # the thread is free before its deadline of 10 s
