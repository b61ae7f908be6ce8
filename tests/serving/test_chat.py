"""An imported writer with a chat template answers a conversation over HTTP."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import penwright
from penwright.generation.generator import Generator
from penwright.serving import model_worker
from penwright.serving.checks import build_check
from penwright.serving.model_worker import ModelWorker
from penwright.tokenizers.chat_template import Message

from .conftest import StartServer

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


Answering = tuple[Generator, Callable[..., dict[str, Any]], ModelWorker]


@pytest.fixture(scope="module")
def answering(runs: Path, tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> Answering:
    """A chat model, a function that sends it a chat request (by default with the message "Hello"), and its worker."""
    folder = tmp_path_factory.mktemp("chat")
    penwright.export(runs / "writer", "huggingface", folder / "exported")
    (folder / "exported" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    writer = penwright.import_model(folder / "exported", folder / "answering")
    running = start_server()
    writer_worker = running.registry.get("writer")
    answering_worker = ModelWorker.load(folder / "answering")
    running.registry._workers = {"writer": writer_worker, "answering": answering_worker}

    def chat(**fields: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0, **fields}
        request = Request(
            f"{running.address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urlopen(request, timeout=30) as answer:
                return {"status": answer.status, **json.load(answer)}
        except HTTPError as refused:
            with refused:
                return {"status": refused.code, **json.load(refused)}

    return writer, chat, answering_worker


def test_imported_writer_answers_a_chat_completion(answering: Answering) -> None:
    writer, chat, _ = answering
    found = chat(seed=5)
    expected = writer.answer([Message("user", "Hello")], temperature=0, max_new_tokens=8, seed=5)
    assert found["model"] == "answering"
    assert found["choices"][0]["message"] == {"role": "assistant", "content": expected.text}
    assert found["usage"]["prompt_tokens"] == len(writer.chat_tokens([Message("user", "Hello")]))


@pytest.mark.parametrize("k", [0, 1, 3])
def test_each_token_has_the_wanted_number_of_alternatives(answering: Answering, k: int) -> None:
    _, chat, _ = answering
    (choice,) = chat(temperature=2, seed=1, max_tokens=20, logprobs=True, top_logprobs=k)["choices"]
    content = choice["logprobs"]["content"]
    assert {len(each["top_logprobs"]) for each in content} == {k}
    tops = [[other["logprob"] for other in each["top_logprobs"]] for each in content]
    assert all(top == sorted(top, reverse=True) for top in tops)
    assert k == 0 or any(each["logprob"] < top[-1] for each, top in zip(content, tops, strict=True))


def test_shortening_a_conversation_is_limited_in_time(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    _, chat, _ = answering
    messages = [{"role": ("user", "assistant")[n % 2], "content": "Hello"} for n in range(99)]
    assert chat(messages=messages)["status"] == 200
    monkeypatch.setattr(model_worker, "build_check", lambda disconnected, until: build_check(disconnected, 0.0))
    refused = chat(messages=messages)
    assert refused["status"] == 400
    assert "takes too long" in refused["error"]["message"]


def test_short_conversation_does_not_wait_until_patterns_are_compiled(answering: Answering) -> None:
    _, chat, worker = answering
    may_end = threading.Event()
    worker._builder.submit(may_end.wait, 60)
    try:
        assert chat()["status"] == 200
        assert not may_end.is_set()
    finally:
        may_end.set()


def test_messages_longer_than_the_context_are_refused(answering: Answering) -> None:
    writer, chat, _ = answering
    refused = chat(messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello" * 500}])
    assert (refused["status"], refused["error"]["code"]) == (400, "context_length_exceeded")
    assert f"reads at most {writer.model.settings.context_length}" in refused["error"]["message"]
    assert chat(messages=[{"role": "user</s>", "content": "Hello"}])["status"] == 400


def test_only_text_is_accepted_as_response_format(answering: Answering) -> None:
    _, chat, _ = answering
    assert chat(response_format={"type": "text"})["status"] == 200
    assert chat(response_format=None)["status"] == 200
    for other in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}):
        refused = chat(response_format=other)
        assert refused["status"] == 400
        assert refused["error"]["param"] == "response_format.type"
        assert refused["error"]["type"] == "invalid_request_error"
        assert f"'{other['type']}' is not supported" in refused["error"]["message"]
        assert "settings.pattern" in refused["error"]["message"]
