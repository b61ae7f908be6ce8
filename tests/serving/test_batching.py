import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

pytest.importorskip("fastapi", reason="the server is an extra: pip install 'penwright[serve]'")

from penwright.serving.batching import BATCH, DynamicBatcher, PendingAnswers
from penwright.serving.checks import ClientsDisconnected

Batches = list[tuple[str, list[str]]]
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread, since other tests' browsers keep an event loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def ask_together(
    questions: Sequence[tuple[str, list[str]]], work: Callable[..., Sequence[str]] | None = None
) -> tuple[list[object], Batches]:
    """Return the answers and the batches in which they were computed."""
    batches: Batches = []

    def upper(options: str, texts: Sequence[str], waiting: PendingAnswers) -> list[str]:
        batches.append((options, list(texts)))
        return [options + text.upper() for text in texts]

    async def ask() -> list[object]:
        with ThreadPoolExecutor(1) as executor:
            batcher: DynamicBatcher[str, str] = DynamicBatcher(work or upper, executor)
            return await asyncio.gather(*(batcher.ask(*each) for each in questions), return_exceptions=True)

    return run(ask()), batches


def test_concurrent_requests_share_a_batch() -> None:
    answers, batches = ask_together([("m", ["a"]), ("m", ["b", "c"]), ("m", [])])
    assert answers == [["mA"], ["mB", "mC"], []]
    assert batches == [("m", ["a", "b", "c"])]


def test_requests_with_different_options_are_batched_apart() -> None:
    answers, batches = ask_together([("m", ["a"]), ("n", ["b"]), ("m", ["c"])])
    assert answers == [["mA"], ["nB"], ["mC"]]
    assert sorted(batches) == [("m", ["a", "c"]), ("n", ["b"])]


def test_large_request_does_not_delay_others() -> None:
    many = [f"x{n}" for n in range(3 * BATCH)]
    answers, batches = ask_together([("", many), ("", ["a"])])
    assert answers == [[text.upper() for text in many], ["A"]]
    assert "a" in batches[0][1]
    assert all(len(texts) <= BATCH for _, texts in batches)


def test_error_reaches_all_waiting_clients_and_work_continues() -> None:
    def fail_once(options: str, texts: Sequence[str], waiting: PendingAnswers) -> list[str]:
        if options == "bad":
            raise ValueError("no")
        return list(texts)

    answers, _ = ask_together([("bad", ["a"]), ("bad", ["b"]), ("good", ["c"])], fail_once)
    assert isinstance(answers[0], ValueError) and isinstance(answers[1], ValueError)
    assert answers[2] == ["c"]


def test_abandoned_work_is_stopped() -> None:
    started, stopped, client_left = threading.Event(), threading.Event(), threading.Event()

    def work(options: str, texts: Sequence[str], waiting: PendingAnswers) -> list[str]:
        started.set()
        client_left.wait(10)
        try:
            waiting.check()
        except ClientsDisconnected:
            stopped.set()
            raise
        return list(texts)

    async def ask_and_leave() -> None:
        with ThreadPoolExecutor(1) as executor:
            batcher: DynamicBatcher[str, str] = DynamicBatcher(work, executor)
            asking = asyncio.create_task(batcher.ask("", ["a"]))
            await asyncio.to_thread(started.wait, 10)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            client_left.set()
            assert await asyncio.to_thread(stopped.wait, 10)
            assert batcher.n_abandoned == 1
            assert await batcher.ask("", ["b"]) == ["b"]

    run(ask_and_leave())


def test_batch_knows_which_clients_have_left() -> None:
    started, client_left = threading.Event(), threading.Event()
    seen: list[list[bool]] = []

    def work(options: str, texts: Sequence[str], waiting: PendingAnswers) -> list[str]:
        places = {text: number for number, text in enumerate(texts)}
        for event in (started, client_left):
            seen.append([waiting.wants(places[text]) for text in ("a", "b", "c")])
            started.set()
            assert event is client_left or client_left.wait(10)
        waiting.check()  # one client still waits
        return [text.upper() for text in texts]

    async def ask_and_leave() -> None:
        with ThreadPoolExecutor(1) as executor:
            batcher: DynamicBatcher[str, str] = DynamicBatcher(work, executor)
            stays = asyncio.create_task(batcher.ask("", ["b"]))
            leaves = asyncio.create_task(batcher.ask("", ["a", "c"]))
            await asyncio.to_thread(started.wait, 10)
            leaves.cancel()
            await asyncio.gather(leaves, return_exceptions=True)
            client_left.set()
            assert await stays == ["B"]
            assert batcher.n_abandoned == 2

    run(ask_and_leave())
    assert seen == [[True, True, True], [False, True, False]]
