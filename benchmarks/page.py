"""Speed of the server's page in a browser: its first paint, and its frames while a model writes fast.

The page gets recorded tokens: 5,000 at once, then 1,000 at 200 per second. "Behind" is how much longer the page took
than the sender. "Longest" is the longest time between two frames. "Work" is the time of the browser's main thread per
frame: scripts, styles, layout and paint. All figures are in milliseconds, except the share of late frames in percent.

Run: python -m benchmarks.page RUN [ROUNDS], where RUN is a writer
"""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

from benchmarks.report import Result, write_result

NAME = "page"
N_BEFORE, N_PACED, RATE = 5000, 1000, 200  # tokens, tokens, tokens per second
WATCH = """([before, all]) => new Promise(done => {
  const tokens = document.querySelector(".editor").getElementsByClassName("pw-token");
  const [frames, lengths] = [[], []];
  let last = null;
  let begin = null;
  const look = now => {
    const count = tokens.length;
    if (count > before) {
      begin ??= [now, count];
      if (last !== null) frames.push(now - last);
    }
    last = now;
    if (count < all) return requestAnimationFrame(look);
    frames.sort((one, other) => one - other);
    const [took, sent] = [now - begin[0], all - begin[1]];
    const late = (100 * frames.filter(each => each > 25).length) / frames.length;
    const [longest, median] = [frames.at(-1), frames[frames.length >> 1]];
    return done({ took, sent, longest, median, late, frames: frames.length });
  };
  requestAnimationFrame(look);
})"""


def main(run: str, rounds: int = 3) -> None:
    """Run each round in a new browser context, with an empty cache."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {}
    with _serving(Path(run)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        for _ in range(rounds):
            for name, value in _measure(browser, address).items():
                found.setdefault(name, []).append(value)
        machine = f"Chromium {browser.version}, headless, without a GPU; server, model and browser share the machine."
        browser.close()
    results = [Result(name, {"ms": values}) for name, values in found.items()]
    write_result(NAME, f"python -m benchmarks.{NAME} {run} {rounds}", results, machine)


def _measure(browser: Any, address: str) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{address}/#/write?text=It")
    page.wait_for_selector("main[data-ready]")
    page.wait_for_selector(".choices tbody tr")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.click("button.main")
    page.wait_for_function(f"() => document.querySelectorAll('.editor .pw-token').length >= {N_BEFORE}")
    page.wait_for_timeout(300)  # the first tokens are laid out
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    before = _spent(session)
    watched = page.evaluate(WATCH, [N_BEFORE, N_BEFORE + N_PACED])
    work = [1000 * (after - begun) / watched["frames"] for begun, after in zip(before, _spent(session), strict=True)]
    context.close()
    return {
        "first paint": paint,
        f"{RATE} tokens per second after {N_BEFORE:,}: behind": watched["took"] - 1000 * watched["sent"] / RATE,
        "frames, median": watched["median"],
        "frames, longest": watched["longest"],
        "frames later than 25 ms, %": watched["late"],
        "work per frame": work[0],
        "layout per frame": work[1],
    }


def _spent(session: Any) -> list[float]:
    """Return the seconds that the main thread has worked since the page began, and its seconds of layout."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return [metrics["TaskDuration"], metrics["LayoutDuration"]]


async def _played() -> AsyncIterator[str]:
    likeliest = [{"id": id, "text": f" word{id}", "probability": 0.1, "chance": 0.1} for id in range(10)]
    loop = asyncio.get_running_loop()
    start = 0.0
    for number in range(N_BEFORE + N_PACED):
        if number == N_BEFORE:
            await asyncio.sleep(1)  # the page draws the first tokens
            start = loop.time()
        if number > N_BEFORE:
            await asyncio.sleep(max(0.0, start + (number - N_BEFORE) / RATE - loop.time()))
        text = f" word{number % 97}" + "\n" * (number % 60 == 59)
        token = {"id": 1, "text": text, "shown": text, "log_prob": -(number % 7), "rank": 2, "entropy": 1.5}
        yield f"event: token\ndata: {json.dumps({**token, 'likeliest': likeliest})}\n\n"
    yield 'event: done\ndata: {"n": 1, "seconds": 1}\n\n'


@contextmanager
def _serving(run: Path) -> Iterator[str]:
    """Run the server, with recorded tokens in place of a model's."""
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    from penwright.serving.model_registry import ModelRegistry
    from penwright.serving.model_worker import ModelWorker
    from penwright.serving.server import create_app
    from penwright.serving.settings import ServingSettings

    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    registry, app = ModelRegistry([ModelWorker.load(run)]), FastAPI()
    app.post("/write")(lambda: StreamingResponse(_played(), media_type="text/event-stream"))
    app.mount("/", create_app(registry, ServingSettings(port=port)))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        registry.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
