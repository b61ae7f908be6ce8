import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

pytest.importorskip("fastapi", reason="the server is an extra: pip install 'penwright[serve]'")

from penwright.serving.batching import BATCH, ClientsDisconnected, DynamicBatcher, PendingAnswers

Batches = list[tuple[str, list[str]]]
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own, since the browser of other tests keeps a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def gather(
    questions: Sequence[tuple[str, list[str]]], work: Callable[..., Sequence[str]] | None = None
) -> tuple[list[object], Batches]:
    """The answers, and the batches in which they were made."""
    batches: Batches = []

    def upper(manner: str, texts: Sequence[str], waiting: PendingAnswers) -> list[str]:
        batches.append((manner, list(texts)))
        return [manner + text.upper() for text in texts]

    async def ask() -> list[object]:
        with ThreadPoolExecutor(1) as worker:
            gathering: DynamicBatcher[str, str] = DynamicBatcher(work or upper, worker)
            return await asyncio.gather(*(gathering.ask(*each) for each in questions), return_exceptions=True)

    return run(ask()), batches


def test_those_who_ask_at_the_same_time_share_a_batch() -> None:
    answers, batches = gather([("m", ["a"]), ("m", ["b", "c"]), ("m", [])])
    assert answers == [["mA"], ["mB", "mC"], []]
    assert batches == [("m", ["a", "b", "c"])]


def test_another_manner_is_another_batch() -> None:
    answers, batches = gather([("m", ["a"]), ("n", ["b"]), ("m", ["c"])])
    assert answers == [["mA"], ["nB"], ["mC"]]
    assert sorted(batches) == [("m", ["a", "c"]), ("n", ["b"])]


def test_who_has_many_texts_does_not_keep_others_waiting() -> None:
    many = [f"x{n}" for n in range(3 * BATCH)]
    answers, batches = gather([("", many), ("", ["a"])])
    assert answers == [[text.upper() for text in many], ["A"]]
    assert "a" in batches[0][1]
    assert all(len(texts) <= BATCH for _, texts in batches)


def test_an_error_reaches_all_who_wait_and_work_goes_on() -> None:
    def fail_once(manner: str, texts: Sequence[str], waiting: PendingAnswers) -> list[str]:
        if manner == "bad":
            raise ValueError("no")
        return list(texts)

    answers, _ = gather([("bad", ["a"]), ("bad", ["b"]), ("good", ["c"])], fail_once)
    assert isinstance(answers[0], ValueError) and isinstance(answers[1], ValueError)
    assert answers[2] == ["c"]


def test_work_that_nobody_waits_for_is_stopped() -> None:
    begun, ended, left = threading.Event(), threading.Event(), threading.Event()

    def work(manner: str, texts: Sequence[str], waiting: PendingAnswers) -> list[str]:
        begun.set()
        left.wait(10)
        try:
            waiting.check()
        except ClientsDisconnected:
            ended.set()
            raise
        return list(texts)

    async def ask_and_leave() -> None:
        with ThreadPoolExecutor(1) as worker:
            gathering: DynamicBatcher[str, str] = DynamicBatcher(work, worker)
            asking = asyncio.create_task(gathering.ask("", ["a"]))
            await asyncio.to_thread(begun.wait, 10)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            left.set()
            assert await asyncio.to_thread(ended.wait, 10)
            assert gathering.n_abandoned == 1
            assert await gathering.ask("", ["b"]) == ["b"]

    run(ask_and_leave())


def test_who_leaves_a_batch_is_told_apart_from_those_who_stay() -> None:
    begun, left = threading.Event(), threading.Event()
    seen: list[list[bool]] = []

    def work(manner: str, texts: Sequence[str], waiting: PendingAnswers) -> list[str]:
        places = {text: number for number, text in enumerate(texts)}
        for event in (begun, left):
            seen.append([waiting.wants(places[text]) for text in ("a", "b", "c")])
            begun.set()
            assert event is left or left.wait(10)
        waiting.check()  # somebody still waits
        return [text.upper() for text in texts]

    async def ask_and_leave() -> None:
        with ThreadPoolExecutor(1) as worker:
            gathering: DynamicBatcher[str, str] = DynamicBatcher(work, worker)
            stays = asyncio.create_task(gathering.ask("", ["b"]))
            leaves = asyncio.create_task(gathering.ask("", ["a", "c"]))
            await asyncio.to_thread(begun.wait, 10)
            leaves.cancel()
            await asyncio.gather(leaves, return_exceptions=True)
            left.set()
            assert await stays == ["B"]
            assert gathering.n_abandoned == 2

    run(ask_and_leave())
    assert seen == [[True, True, True], [False, True, False]]
