"""Serving many clients at once: speed, memory, lost requests, and whether each text is the same as alone.

The server runs in its own process. First the requests are sent one at a time, then by CLIENTS clients at once. Every
second client leaves its stream after some tokens; the others read to the end. Prompts have 1 to 200 characters,
completions 8 to 200 tokens. "Equal": the share of texts that are the same, letter by letter, as those generated alone
with the same seed.

Run: python -m benchmarks.serving RUN TEXT [SECONDS]
"""

import asyncio
import json
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.report import Result, write_result

NAME = "serving"
CLIENTS = 64
REQUESTS = 400  # distinct requests, which are repeated


@dataclass
class Seen:
    """The answers that clients have got."""

    texts: dict[int, set[str]] = field(default_factory=dict)
    n_tokens: int = 0
    n_done: int = 0
    n_left: int = 0
    lost: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds to the first token of a stream


def requests(text: str) -> list[dict[str, Any]]:
    """Return requests of mixed lengths and settings; always the same ones."""
    chance = random.Random(1)
    found = []
    for seed in range(REQUESTS):
        start = chance.randrange(len(text) - 200)
        found.append(
            {
                "prompt": text[start : start + chance.randint(1, 200)],
                "max_tokens": chance.randint(8, 200),
                "temperature": chance.choice([0.7, 1.0]),
                "top_p": chance.choice([0.9, 1.0]),
                "seed": seed,
            }
        )
    return found


async def to_its_end(client: Any, number: int, asked: dict[str, Any], seen: Seen) -> None:
    """Send a request and read the whole answer."""
    answer = await client.post("/v1/completions", json=asked)
    if answer.status_code != 200:
        seen.lost.append(answer.text)
        return
    found = answer.json()
    seen.texts.setdefault(number, set()).add(found["choices"][0]["text"])
    seen.n_tokens += found["usage"]["completion_tokens"]
    seen.n_done += 1


async def for_a_while(client: Any, asked: dict[str, Any], n_tokens: int, seen: Seen) -> None:
    """Stream a completion, and leave after `n_tokens` tokens."""
    start, n = perf_counter(), 0
    async with client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as answer:
        if answer.status_code != 200:
            seen.lost.append(str(answer.status_code))
            return
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                if n == 0:
                    seen.waits.append(perf_counter() - start)
                n += 1
                if n == n_tokens:
                    break
    seen.n_tokens += n
    seen.n_left += 1


async def one_at_a_time(client: Any, asked: list[dict[str, Any]], seconds: float) -> tuple[Seen, float]:
    """Send requests one at a time for some seconds; return the answers and the seconds spent."""
    seen, start = Seen(), perf_counter()
    for number, each in enumerate(asked):
        if perf_counter() - start > seconds:
            break
        await to_its_end(client, number, each, seen)
    return seen, perf_counter() - start


async def together(
    client: Any, asked: list[dict[str, Any]], seconds: float, process: int
) -> tuple[Seen, float, list[float]]:
    """Send requests by all clients at once; return the answers, the seconds spent, and the memory samples."""
    seen, start, memory = Seen(), perf_counter(), []

    async def behave(place: int) -> None:
        chance = random.Random(place)
        while perf_counter() - start < seconds:
            number = chance.randrange(len(asked))
            try:
                if place % 2:
                    await for_a_while(client, asked[number], chance.randint(1, 60), seen)
                else:
                    await to_its_end(client, number, asked[number], seen)
            except Exception as error:
                seen.lost.append(repr(error))

    async def watch() -> None:
        while True:
            memory.append(resident(process))
            await asyncio.sleep(seconds / 30)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(behave, range(CLIENTS)))
    watching.cancel()
    return seen, perf_counter() - start, memory


def resident(process: int) -> float:
    """Return the memory of a process in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().split("\n")
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def metric(page: str, name: str) -> float:
    """Return the value of a metric from the text of /metrics."""
    return next(float(line.split()[-1]) for line in page.split("\n") if line.startswith(f"{name}{{"))


async def measure(address: str, process: int, text: str, seconds: float) -> list[Result]:
    """Measure a running server, one request at a time and then all clients at once."""
    import httpx2 as httpx  # the library of OpenAI's client

    asked = requests(text)
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        await to_its_end(client, 0, asked[0], Seen())
        alone, alone_seconds = await one_at_a_time(client, asked, seconds)
        before = metric((await client.get("/metrics")).text, "penwright_tokens_written_total")
        seen, spent, memory = await together(client, asked, seconds, process)
        page = ""
        for _ in range(100):
            page = (await client.get("/metrics")).text
            if metric(page, "penwright_rows") == 0:
                break
            await asyncio.sleep(0.01)
    both = alone.texts.keys() & seen.texts.keys()
    equal = [text == only for n in both for (only,) in [alone.texts[n]] for text in seen.texts[n]]
    written = metric(page, "penwright_tokens_written_total") - before
    speed, faster = alone.n_tokens / alone_seconds, seen.n_tokens / spent
    late = memory[len(memory) // 3 :]
    rows = {
        "tokens per second that clients got, one at a time": speed,
        f"... {CLIENTS} clients at once": faster,
        "... times as many": faster / speed,
        "completed requests": seen.n_done,
        "streams left early": seen.n_left,
        "requests lost": len(seen.lost),
        "tokens generated, relative to those that clients got": written / seen.n_tokens,
        "rows still running after the last client": metric(page, "penwright_rows"),
        "texts waiting after the last client": metric(page, "penwright_texts_inside"),
        "share of texts equal to those generated alone": sum(equal) / max(1, len(equal)),
        "... number of texts compared": len(equal),
        "seconds to the first token, median": sorted(seen.waits)[len(seen.waits) // 2],
        "... 95th percentile": sorted(seen.waits)[int(0.95 * len(seen.waits))],
        "MiB of server memory after a third of the time": late[0],
        "... maximum afterwards": max(late),
        "... at the end": late[-1],
    }
    print(json.dumps(seen.lost[:5]))
    return [Result(name, {"value": [float(value)]}) for name, value in rows.items()]


def main() -> None:
    """Start a server, measure it, and write the result."""
    run, text = sys.argv[1], Path(sys.argv[2]).read_text(encoding="utf-8")
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    command = [sys.executable, "-m", "penwright", "serve", run, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split(": ")[0]
        try:
            results = asyncio.run(measure(address, server.pid, text, seconds))
        finally:
            server.terminate()
    remark = f"Run: {Path(run).name}. The server ended with {server.returncode} after SIGTERM."
    write_result(NAME, f"python -m benchmarks.serving RUN TEXT {seconds:g}", results, remark)


if __name__ == "__main__":
    main()
