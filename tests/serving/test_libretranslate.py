"""LibreTranslate's own client against a live server."""

import time
from typing import Any
from urllib.error import HTTPError

import pytest

from penwright.serving.model_worker import ModelWorker

from .conftest import ApiCall, RunningServer, StartServer, call, eventually

libretranslatepy = pytest.importorskip("libretranslatepy", reason="LibreTranslate's client is not installed")


@pytest.fixture(scope="module")
def client(server: RunningServer) -> "libretranslatepy.LibreTranslateAPI":
    return libretranslatepy.LibreTranslateAPI(server.address)


def expected_translations(server: RunningServer, texts: list[str]) -> list[str]:
    return [found.text for found in server.copies.get("translator").translator.translate(texts)]


def test_translation_equals_the_librarys(client: "libretranslatepy.LibreTranslateAPI", server: RunningServer) -> None:
    for text in ("eins zwei drei", "", "eins\n\nzwei & vier"):
        assert client.translate(text, "auto", "target") == expected_translations(server, [text])[0]


def test_lists_and_alternatives_come_as_lists(call_api: ApiCall, server: RunningServer) -> None:
    texts = ["eins zwei", "drei"]
    status, found = call_api("translate", {"q": texts, "source": "source", "target": "target", "alternatives": 2})
    assert status == 200
    assert found["translatedText"] == expected_translations(server, texts)
    assert [len(others) <= 2 for others in found["alternatives"]] == [True, True]
    assert found["alternatives"][0][0] != found["translatedText"][0]


def test_client_lists_and_detects_languages(client: "libretranslatepy.LibreTranslateAPI", call_api: ApiCall) -> None:
    (language,) = client.languages()
    assert language["targets"] == ["target"]
    (guess,) = client.detect("eins zwei")
    assert guess["language"] == language["code"] and 0 <= guess["confidence"] <= 100
    assert call_api("frontend/settings")[1]["keyRequired"] is False


@pytest.mark.parametrize(
    ("body", "about"),
    [
        ({"q": "eins"}, "target"),
        ({"q": {"a": 1}, "target": "target"}, "q"),
        ({"q": "eins", "target": "target", "alternatives": 10**4}, "alternatives"),
        ({"q": "a\ud800", "target": "target"}, "surrogate"),
        ([1], ""),
    ],
)
def test_invalid_request_is_refused_with_a_reason(call_api: ApiCall, body: object, about: str) -> None:
    status, found = call_api("translate", body)
    assert status == 400
    assert about in found["error"]


def test_too_long_text_is_refused(client: "libretranslatepy.LibreTranslateAPI") -> None:
    with pytest.raises(HTTPError) as caught:
        client.translate("eins " * 2000, "auto", "target")
    with caught.value as refused:
        assert refused.code == 413


def test_deadline_applies_to_all_batches_of_a_page_together(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    translate = ModelWorker._translate

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return translate(*arguments)

    monkeypatch.setattr(ModelWorker, "_translate", slow)
    running = start_server(deadline_seconds=1.0, max_texts=1)
    body = {"source": "source", "target": "target", "format": "html"}
    status, found = call(running, "translate", {**body, "q": "<p>eins<p>zwei<p>drei<p>vier<p>sechs"})
    assert status == 504
    assert "deadline_seconds" in found["error"]
    batcher = running.registry.get("translator").batcher
    assert eventually(lambda: batcher._task is None)  # `slow` must not outlive its test


def test_number_of_texts_in_pages_is_limited(start_server: StartServer) -> None:
    running = start_server(max_texts=2)
    body = {"source": "source", "target": "target", "format": "html"}
    assert call(running, "translate", {**body, "q": "<p>eins" * 99})[0] == 200  # the same text counts once
    status, found = call(running, "translate", {**body, "q": "".join(f"<p>eins {n}" for n in range(33))})
    assert status == 413
    assert "33 different texts" in found["error"]
