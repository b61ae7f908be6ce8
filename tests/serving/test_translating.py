"""The routes of the Translate screen: the library's own figures, word by word."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import exp
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import penwright
from penwright.config import merge
from penwright.decoding.batches import TargetBatch
from penwright.serving.model_worker import ModelWorker
from penwright.serving.translation_fields import check_sentence
from penwright.translation.alignment import Aligner, pieces_of_words
from penwright.translation.documents import translated
from penwright.translation.translator import Translator

from .conftest import SETTINGS


@pytest.fixture
def translator(server: Any) -> Translator:
    return server.copies.get("translator").translator


@pytest.fixture
def call_translating(call_api: Any) -> Callable[..., Any]:
    """A function that returns the answer of a route, which must succeed."""

    def ask(path: str, **body: object) -> Any:
        status, found = call_api(f"translating/{path}", body)
        assert status == 200, found
        return found

    return ask


def join_words(words: list[dict[str, str]]) -> str:
    return "".join(word["before"] + word["text"] for word in words)


def test_translations_and_probabilities_equal_the_librarys(call_translating: Any, translator: Translator) -> None:
    texts = ["eins zwei", "drei 🦊  vier", ""]
    found = call_translating("sentences", sentences=[{"text": text} for text in texts])["sentences"]
    expected = translator.translate(texts, n_best=5)
    for one, other in zip(found, expected, strict=True):
        assert [way["text"] for way in one["ways"]] == [candidate.text for candidate in other.candidates]
        assert join_words(one["source"]) == other.source.rstrip()
        for way, candidate in zip(one["ways"], other.candidates, strict=True):
            assert join_words(way["words"]) == candidate.text.rstrip()
            known = [word["probability"] for word in way["words"]]
            if known and None not in known:
                end = candidate.pieces[-1].log_prob if len(candidate.pieces[-1].text) == 0 else 0.0
                product = exp(candidate.log_prob - end)
                for each in known:
                    product /= each
                assert product == pytest.approx(1, rel=1e-6), "the words' probabilities make up the text's"
    assert found[2]["ways"][0]["text"] == ""


def dense_weights(found: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return the links of an answer as a matrix."""
    weights = np.zeros(shape)
    for target, source, weight in found["links"]:
        weights[target, source] = weight
    return weights


def test_word_links_equal_the_aligners_weights(call_translating: Any, translator: Translator) -> None:
    (found,) = call_translating("sentences", sentences=[{"text": "eins zwei drei"}])["sentences"]
    for way in found["ways"]:
        pair = ("eins zwei drei", way["text"])
        (weights,) = Aligner(translator.model, translator.tokenizer, None).weights([pair])
        links = call_translating("links", text=pair[0], target=pair[1])
        np.testing.assert_allclose(dense_weights(links, weights.shape), np.where(weights < 0.01, 0, weights), atol=1e-3)
        assert weights.shape[0] == len(way["words"]) and links["aligned_by"] == "the mean of all heads"


@pytest.mark.parametrize("route", ["sentences", "words", "tree", "links"])
@pytest.mark.parametrize("text", ["eins " * 301, "a" * 3001, "一" * 301])
def test_oversized_sentence_is_refused(call_api: Any, route: str, text: str) -> None:
    body = {"sentences": [{"text": text}]} if route == "sentences" else {"text": text}
    status, found = call_api(f"translating/{route}", body | ({"target": "one"} if route == "links" else {}))
    assert status == 413 and "/translating/cut" in found["error"]["message"]


@pytest.mark.parametrize("text", ["eins " * 900, "a" * 4900, "一" * 1500, "a " * 2400, "eins\n" * 900])
def test_cut_sentences_are_short_enough_to_translate(text: str, call_translating: Any) -> None:
    (paragraph, *others) = call_translating("cut", text=text)["paragraphs"]
    found = [sentence["text"] for each in [paragraph, *others] for sentence in each["sentences"]]
    assert "".join("".join(found).split()) == "".join(text.split())
    for each in found:
        check_sentence(each, "", "it")


def test_answer_size_is_linear_in_sentence_length(call_api: Any, call_translating: Any) -> None:
    def size(n_words: int) -> int:
        sentence = {"text": "eins " * n_words, "prefix": "one two " * n_words}
        return len(json.dumps(call_translating("sentences", sentences=[sentence], beam_size=1)))

    short, long = size(3), size(12)
    assert long < 6 * short
    status, found = call_api("translating/sentences", {"sentences": [{"text": "eins zwei " * 100}] * 100})
    assert status == 413 and "max_characters" in str(found)


