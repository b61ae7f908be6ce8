"""A tiny run of each task, a server of all three, and its page in a browser."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import penwright
from penwright.tasks import generation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from playwright.sync_api import Request as PageRequest

    from penwright.serving.model_registry import ModelRegistry

pytest.importorskip("fastapi", reason="the server is an extra: pip install 'penwright[serve]'")
KINDS = ("writer", "translator", "classifier")
SETTINGS = {
    "model": {"d_model": 32, "n_layers": 2, "n_heads": 2, "context_length": 48},
    "training": {"steps": 6, "batch_tokens": 256, "threads": 1, "evaluate_every": 6},
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run per kind of model: writer, translator, classifier."""
    folder = tmp_path_factory.mktemp("runs")
    sentences = [f"It was day {number}, and the rain fell on house {number * 7 % 31}.\n" for number in range(400)]
    german_numbers = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
    german = [f"{a} {b} {c}" for a in german_numbers for b in german_numbers for c in german_numbers]
    pairs = [f"{text}\t{' '.join(german_numbers[word] for word in text.split())}\n" for text in german]
    reviews = [
        f"a {word} film number {n},{label}\n" for n in range(60) for word, label in (("fine", "good"), ("dull", "bad"))
    ]
    texts = {"writer.txt": sentences, "translator.tsv": pairs, "classifier.csv": ["text,label\n", *reviews]}
    for name, content in texts.items():
        (folder / name).write_text("".join(content), encoding="utf-8")
        bytewise = {"tokenizer": {"type": "bytes"}} if name == "writer.txt" else {}  # can encode any text
        with pytest.MonkeyPatch.context() as patch:
            # after so few steps, calibration would make bytes likely that never occur in the text
            patch.setattr(generation, "LEAST_DECREASE", 1.0)
            penwright.train(
                folder / name, run=folder / name.partition(".")[0], settings=SETTINGS | bytewise, quiet=True
            )
    return folder


class RunningServer(NamedTuple):
    """A running server."""

    address: str
    registry: "ModelRegistry"
    copies: "ModelRegistry"  # the same models, loaded again: tests use these, since two threads must not share a model


StartServer = Callable[..., RunningServer]


@pytest.fixture(scope="session")
def start_server(runs: Path) -> Iterator[StartServer]:
    """A function that starts a server of all three models in its own thread, with the given limits."""
    from penwright.serving.model_registry import ModelRegistry
    from penwright.serving.model_worker import ModelWorker
    from penwright.serving.server import Server
    from penwright.serving.settings import ServingSettings

    up = []
    copies = ModelRegistry([ModelWorker.load(runs / kind) for kind in KINDS])

    def start(**limits: Any) -> RunningServer:
        settings = ServingSettings(**{"port": 0, "max_rows": 8, "max_characters": 5000, "drain_seconds": 1.0, **limits})
        loaded = [ModelWorker.load(runs / kind) for kind in KINDS]
        registry = ModelRegistry([ModelWorker(each.name, each.opened, each.application, settings) for each in loaded])
        server = Server(registry, settings)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
        thread.start()
        up.append((server, thread))
        return RunningServer(server.address, registry, copies)

    yield start
    for server, _ in up:
        server.stop()
    for _, thread in up:
        thread.join()


@pytest.fixture(scope="session")
def server(start_server: StartServer) -> RunningServer:
    """A server with the default test limits."""
    return start_server()


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Return whether the condition becomes true in time. Check less often the longer it takes."""
    end, pause = monotonic() + seconds, 0.005
    while not condition() and monotonic() < end:
        sleep(pause)
        pause = min(1.3 * pause, 0.1)
    return condition()


Visit = Callable[..., "Page"]


@pytest.fixture
def visit(browser: "Browser", server: RunningServer) -> Iterator[Visit]:
    """A function that opens the page at an address (#/write?text=...).

    At the end, there must be no unexpected console message and no request to another host.
    """
    contexts, messages, foreign_requests, expected = [], [], [], []

    def record_foreign_request(request: "PageRequest") -> None:
        if not request.url.startswith((server.address, "blob:", "data:")):
            foreign_requests.append(request.url)

    def open_page(
        place: str = "", scheme: str = "light", width: int = 1440, height: int = 900, expect: tuple[str, ...] = ()
    ) -> "Page":
        expected.extend(expect)
        size: Any = {"width": width, "height": height}
        context = browser.new_context(color_scheme=scheme, viewport=size, reduced_motion="reduce")
        context.set_default_timeout(60_000)
        context.on(
            "request", record_foreign_request
        )  # not `route`: it would disable the cache and send each request through this process
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(f"{server.address}/{place}")
        page.wait_for_selector("main[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in messages if not any(text in each for text in expected)] == []
    assert foreign_requests == []


def open_details(page: "Page") -> None:
    """Open all <details>, and wait for the tables that their `toggle` events build."""
    page.evaluate("document.querySelectorAll('main details').forEach((each) => (each.open = true))")
    page.wait_for_selector("main:not(:has(.pw-twin > summary:only-child))")


ApiCall = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="session")
def call_api(server: RunningServer) -> ApiCall:
    """A function that returns the status and the JSON of an answer; a body makes the request a POST."""
    return partial(call, server)


def call(
    server: RunningServer,
    path: str,
    body: object = None,
    timeout: float = 30.0,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Return the status and the JSON of an answer; a body makes the request a POST."""
    content = None if body is None else json.dumps(body).encode()
    request = Request(f"{server.address}/{path}", content, {"content-type": "application/json", **(headers or {})})
    try:
        with urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
