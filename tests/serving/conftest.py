"""A tiny run of each task, a server that has them, and its page in a browser."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import penwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from playwright.sync_api import Request as PageRequest

    from penwright.serving.model_registry import ModelRegistry

pytest.importorskip("fastapi", reason="the server is an extra: pip install 'penwright[serve]'")
SETTINGS = {
    "model": {"d_model": 32, "n_layers": 2, "n_heads": 2, "context_length": 48},
    "training": {"steps": 6, "batch_tokens": 256, "threads": 1, "evaluate_every": 6},
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders by the kinds of their models: writer, translator, classifier."""
    os.environ["PENWRIGHT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    folder = tmp_path_factory.mktemp("runs")
    days = [f"It was day {number}, and the rain fell on house {number * 7 % 31}.\n" for number in range(400)]
    numbers = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
    german = [f"{a} {b} {c}" for a in numbers for b in numbers for c in numbers]
    pairs = [f"{text}\t{' '.join(numbers[word] for word in text.split())}\n" for text in german]
    films = [
        f"a {word} film number {n},{label}\n" for n in range(60) for word, label in (("fine", "good"), ("dull", "bad"))
    ]
    texts = {"writer.txt": days, "translator.tsv": pairs, "classifier.csv": ["text,label\n", *films]}
    for name, content in texts.items():
        (folder / name).write_text("".join(content), encoding="utf-8")
        bytewise = {"tokenizer": {"type": "bytes"}} if name == "writer.txt" else {}  # it reads any text
        penwright.train(folder / name, run=folder / name.partition(".")[0], settings=SETTINGS | bytewise, quiet=True)
    return folder


class Running(NamedTuple):
    """A server that is up."""

    address: str
    registry: "ModelRegistry"


Serving = Callable[..., Running]


@pytest.fixture(scope="session")
def serving(runs: Path) -> Iterator[Serving]:
    """Starts servers with all three, each in a thread of its own and with the limits that are given."""
    from penwright.serving.model_registry import ModelRegistry
    from penwright.serving.model_worker import ModelWorker
    from penwright.serving.server import Server
    from penwright.serving.settings import ServingSettings

    loaded = [ModelWorker.load(runs / kind) for kind in ("writer", "translator", "classifier")]
    up = []

    def start(**limits: Any) -> Running:
        settings = ServingSettings(**{"port": 0, "max_rows": 8, "max_characters": 5000, "drain_seconds": 1.0, **limits})
        registry = ModelRegistry([ModelWorker(each.name, each.opened, each.application, settings) for each in loaded])
        server = Server(registry, settings)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
        thread.start()
        up.append((server, thread))
        return Running(server.address, registry)

    yield start
    for server, _ in up:
        server.stop()
    for _, thread in up:
        thread.join()


@pytest.fixture(scope="session")
def server(serving: Serving) -> Running:
    """One of them, with the usual limits."""
    return serving()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it comes true."""
    end = monotonic() + seconds
    while not condition() and monotonic() < end:
        sleep(0.005)
    return condition()


Visit = Callable[..., "Page"]


@pytest.fixture
def visit(browser: "Browser", server: Running) -> Iterator[Visit]:
    """Open the page at a place (#/write?text=...); in the end it must have complained of nothing that was not expected,
    and asked nobody else."""
    contexts, complaints, elsewhere, expected = [], [], [], []

    def note(request: "PageRequest") -> None:
        if not request.url.startswith((server.address, "blob:", "data:")):
            elsewhere.append(request.url)

    def open_page(
        place: str = "", scheme: str = "light", width: int = 1440, height: int = 900, expect: tuple[str, ...] = ()
    ) -> "Page":
        expected.extend(expect)
        size: Any = {"width": width, "height": height}
        context = browser.new_context(color_scheme=scheme, viewport=size, reduced_motion="reduce")
        context.set_default_timeout(60_000)
        context.on("request", note)  # not routed: that would take the cache away, and a way through here each
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{server.address}/{place}")
        page.wait_for_selector("main[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in complaints if not any(text in each for text in expected)] == []
    assert elsewhere == []


def open_details(page: "Page") -> None:
    """Open all that can be opened, and wait until each table has been built, which its `toggle` event does later."""
    page.evaluate("document.querySelectorAll('main details').forEach((each) => (each.open = true))")
    page.wait_for_selector("main:not(:has(.pw-twin > summary:only-child))")


Asked = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="session")
def asked(server: Running) -> Asked:
    """The status and the JSON of an answer; a body makes it a POST."""

    def ask(path: str, body: object = None, timeout: float = 30.0) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        request = Request(f"{server.address}/{path}", content, {"content-type": "application/json"})
        try:
            with urlopen(request, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    return ask