def test_translation_begins_with_the_given_prefix(call_translating: Any, translator: Translator) -> None:
    (found,) = call_translating("sentences", sentences=[{"text": "eins zwei", "prefix": "four "}])["sentences"]
    assert found["ways"][0]["text"] == translator.translate(["eins zwei"], prefixes="four ", n_best=5)[0].text
    assert found["ways"][0]["words"][0]["text"].startswith("four")


def test_alternative_words_equal_the_librarys(call_translating: Any, translator: Translator) -> None:
    found = call_translating("words", text="eins zwei", prefix="one ", n=4)["words"]
    expected = translator.alternatives("eins zwei", "one ", 4)
    assert [(each["word"], each["text"]) for each in found] == [(each.word, each.text) for each in expected]
    assert [each["probability"] for each in found] == pytest.approx([exp(each.log_prob) for each in expected])


def test_terms_are_located_among_the_words(call_translating: Any) -> None:
    body = {"sentences": [{"text": "eins zwei 7,5 km"}], "glossary": "zwei\tcouple"}
    (found,) = call_translating("sentences", **body)["sentences"]
    way = found["ways"][0]
    terms = {term["source"]: term for term in way["terms"]}
    assert terms["zwei"]["state"] == "forced" and terms["zwei"]["source_words"] == [1]
    words = [way["words"][place]["text"].lower() for place in terms["zwei"]["target_words"]]
    assert any("couple" in word for word in words)
    assert terms["7,5 km"]["protected"] and terms["7,5 km"]["target"] == "7,5 km"


def test_wrong_glossary_is_refused_with_its_line(call_api: Any) -> None:
    body = {"sentences": [{"text": "eins"}], "glossary": "eins\tone\nzwei"}
    status, found = call_api("translating/sentences", body)
    assert status == 400 and "the glossary, line 2 has no tab" in str(found)


def test_beam_tree_contains_the_best_candidate(call_translating: Any, translator: Translator) -> None:
    nodes = call_translating("tree", text="eins zwei", beam_size=3)["nodes"]
    candidate = translator.translate(["eins zwei"], beam_size=3, n_best=3)[0].candidates[0]
    ends = [node for node in nodes if node["final"]] or [node for node in nodes if node["step"] == nodes[-1]["step"]]
    assert min(abs(end["log_prob"] - candidate.log_prob) for end in ends) < 1e-6


@pytest.mark.parametrize("text", ["eins\nzwei", "eins zwei " * 60])
def test_tree_of_more_than_one_sentence_is_refused(call_api: Any, text: str) -> None:
    status, found = call_api("translating/tree", {"text": text})
    assert status == 400 and "single sentence" in str(found)


@pytest.mark.parametrize(
    "document",
    ["", "\n\n", "Eins. Zwei!\n\n  - drei vier\n    fünf", "a  b \r\n\u2028 c", f"{'wort ' * 30}\n{'wort ' * 12}"],
)
def test_cut_pieces_join_to_the_document(call_translating: Any, document: str) -> None:
    found = call_translating("cut", text=document)["paragraphs"]
    cores = [[sentence["text"] for sentence in paragraph["sentences"]] for paragraph in found]
    seen: list[str] = []
    translated(document.replace("\r\n", "\n"), "en", lambda texts: (seen.extend(texts), list(texts))[1])
    assert [core for group in cores for core in group] == seen
    flat = "\n".join(
        paragraph["first"] + "".join(s["before"] + s["text"] + s["after"] for s in paragraph["sentences"])
        for paragraph in found
    )
    assert flat.split() == document.split()


def test_oversized_document_is_refused(call_api: Any) -> None:
    status, found = call_api("translating/cut", {"text": "a" * 50_001})
    assert status == 413 and "max_characters" in str(found)


