"""LibreTranslate's own client against a live server."""

from urllib.error import HTTPError

import pytest

from .conftest import Asked, Running

libretranslatepy = pytest.importorskip("libretranslatepy", reason="LibreTranslate's client is not installed")


@pytest.fixture(scope="module")
def client(server: Running) -> "libretranslatepy.LibreTranslateAPI":
    return libretranslatepy.LibreTranslateAPI(server.address)


def translations(server: Running, texts: list[str]) -> list[str]:
    return [found.text for found in server.registry.get("translator").translator.translate(texts)]


def test_a_text_is_translated_as_the_model_does(client: "libretranslatepy.LibreTranslateAPI", server: Running) -> None:
    for text in ("eins zwei drei", "", "eins\n\nzwei & vier"):
        assert client.translate(text, "auto", "target") == translations(server, [text])[0]


def test_lists_and_alternatives_come_as_lists(asked: Asked, server: Running) -> None:
    texts = ["eins zwei", "drei"]
    status, found = asked("translate", {"q": texts, "source": "source", "target": "target", "alternatives": 2})
    assert status == 200
    assert found["translatedText"] == translations(server, texts)
    assert [len(others) <= 2 for others in found["alternatives"]] == [True, True]
    assert found["alternatives"][0][0] != found["translatedText"][0]


def test_languages_and_detection(client: "libretranslatepy.LibreTranslateAPI", asked: Asked) -> None:
    (language,) = client.languages()
    assert language["targets"] == ["target"]
    (guess,) = client.detect("eins zwei")
    assert guess["language"] == language["code"] and 0 <= guess["confidence"] <= 100
    assert asked("frontend/settings")[1]["keyRequired"] is False


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
def test_what_cannot_be_is_refused_with_the_reason(asked: Asked, body: object, about: str) -> None:
    status, found = asked("translate", body)
    assert status == 400
    assert about in found["error"]


def test_a_text_that_is_too_long_is_refused(client: "libretranslatepy.LibreTranslateAPI") -> None:
    with pytest.raises(HTTPError) as caught:
        client.translate("eins " * 2000, "auto", "target")
    with caught.value as refused:
        assert refused.code == 413
