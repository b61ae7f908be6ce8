"""Validation of requests: types, text encoding, keys, and error messages in plain words."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.config import DecodingSettings
from penwright.errors import PenwrightError
from penwright.inspection import Inspector
from penwright.serving.chat import ChatRequest
from penwright.serving.completion_fields import CompletionRequest
from penwright.serving.fields import LISTS, decoding_settings
from penwright.serving.settings import ServingSettings

from .conftest import ApiCall, RunningServer, StartServer
from .test_access import ask

INTERNAL = ("pydantic", "Input should", "function-after", "constrained", "list[", "Value error")
HUGE = 10**30


def refusal_message(found: tuple[int, Any]) -> str:
    """Return the message of a refusal, which must be a client error in plain words."""
    status, answer = found
    assert 400 <= status < 500, found
    error = answer["error"]
    message: str = error if isinstance(error, str) else error["message"]
    assert not any(word in message for word in INTERNAL), message
    return message


NUMBERS = [
    ("v1/completions", {"prompt": "a"}, ["max_tokens", "temperature", "top_k", "n", "seed", "logprobs", "top_p"]),
    ("inspect/tokens", {"model": "writer", "text": "a"}, ["k"]),
    ("inspect/attribution", {"model": "writer", "text": "a"}, ["position"]),
    ("translating/words", {"text": "eins"}, ["n", "beam_size", "length_penalty"]),
    ("translating/sentences", {"sentences": [{"text": "eins"}]}, ["beam_size", "length_penalty"]),
    ("translate", {"q": "eins", "target": "target"}, ["alternatives"]),
]


@pytest.mark.parametrize("value", [True, "0.5", "1", [], {}, HUGE * 10**290])
def test_non_numbers_are_refused_where_numbers_belong(call_api: ApiCall, value: object) -> None:
    for path, body, names in NUMBERS:
        for name in names:
            assert name in refusal_message(call_api(path, {**body, name: value}))
    for name in ("temperature", "top_k", "max_new_tokens", "dry_allowed_length", "logit_bias", "seed"):
        for path in ("next", "write"):
            if value != {} or name != "logit_bias":
                assert name in refusal_message(call_api(path, {"text": "a", "settings": {name: value}}))


@pytest.mark.parametrize(
    "setting",
    [
        *({name: value} for name in ("temperature", "repetition_penalty") for value in (1e31, 1e300)),
        *({f"{name}_penalty": value} for name in ("presence", "frequency") for value in (1e31, -1e300)),
        *({"logit_bias": {"a": value}} for value in (1e31, -1e300)),
        {"repetition_penalty": 1e-300},
    ],
)
def test_settings_that_would_overflow_are_refused(call_api: ApiCall, setting: dict[str, Any]) -> None:
    (name,) = setting
    for path in ("next", "write"):
        assert name in refusal_message(call_api(path, {"text": "a", "settings": setting}))


def test_numbers_in_a_form_are_parsed(server: RunningServer) -> None:
    kind = "application/x-www-form-urlencoded"
    for more, n in ((b"alternatives=1", 1), (b"format=&source=&alternatives=&api_key=", 0)):
        found = ask(server.address, "/translate", "POST", b"q=eins&target=target&" + more, Content_Type=kind)
        assert found.status == 200 and len(json.loads(found.text).get("alternatives", [])) == n


@pytest.mark.parametrize(
    ("kind", "required"), [(CompletionRequest, {}), (ChatRequest, {"messages": [{"role": "user", "content": "a"}]})]
)
def test_null_is_the_default_of_each_field(
    kind: type[CompletionRequest | ChatRequest], required: dict[str, Any]
) -> None:
    nulls = dict.fromkeys(kind.model_fields)
    assert kind.model_validate({**nulls, **required}) == kind.model_validate(required)
    described = kind.model_json_schema()["properties"]
    assert {name for name in nulls if {"type": "null"} not in described[name].get("anyOf", [])} == set(required)


def test_prompt_of_null_is_the_default(call_api: ApiCall) -> None:
    body = {"max_tokens": 4, "seed": 1}
    answers = [call_api("v1/completions", {**body, **prompt}) for prompt in ({"prompt": None}, {}, {"prompt": "\n"})]
    assert [status for status, _ in answers] == [200] * 3
    assert len({answer["choices"][0]["text"] for _, answer in answers}) == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers(-HUGE, HUGE) | st.floats() | st.text(max_size=5) | st.just("a" * 9000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*DecodingSettings.model_fields, "strange"]), values, max_size=3))
def test_settings_are_accepted_or_refused_in_plain_words(changes: dict[str, Any]) -> None:
    try:
        found = decoding_settings(DecodingSettings(), changes, "settings")
    except PenwrightError as error:
        assert "settings" in str(error) and not any(word in str(error) for word in INTERNAL)
    else:
        numbers = [value for value in found.model_dump().values() if type(value) is int]
        assert all(value < 2**64 for value in numbers)


@pytest.mark.parametrize("value", [0, -1, 0.0])
@pytest.mark.parametrize("name", ["top_k", "top_n_sigma", "no_repeat_ngram", "epsilon_cutoff", "eta_cutoff"])
def test_conventional_off_values_disable_a_setting(name: str, value: float) -> None:
    defaults = DecodingSettings(**{name: 1 if name.startswith(("top_k", "no_")) else 0.5})
    assert getattr(decoding_settings(defaults, {name: value}, "settings"), name) is None


@pytest.mark.parametrize("top_k", [0, -1, None])
def test_top_k_of_zero_or_minus_one_is_off(call_api: ApiCall, top_k: int | None) -> None:
    body = {"prompt": "It was", "seed": 4, "max_tokens": 8}
    status, found = call_api("v1/completions", {**body, "top_k": top_k})
    assert status == 200 and found["choices"][0]["text"] == call_api("v1/completions", body)[1]["choices"][0]["text"]


@pytest.mark.parametrize("name", LISTS)
def test_long_lists_of_words_are_refused(call_api: ApiCall, name: str) -> None:
    many: object = {f"w{n}": 1.0 for n in range(20_000)} if name == "logit_bias" else ["word"] * 20_000
    assert name in refusal_message(call_api("write", {"text": "a", "settings": {name: many}}))
    long: object = {"w" * 9000: 1.0} if name == "logit_bias" else ["w" * 9000]
    assert name in refusal_message(call_api("write", {"text": "a", "settings": {name: long}}))


LONE_SURROGATE = "\ud800"
WITH_TEXTS = [
    ("v1/completions", {"prompt": LONE_SURROGATE}),
    ("v1/completions", {"prompt": "a", "stop": [LONE_SURROGATE]}),
    ("v1/completions", {"prompt": "a", "user": LONE_SURROGATE}),
    ("v1/completions", {"model": LONE_SURROGATE}),
    ("write", {"text": "a", "settings": {"pattern": LONE_SURROGATE}}),
    ("write", {"text": "a", "settings": {"banned_words": [LONE_SURROGATE]}}),
    ("next", {"text": "a", "settings": {"logit_bias": {LONE_SURROGATE: 1}}}),
    ("inspect/neighbours", {"word": LONE_SURROGATE}),
    ("inspect/ablation", {"text": "a", "heads": [LONE_SURROGATE]}),
    ("inspect/compared/tokens", {"model": LONE_SURROGATE}),
    ("runs/stop", {"run": LONE_SURROGATE}),
    ("classify", {LONE_SURROGATE: 1}),
    ("translate", {"q": LONE_SURROGATE, "target": "target"}),
    ("translating/sentences", {"sentences": [{"text": "eins"}], "glossary": LONE_SURROGATE}),
]


@pytest.mark.parametrize(("path", "body"), WITH_TEXTS)
def test_lone_surrogate_is_refused_everywhere(
    call_api: ApiCall, server: RunningServer, path: str, body: object
) -> None:
    assert "surrogate" in refusal_message(call_api(path, body))
    raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert ask(server.address, f"/{path}", "POST", raw).status == 400


def test_escaped_surrogate_pair_is_accepted(call_api: ApiCall) -> None:
    assert call_api("classify", {"texts": "🦊"})[0] == 200  # sent as two \u escapes


@pytest.mark.parametrize(
    ("path", "body", "about"),
    [
        ("classify", {}, "texts: is missing"),
        ("classify", {"texts": 5}, "texts: must be a string or a list"),
        ("classify", {"texts": ["a", 5]}, "texts.1: must be a string"),
        ("classify", {"texts": []}, "texts: must not be empty"),
        ("classify", {"texts": ["a"] * 10_001}, "texts: must have at most 10000 entries"),
        ("classify", {"text": "a"}, "there is no field 'text'"),
        ("classify", [], "must be an object"),
        ("v1/completions", {"prompt": {}}, "prompt: must be a string or a list"),
        ("v1/completions", {"prompt": [["a"]]}, "prompt.0.0: must be a whole number"),
        ("v1/completions", {"prompt": ["a"] * 10_001}, "prompt: must have at most 10000 entries"),
        ("v1/completions", {"prompt": "a", "stop": ["a"] * 17}, "stop: must have at most 16 entries"),
        ("v1/completions", {"temperature": 9}, "temperature: must be at most 2"),
        ("translating/sentences", {"sentences": [{}]}, "sentences.0.text: is missing"),
        ("translating/sentences", {"sentences": [1] * 9000}, "sentences.0: must be an object"),
        ("inspect/tokens", {"side": "left"}, "side: must be 'source' or 'target'"),
        ("write", {"settings": {"temprature": 1}}, "did you mean 'temperature'"),
        ("next", {"text": "a", "tokens": [10**6]}, "there is no token 1000000"),
        ("classify", {str(n): n for n in range(9000)}, "there is no field '0'"),
        ("v1/completions", {"logit_bias": {str(n): "x" for n in range(9000)}}, "logit_bias: must have at most 300"),
    ],
)
def test_refusals_name_the_field_and_the_reason(call_api: ApiCall, path: str, body: object, about: str) -> None:
    assert about in refusal_message(call_api(path, body))


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/plain", "application/json; x", "é;"])
@pytest.mark.parametrize("path", ["/v1/completions", "/translate"])
def test_json_is_read_whatever_its_content_type(server: RunningServer, kind: str, path: str) -> None:
    body = b'{"prompt": "It", "max_tokens": 1}' if path.startswith("/v1") else b'{"q": "eins", "target": "target"}'
    headers = {"Content_Type": kind} if kind else {}
    assert ask(server.address, path, "POST", body, **headers).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/edits", 404),
        ("POST", "/nothing", 404),
        ("DELETE", "/nothing", 404),
        ("GET", "/nothing", 404),
        ("POST", "/", 404),
        ("POST", "/views/tokens.js", 404),
        ("DELETE", "/views/nothing.js", 404),
        ("GET", "/views/tokens.js", 200),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/runs", 405),
        ("GET", "/", 200),
    ],
)
def test_missing_route_and_wrong_method_have_different_statuses(
    server: RunningServer, method: str, path: str, status: int
) -> None:
    found = ask(server.address, path, method, b"{}" if method == "POST" else None)
    assert found.status == status
    if status == 405:
        assert found.headers["allow"]
    if path.startswith("/v1") and status == 404:
        assert "/v1/completions" in found.text


def test_other_requests_run_between_steps_of_long_work(server: RunningServer) -> None:
    worker, order = server.registry.get("writer"), list[str]()
    is_asked = threading.Event()

    async def both() -> str:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def steps() -> Iterator[None]:
            for number in range(4):
                order.append(f"step {number}")
                loop.call_soon_threadsafe(started.set)
                assert is_asked.wait(60)
                yield
            return "done"

        long = asyncio.create_task(worker.run_in_steps(steps))
        await started.wait()
        other = asyncio.create_task(worker.run(lambda: order.append("other")))
        await asyncio.sleep(0)  # lets the other request join the queue
        is_asked.set()
        await other
        return await long

    with ThreadPoolExecutor() as pool:  # this thread may have an event loop, of the browser in other tests
        assert pool.submit(asyncio.run, both()).result() == "done"
    assert order[0] == "step 0" and order.index("other") < order.index("step 3")


def test_scoring_yields_the_models_thread_between_steps(
    server: RunningServer, call_api: ApiCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspector, text = server.copies.get("writer").inspector, "It was a day. " * 60
    n_steps = len(list(inspector.token_scores_in_steps(text)))
    assert n_steps > 20  # a context of 48 bytes, so about 35 windows of two steps each
    monkeypatch.setattr(Inspector, "token_scores", None)  # the variant without steps must not be used
    status, answer = call_api("score", {"text": text})
    assert status == 200 and len(answer["tokens"]) == len(text)


@pytest.mark.parametrize("origin", ["http://[", "http://]", "//", "http://[::1", "\xff", "http://a b", ""])
def test_malformed_origin_is_refused(server: RunningServer, origin: str) -> None:
    assert ask(server.address, "/health", Origin=origin).status == 403


@pytest.mark.parametrize("key", ["", " ", "\t\n", "\u2003"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_blank_key_is_refused(key: str, host: str) -> None:
    with pytest.raises(ValueError, match="blank"):
        ServingSettings(host=host, api_key=key)


@pytest.mark.parametrize(
    "key", ["a:b c", "schlüssel", "ключ 🗝", "'\"\\%s{}", "a\nb", " padded ", "x" * 500, "bytes\udcff"]
)
def test_key_may_contain_any_characters(start_server: StartServer, key: str) -> None:
    address = start_server(api_key=key).address
    sent = key.encode("utf-8", "surrogateescape")
    basic = base64.b64encode(b"anybody:" + sent).decode()
    assert ask(address, "/v1/models", Authorization=f"Basic {basic}").status == 200
    assert ask(address, "/v1/models", Authorization=f"Basic {basic[:-8]}").status == 401
    if "\n" in key:
        return
    for spelled in {sent.decode("latin-1"), key if key.isascii() or key == "schlüssel" else sent.decode("latin-1")}:
        assert ask(address, "/v1/models", Authorization=f"Bearer {spelled}").status == 200
        assert ask(address, "/v1/models", X_API_Key=spelled).status == 200
    assert ask(address, "/v1/models", X_API_Key=sent.decode("latin-1") + "x").status == 401
