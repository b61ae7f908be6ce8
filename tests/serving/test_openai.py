"""OpenAI's own client against a live server."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import penwright
from penwright.config import DecodingSettings, ModelSettings
from penwright.generation.generator import Generator
from penwright.model import make_model
from penwright.serving import completions, writing
from penwright.serving.model_worker import ModelWorker
from penwright.tokenizers.training import train_tokenizer

from .conftest import SETTINGS, ApiCall, RunningServer, StartServer, call, eventually

openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
CHAT = SETTINGS | {"tokenizer": {"type": "bytes"}}
BASE = {"model": "writer", "prompt": "It was", "max_tokens": 12, "seed": 3}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator["openai.OpenAI"]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def generator(server: RunningServer) -> Generator:
    return server.copies.get("writer").generator


def test_completions_equal_the_librarys(client: "openai.OpenAI", generator: Generator) -> None:
    found = client.completions.create(**BASE, n=3, temperature=0.7)
    settings = DecodingSettings(max_new_tokens=12, seed=3, temperature=0.7)
    assert [choice.text for choice in found.choices] == [c.text for c in generator.generate(["It was"] * 3, settings)]
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    n_prompt = len(generator.tokenizer.encode("It was"))
    assert found.usage.prompt_tokens == n_prompt
    assert found.usage.total_tokens == n_prompt + found.usage.completion_tokens


def test_stream_adds_up_to_the_whole_completion(client: "openai.OpenAI") -> None:
    parameters = {**BASE, "n": 2, "echo": True, "logprobs": 2}
    whole = client.completions.create(**parameters)
    pieces = list(client.completions.create(**parameters, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        mine = [c for piece in pieces for c in piece.choices if c.index == choice.index]
        assert "".join(c.text for c in mine) == choice.text
        assert [c.finish_reason for c in mine][-1] == choice.finish_reason
        assert [v for c in mine if c.logprobs for v in c.logprobs.token_logprobs] == pytest.approx(
            choice.logprobs.token_logprobs
        )
    assert pieces[-1].usage == whole.usage
    assert len({piece.id for piece in pieces}) == 1


def test_logprobs_have_correct_text_offsets(client: "openai.OpenAI") -> None:
    (choice,) = client.completions.create(**BASE, logprobs=4, echo=True).choices
    found = choice.logprobs
    assert found.text_offset[0] == 0
    whole = [pair for pair in zip(found.tokens, found.text_offset, strict=True) if "\\x" not in pair[0]]
    assert all(choice.text.startswith(token, at) for token, at in whole)  # except bytes that are not a whole character
    for token, value, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == pytest.approx(value, abs=1e-4)
        assert value <= max(top.values()) + 1e-6 <= 1e-5
        assert 4 <= len(top) <= 5


def test_space_that_a_tokenizer_adds_shifts_no_offset(server: RunningServer) -> None:
    tokenizer = train_tokenizer("bpe", ["It was a cat.\n"] * 9, 280, prefix_space=True)
    model = make_model("generate", tokenizer.vocab_size, ModelSettings(**SETTINGS["model"]))
    worker = ModelWorker("spaced", server.registry.get("writer").opened, Generator(model, tokenizer))
    body = completions.CompletionRequest(prompt="It was a cat", echo=True, logprobs=0, max_tokens=2, seed=1)

    async def complete() -> completions.CompletionChoice:
        job = completions.CompletionJob(body, worker, worker.limits)
        await job.prepare()
        _ = [piece async for piece in job.stream()]
        return job.choices[0].whole()

    with ThreadPoolExecutor(1) as thread:  # other tests' browsers keep an event loop running in this thread
        choice = thread.submit(asyncio.run, complete()).result()
    worker.close()
    assert choice.logprobs is not None
    (_, first), *others = zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True)
    assert first == 0
    assert all(choice.text.startswith(token, at) for token, at in others if "\\x" not in token)


def test_echo_with_zero_max_tokens_scores_the_prompt(client: "openai.OpenAI") -> None:
    (choice,) = client.completions.create(**{**BASE, "max_tokens": 0}, echo=True, logprobs=0).choices
    assert choice.text == "It was" and choice.logprobs.top_logprobs is None
    (longer,) = client.completions.create(
        **{**BASE, "prompt": "It was", "max_tokens": 1}, echo=True, logprobs=0
    ).choices
    assert longer.logprobs.token_logprobs[: len(choice.logprobs.tokens)] == choice.logprobs.token_logprobs


def test_echo_of_a_model_without_start_token_scores_all_tokens_but_the_first(
    client: "openai.OpenAI", generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(generator.tokenizer), "begins", False)
    ids = generator.tokenizer.encode("It was")
    with torch.inference_mode():
        log_probs = generator.model(torch.tensor([ids]))[0].log_softmax(-1)
    expected = log_probs[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    (choice,) = client.completions.create(**{**BASE, "max_tokens": 0}, echo=True, logprobs=2).choices
    assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    (short,) = client.completions.create(**{**BASE, "prompt": "I", "max_tokens": 0}, echo=True, logprobs=0).choices
    assert short.logprobs.token_logprobs == [None] and short.logprobs.tokens == ["I"]


def test_screen_sends_all_tokens_to_a_model_without_start_token(
    server: RunningServer, generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(generator.tokenizer), "begins", False)
    worker, body = server.registry.get("writer"), writing.PromptRequest(text="It was", tokens=[65])
    with ThreadPoolExecutor(1) as thread:  # other tests' browsers keep an event loop running in this thread
        request = thread.submit(asyncio.run, writing._request(worker, body, worker.limits)).result()
    assert list(request.prompt_tokens) == [*generator.tokenizer.encode("It was"), 65]


def test_model_with_a_slash_in_its_name_is_found(
    client: "openai.OpenAI", server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = server.registry.get("writer")
    monkeypatch.setattr(server.registry, "_workers", {"home/writer": worker})
    monkeypatch.setattr(worker, "name", "home/writer")
    assert client.models.retrieve("home/writer").id == "home/writer"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("home/other")


def test_echoed_prompts_are_scored_once_each(call_api: ApiCall, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[object] = []
    score = completions._score
    monkeypatch.setattr(completions, "_score", lambda *given: scored.append(given[1]) or score(*given))
    body = {**BASE, "prompt": ["It was", "It is", "It was"], "n": 3, "echo": True, "logprobs": 1, "max_tokens": 0}
    status, found = call_api("v1/completions", body)
    assert status == 200
    assert len(scored) == 2
    same, other = found["choices"][0], found["choices"][3]
    assert [each["logprobs"] == same["logprobs"] for each in found["choices"]] == [True] * 3 + [False] * 3 + [True] * 3
    assert other["text"] == "It is"


def test_deadline_applies_to_all_prompts_of_a_request(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = completions._score

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return (yield from score(*arguments))

    monkeypatch.setattr(completions, "_score", slow)
    running = start_server(deadline_seconds=1.0)
    body = {"prompt": [f"It was {n}" for n in range(5)], "echo": True, "logprobs": 1, "max_tokens": 0}
    assert call(running, "v1/completions", body)[0] == 504


def test_stop_string_is_never_sent(client: "openai.OpenAI") -> None:
    free = client.completions.create(**{**BASE, "max_tokens": 40}).choices[0].text
    stop = free[len(free) // 2 :][:2]
    (stopped,) = client.completions.create(**{**BASE, "max_tokens": 40}, stop=["never", stop], logprobs=0).choices
    assert stopped.finish_reason == "stop" and stopped.text == free[: free.index(stop)]
    assert all(at < len(stopped.text) for at in stopped.logprobs.text_offset)


def test_prompts_may_be_lists_or_token_ids(client: "openai.OpenAI", generator: Generator) -> None:
    texts = ["It was", "the rain"]
    ids = [generator.tokenizer.encode(text) for text in texts]
    of_texts, of_ids = (client.completions.create(**{**BASE, "prompt": prompt}) for prompt in (texts, ids))
    assert [c.text for c in of_texts.choices] == [c.text for c in of_ids.choices]
    assert client.completions.create(**{**BASE, "prompt": ids[0]}).choices[0].text == of_ids.choices[0].text


def test_logit_bias_of_minus_100_forbids_a_token(client: "openai.OpenAI", generator: Generator) -> None:
    first = generator.tokenizer.encode(client.completions.create(**BASE, temperature=0).choices[0].text)[0]
    other = client.completions.create(**BASE, temperature=0, logit_bias={str(first): -100}).choices[0].text
    assert generator.tokenizer.encode(other)[0] != first


def test_completions_without_seed_differ(client: "openai.OpenAI") -> None:
    parameters = {**BASE, "seed": None, "max_tokens": 40}
    assert len({client.completions.create(**parameters).choices[0].text for _ in range(3)}) > 1


def test_models_are_listed(client: "openai.OpenAI") -> None:
    assert [model.id for model in client.models.list()] == ["writer", "translator", "classifier"]
    assert client.models.retrieve("writer").object == "model"


@pytest.mark.parametrize(
    ("changes", "error", "about"),
    [
        ({"model": "nobody"}, "NotFoundError", "nobody"),
        ({"model": "translator"}, "BadRequestError", "is a translator"),
        ({"n": 10**6}, "BadRequestError", "max_n"),
        ({"max_tokens": 10**6}, "BadRequestError", "max_new_tokens"),
        ({"max_tokens": 0}, "BadRequestError", "echo"),
        ({"prompt": []}, "BadRequestError", "empty"),
        ({"prompt": [10**6]}, "BadRequestError", "no token 1000000"),
        ({"prompt": "long " * 2000}, "APIStatusError", "max_characters"),
        ({"logprobs": 10**5}, "BadRequestError", "logprobs"),
        ({"logit_bias": {"x": 1}}, "BadRequestError", "logit_bias: there is no token 'x'"),
        ({"suffix": "end"}, "BadRequestError", "suffix"),
        ({"temperature": 9.0}, "BadRequestError", "temperature"),
    ],
)
def test_invalid_request_is_refused_with_a_reason(
    client: "openai.OpenAI", changes: dict[str, object], error: str, about: str
) -> None:
    with pytest.raises(getattr(openai, error), match=about) as caught:
        client.completions.create(**{**BASE, **changes})
    assert 400 <= caught.value.status_code < 500
    assert {"message", "type", "param", "code"} <= set(caught.value.body)


def test_disconnecting_client_stops_generation(client: "openai.OpenAI", server: RunningServer) -> None:
    worker = server.registry.get("writer")
    before, left = worker.completion_worker.n_tokens, worker.completion_worker.n_abandoned
    stream = client.completions.create(**{**BASE, "max_tokens": 4000, "stop": None}, n=4, stream=True)
    next(stream)
    stream.close()
    assert eventually(lambda: not worker.completion_worker.batch.busy and worker.n_inside == 0)
    assert worker.completion_worker.n_tokens - before < 4 * 4000
    assert worker.completion_worker.n_abandoned > left


def test_client_retries_until_the_queue_has_room(start_server: StartServer) -> None:
    full_server = start_server(max_waiting=3)
    address = f"{full_server.address}/v1"
    with openai.OpenAI(base_url=address, api_key="none", max_retries=4) as retrying:
        open_stream = retrying.completions.create(**{**BASE, "max_tokens": 4000}, n=3, stream=True)
        next(open_stream)
        with pytest.raises(openai.RateLimitError):
            retrying.with_options(max_retries=0).completions.create(**BASE)
        threading.Timer(0.3, open_stream.close).start()
        assert retrying.completions.create(**BASE).choices[0].text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "It was \ud800"},
        {"prompt": ["It was", "\udfff day"]},
        {"stop": "\udc00"},
        {"suffix": "\ud83e"},
        {"model": "writer\ud800"},
        {"logit_bias": {"\ud800": 1}},
    ],
)
def test_lone_surrogate_is_a_client_error(call_api: ApiCall, changes: dict[str, object], stream: bool) -> None:
    status, found = call_api("v1/completions", {**BASE, **changes, "stream": stream})
    assert 400 <= status < 500 and found["error"]["message"]


def test_escaped_surrogate_pair_is_one_character(call_api: ApiCall) -> None:
    halves, whole = (
        call_api("v1/completions", {**BASE, "prompt": text, "echo": True}) for text in ("\ud83e\udd8a", "🦊")
    )
    assert halves[0] == 200 and halves[1]["choices"] == whole[1]["choices"]


def test_same_seed_gives_same_text_alone_and_under_load(client: "openai.OpenAI") -> None:
    requests = [
        {
            **BASE,
            "prompt": "It was day " * (n % 5),
            "seed": n,
            "max_tokens": 5 + 3 * n,
            "temperature": [0.7, 1.0][n % 2],
        }
        for n in range(12)
    ]
    alone = [client.completions.create(**each).choices[0].text for each in requests]
    together: dict[int, str] = {}

    def ask(number: int) -> None:
        together[number] = client.completions.create(**requests[number]).choices[0].text

    threads = [threading.Thread(target=ask, args=[number]) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(len(requests))] == alone


@pytest.fixture(scope="module")
def chat_client(
    runs: Path, tmp_path_factory: pytest.TempPathFactory, start_server: StartServer
) -> Iterator["openai.OpenAI"]:
    """A client of a server with a model trained on prompts and answers."""
    from penwright.serving.model_worker import ModelWorker

    folder = tmp_path_factory.mktemp("chat")
    lines = [json.dumps({"prompt": f"Say {n}", "completion": f"It is {n}."}) + "\n" for n in range(200)]
    (folder / "chat.jsonl").write_text("".join(lines), encoding="utf-8")
    penwright.train(folder / "chat.jsonl", run=folder / "chat", settings=CHAT, quiet=True)
    running = start_server(max_n=4)
    running.registry._workers["chat"] = ModelWorker.load(folder / "chat")
    with openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0) as client:
        yield client


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say 1"},
    {"role": "assistant", "content": "It is 1."},
    {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "2"}]},
]


def test_streamed_chat_answer_equals_the_whole_answer(chat_client: "openai.OpenAI") -> None:
    parameters = {
        "model": "chat",
        "messages": CONVERSATION,
        "max_tokens": 8,
        "seed": 5,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
    }
    whole = chat_client.chat.completions.create(**parameters)
    assert [each.message.role for each in whole.choices] == ["assistant", "assistant"]
    assert whole.usage.completion_tokens == sum(len(each.logprobs.content) for each in whole.choices)
    events = list(
        chat_client.chat.completions.create(**parameters, stream=True, stream_options={"include_usage": True})
    )
    for choice in whole.choices:
        pieces = [piece for event in events for piece in event.choices if piece.index == choice.index]
        assert "".join(piece.delta.content for piece in pieces) == choice.message.content
        assert [piece.delta.role for piece in pieces] == ["assistant", *[None] * (len(pieces) - 1)]
        assert pieces[-1].finish_reason == choice.finish_reason
    assert events[-1].usage == whole.usage


def test_stop_string_ends_a_chat_answer(chat_client: "openai.OpenAI") -> None:
    parameters = {
        "messages": CONVERSATION,
        "max_completion_tokens": 20,
        "seed": 5,
    }  # without a model, the first one that can chat answers
    text = chat_client.chat.completions.create(model="chat", **parameters).choices[0].message.content
    cut = chat_client.chat.completions.create(model="chat", **parameters, stop=text[3:5]).choices[0]
    assert (cut.message.content, cut.finish_reason) == (text[: text.index(text[3:5])].rstrip(" "), "stop")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"messages": []}, "must not be empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "text"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools are not supported"),
        ({"model": "writer"}, "was not trained to answer"),
        ({"model": "translator"}, "needs a writer"),
        ({"n": 9}, "at most 4"),
    ],
)
def test_invalid_chat_request_is_refused(
    chat_client: "openai.OpenAI", changes: dict[str, object], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        chat_client.chat.completions.create(**{"model": "chat", "messages": CONVERSATION, **changes})


@pytest.mark.parametrize("name", ["writer", "classifier"])
def test_embeddings_equal_the_librarys(client: "openai.OpenAI", server: RunningServer, name: str) -> None:
    texts = ["It was a fine film", "day 7", "x" * 3000]
    application = server.copies.get(name).application
    assert application.kind != "translator"
    expected = application.embed(texts).tolist()
    for options in ({}, {"encoding_format": "float"}):  # by default, the client requests base64
        found = client.embeddings.create(model=name, input=texts, **options)
        assert [each.index for each in found.data] == [0, 1, 2] and found.model == name
        for each, vector in zip(found.data, expected, strict=True):
            assert each.embedding == pytest.approx(vector, abs=1e-5)
        assert found.usage.prompt_tokens == sum(len(application.tokenizer.encode(text)) for text in texts)
    assert client.embeddings.create(model=name, input=texts[1]).data[0].embedding == pytest.approx(
        expected[1], abs=1e-5
    )


def test_invalid_embeddings_request_is_refused(client: "openai.OpenAI") -> None:
    with pytest.raises(openai.BadRequestError, match="is a translator"):
        client.embeddings.create(model="translator", input="eins")
    with pytest.raises(openai.BadRequestError, match="dimensions is 7"):
        client.embeddings.create(model="classifier", input="a film", dimensions=7)
    with pytest.raises(openai.APIStatusError, match="max_texts"):
        client.embeddings.create(model="classifier", input=["a film"] * 200)