@pytest.fixture(scope="module")
def chinese(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A barely trained translator into Chinese, served beside the others."""
    folder = tmp_path_factory.mktemp("chinese")
    words = {"eins": "一", "zwei": "二", "drei": "三", "vier": "四", "hund": "狗", "haus": "房子"}
    lines = [f"{a} {b} {c}\t{words[a]}{words[b]}{words[c]}。\n" for a in words for b in words for c in words]
    (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    settings = merge(SETTINGS, {"tokenizer": {"type": "characters"}})
    penwright.train(folder / "pairs.tsv", run=folder / "run", settings=settings, quiet=True)
    server.registry._workers["chinese"] = worker = ModelWorker.load(
        folder / "run", "chinese", server.registry.get("writer").limits
    )
    yield worker
    del server.registry._workers["chinese"]
    worker.close()


def test_words_of_an_unspaced_script_are_scored_one_by_one(call_translating: Any, chinese: Any) -> None:
    translator = chinese.translator
    sentence = {"text": "eins hund vier", "prefix": "一狗四。"}
    (found,) = call_translating("sentences", model="chinese", sentences=[sentence])["sentences"]
    way = found["ways"][0]
    best = translator.translate(["eins hund vier"], n_best=5, prefixes="一狗四。")[0].candidates[0]
    assert way["text"] == best.text and [word["text"] for word in way["words"][:4]] == ["一", "狗", "四", "。"]
    probabilities = [exp(piece.log_prob) for piece in best.pieces[:4]]
    assert [word["probability"] for word in way["words"][:4]] == pytest.approx(probabilities)
    tokenizer = translator.tokenizer
    aligner = Aligner(translator.model, tokenizer, None, lambda text: pieces_of_words(text, tokenizer))
    (weights,) = aligner.weights([("eins hund vier", "一狗四。")])
    assert weights.shape == (4, 3) and (weights.sum(1) > 0.2).all()
    links = call_translating("links", model="chinese", text="eins hund vier", target="一狗四。")
    np.testing.assert_allclose(dense_weights(links, (4, 3)), np.where(weights < 0.01, 0, weights), atol=1e-3)


def test_alternatives_in_an_unspaced_script_add_no_space(call_translating: Any, chinese: Any) -> None:
    text = "eins hund vier"
    others = call_translating("words", model="chinese", text=text, prefix="一", n=20)["words"]
    han = [each for each in others if each["word"] in set("一二三四狗房子。")]
    assert len(han) > 2
    assert all(each["prefix"] == "一" + each["word"] for each in han)
    assert all(each["text"].startswith(each["prefix"].rstrip()) for each in others)
    assert all(each["prefix"].endswith(f"{each['word']} ") for each in others if each["word"].isascii())
    again = {"text": text, "prefix": han[1]["prefix"]}
    (found,) = call_translating("sentences", model="chinese", sentences=[again])["sentences"]
    assert found["ways"][0]["text"].startswith(han[1]["prefix"])
    assert [word["text"] for word in found["ways"][0]["words"]][:2] == list(han[1]["prefix"])


def test_source_words_are_listed_with_each_sentence(call_translating: Any, chinese: Any) -> None:
    found = call_translating("cut", text="eins zwei. drei vier.")["paragraphs"][0]["sentences"]
    assert [sentence["words"] for sentence in found] == [["eins", "zwei."], ["drei", "vier."]]
    found = call_translating("cut", model="chinese", text="狗 eins房子")["paragraphs"][0]["sentences"]
    assert [sentence["words"] for sentence in found] == [["狗", "eins", "房", "子"]]


def test_disconnecting_client_frees_the_model(call_api: Any, call_translating: Any) -> None:
    long = {"sentences": [{"text": f"eins zwei drei {n}"} for n in range(120)], "beam_size": 16}
    for _ in range(5):
        with pytest.raises(TimeoutError):
            call_api("translating/sentences", long, timeout=0.05)
    assert call_translating("sentences", sentences=[{"text": "eins"}])["sentences"][0]["ways"]


def test_disconnected_clients_rows_leave_the_shared_batch(
    server: Any, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, original_step = server.registry.get("translator"), TargetBatch.step
    started, client_left, rows = threading.Event(), threading.Event(), []

    def step(self: TargetBatch, tokens: Tensor) -> Tensor:
        rows.append(len(tokens))
        if len(rows) == 2:
            started.set()
            assert client_left.wait(10)
        return original_step(self, tokens)

    async def ask_and_leave() -> str:
        stays = asyncio.create_task(worker.translate(["eins zwei drei"]))
        leaves = asyncio.create_task(worker.translate(["vier fünf sechs"]))
        await asyncio.to_thread(started.wait, 10)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        client_left.set()
        (found,) = await stays
        return str(found.text)

    expected = translator.translate(["eins zwei drei"])[0].text
    monkeypatch.setattr(TargetBatch, "step", step)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, ask_and_leave()).result() == expected
    beam_size = translator.defaults.beam_size
    assert rows[:3] == [2, 2 * beam_size, beam_size]
