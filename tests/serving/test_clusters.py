"""The route and the screen of clusters and near-duplicates."""

import json
import threading
from pathlib import Path
from time import sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from penwright.classification.clusters import find_clusters, near_duplicates
from penwright.serving import clusters

from .conftest import eventually

TEXTS = [f"a {word} film number {n} {'xyzw'[n % 4] * (n + 3)}" for n in range(12) for word in ("fine", "dull")]


def events_of(address: str, body: object) -> list[tuple[str, Any]]:
    request = Request(f"{address}/clusters", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        blocks = answer.read().decode().strip().split("\n\n")
    lines = [block.split("\n") for block in blocks]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


def test_answer_is_the_librarys(server: Any) -> None:
    texts = [*TEXTS[:10], " ", *TEXTS[10:], TEXTS[4]]
    events = events_of(server.address, {"model": "classifier", "texts": texts, "n": 3})
    assert [name for name, _ in events] == ["progress", "done"]
    answer, given = events[-1][1], [text for text in texts if text.strip()]
    assert answer["texts"] == given
    vectors = server.copies.get("classifier").classifier.embed(given).numpy()
    expected = find_clusters(vectors, given, 3)
    assert [tuple(each["rows"]) for each in answer["clusters"]] == [each.rows for each in expected]
    assert [tuple(each["words"]) for each in answer["clusters"]] == [each.words for each in expected]
    pairs = [(each["row"], each["earlier"]) for each in answer["duplicates"]]
    assert pairs == [(each.row, each.earlier) for each in near_duplicates(vectors, given)] and (24, 4) in pairs
    again = events_of(server.address, {"model": "classifier", "texts": texts, "n": 2})
    assert [name for name, _ in again] == ["done"], "the vectors of the latest texts are kept"


@pytest.mark.parametrize("kind", ["classifier", "writer"])
def test_held_out_texts_are_compared_without_texts(server: Any, runs: Path, kind: str) -> None:
    answer = events_of(server.address, {"model": kind})[-1][1]
    source = (runs / f"{kind}.{'csv' if kind == 'classifier' else 'txt'}").read_text("utf-8")
    assert len(answer["texts"]) >= 10 and all(text in source for text in answer["texts"])
    assert sorted(row for each in answer["clusters"] for row in each["rows"]) == [*range(len(answer["texts"]))]


def test_held_out_texts_are_read_once_and_not_on_the_models_thread(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, read = [], clusters.open_corpus_of
    monkeypatch.setattr(
        clusters, "open_corpus_of", lambda run: threads.append(threading.current_thread().name) or read(run)
    )
    address = start_server(max_texts=11).address
    for n in (2, 3):
        assert len(events_of(address, {"model": "classifier", "n": n})[-1][1]["texts"]) == 11, "the limit is kept"
    assert len(threads) == 1 and threads[0].startswith("penwright-build-")
    with pytest.raises(HTTPError) as refused:
        events_of(address, {"model": "classifier", "texts": TEXTS})
    assert refused.value.code == 413 and b"the limit is 11" in refused.value.read()


def test_lines_are_cut_and_joined_across_chunks() -> None:
    chunks = ["a", "b\n \nc", "d\n" + "e" * 900, *["f"] * 5000, "\n\ng"]
    assert [*clusters._lines(chunks, lambda: None)] == ["ab", "cd", "e" * 900 + "f" * 100, "g"]


def test_deadline_applies_to_all_parts_together(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_embed", lambda *_: sleep(0.2))
    address, texts = start_server(deadline_seconds=0.7).address, [f"{n} " + "x" * 990 for n in range(60)]
    name, said = events_of(address, {"model": "classifier", "texts": texts})[-1]
    assert name == "error" and "deadline_seconds" in said["message"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "translator"}, 400, "translator is a translator"),
        ({"texts": ["one"] * 30}, 400, "only 1 different texts"),
        ({"texts": ["x"] * 2001}, 413, "the limit is 2,000"),
        ({"texts": [*TEXTS, "x" * 6000]}, 413, "max_characters"),
        ({"texts": TEXTS, "n": 31}, 422, "at most 30"),
    ],
)
def test_bad_requests_are_refused(call_api: Any, body: object, status: int, said: str) -> None:
    code, answer = call_api("clusters", body)
    assert code == status and said in json.dumps(answer)


@pytest.mark.parametrize("width", [1440, 390])
def test_screen_shows_clusters_and_near_duplicates(visit: Any, width: int) -> None:
    page = visit("#/clusters?model=classifier&n=2", width=width)
    page.fill("textarea", "\n".join([*TEXTS, TEXTS[4], "w" * 999 + "🎬"]))  # cut within the pair of UTF-16 units
    page.click("button:has-text('Find clusters')")
    page.wait_for_selector(".cards .card")
    assert page.locator(".cards .card").count() == 2
    sizes = [int(text.split()[0]) for text in page.locator(".card > .hint").all_inner_texts()]
    assert sum(sizes) == len(TEXTS) + 2
    assert page.inner_text(".pairs tr >> nth=0").split("\n")[-1].strip() == TEXTS[4]
    page.click(".card summary >> nth=0")
    assert eventually(lambda: page.locator(".card >> nth=0 >> li").count() == sizes[0])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    with page.expect_download() as waiting:
        page.click("button:has-text('Save')")
    saved = waiting.value.path().read_text("utf-8").splitlines()
    assert saved[0] == "number,cluster,similarity,duplicate_of,text" and len(saved) == len(TEXTS) + 3
    assert saved[25].split(",")[3] == "5" and all(line.split(",")[1] in "12" for line in saved[1:])


def test_screen_uses_the_held_out_texts_and_files(visit: Any) -> None:
    page = visit("#/clusters?model=classifier", expect=("status of 400",))
    page.click("button:has-text('Find clusters')")
    assert page.inner_text(".summary") == "Paste texts above, one per line, or open a file."
    page.click("button:has-text('Use the held-out texts')")
    page.wait_for_selector(".cards .card")
    assert "near-duplicate" in page.inner_text(".summary")
    table = "label,text\n" + "".join(f'good,"{text}, he said"\n' for text in TEXTS)
    page.set_input_files(
        "input[type=file]", {"name": "films.csv", "mimeType": "text/csv", "buffer": table.encode("utf-8")}
    )
    page.wait_for_selector(".card li:has-text('he said') >> nth=0")
    assert page.inner_text(".summary").startswith("24 texts")
    page.fill("textarea", "one\ntwo")
    page.click("button:has-text('Find clusters')")
    page.wait_for_selector(".alert:has-text('only 2 different texts')")
