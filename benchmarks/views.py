"""Speed of the views in a browser: drawing 96 heads or a whole model, opening a head, moving the pointer.

Figures are in milliseconds. "Ready" is the time from opening the file to the last view drawn, unpacking included.
"Drawn" starts after unpacking. "Moved" is the handler of a pointer move with its layout. "Frames" is the longest time
between two frames while the pointer moves. "Painted" is the first contentful paint.

Run: python -m benchmarks.views [ROUNDS [PART OF A NAME]]
"""

import sys
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import penwright
from benchmarks.report import Result, write_result
from penwright.inspection import Inspector, whole_model
from penwright.views import View, html
from penwright.views.notebook import thumbnails
from penwright.views.packing import to_root_bytes

NAME = "views"
N_LAYERS, N_HEADS, N_TOKENS = 12, 8, 512
REDRAWN = """name => {
  const place = document.querySelector("main");
  const { data, options } = page_data.views[0];
  const start = performance.now();
  const handle = views[name](place, data, options);
  place.offsetHeight;
  if (handle.parts.paint) handle.parts.paint();
  const drawn = performance.now() - start;
  handle.destroy();
  return drawn;
}"""
OPENED = """() => {
  const start = performance.now();
  document.querySelectorAll(".pw-head-card")[40].click();
  document.querySelector(".pw-stage").offsetHeight;
  return performance.now() - start;
}"""
PRESSED = """selector => {
  const field = document.querySelector(selector);
  field.setPointerCapture = () => {};
  field.dispatchEvent(new PointerEvent("pointerdown", { clientX: 300, clientY: 300 }));
}"""
MOVED = """([selector, count]) => new Promise(done => {
  const field = document.querySelector(selector);
  field.scrollIntoView();
  const box = field.getBoundingClientRect();
  const costs = [], frames = [];
  const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];
  let last = null;
  const move = now => {
    if (last !== null) frames.push(now - last);
    last = now;
    const [x, y] = [box.left + (box.width * costs.length) / count, box.top + (box.height * costs.length) / count];
    const start = performance.now();
    field.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
    document.body.offsetHeight;
    costs.push(performance.now() - start);
    if (costs.length < count) requestAnimationFrame(move);
    else done([Math.max(...costs), Math.max(...frames), median(frames)]);
  };
  requestAnimationFrame(move);
})"""


def main(rounds: int = 5, wanted: str = "") -> None:
    """Open the page of each picture whose name contains `wanted` in every round."""
    from playwright.sync_api import sync_playwright

    views = {each: view for each, view in {**_views(), **_whole_model()}.items() if wanted in each}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in views}
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {name: _page(Path(folder) / f"{place}.html", view) for place, (name, view) in enumerate(views.items())}
        options = {"executable_path": which("chromium"), "args": ["--no-sandbox"]}
        browser = playwright.chromium.launch(**options)
        for _ in range(rounds):
            for name, path in pages.items():
                for figure, value in _measure(browser, path, views[name].name, name.endswith("phone")).items():
                    found[name].setdefault(figure, []).append(value)
        machine = f"Chromium {browser.version}, headless, without a GPU, offline."
        browser.close()
    results = [
        Result(f"{name}: {figure}", {"ms": values})
        for name, figures in found.items()
        for figure, values in figures.items()
    ]
    write_result(NAME, f"python -m benchmarks.{NAME} {rounds}", results, machine)


def _measure(browser: Any, path: Path, view: str, is_phone: bool) -> dict[str, float]:
    size = {"width": 390, "height": 844} if is_phone else {"width": 1440, "height": 900}
    context = browser.new_context(offline=True, viewport=size)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("main[data-ready]")
    figures = {"ready": page.evaluate("performance.getEntriesByName('ready')[0].startTime")}
    figures["painted"] = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    figures["drawn"] = page.evaluate(REDRAWN, view)
    if view == "attention":
        figures["a head opened"] = page.evaluate(OPENED)
    fields = {"attention": ".pw-field", "embeddings": ".pw-map", "curves": ".pw-plot", "model": ".pw-flowmap"}
    moved = page.evaluate(MOVED, [fields[view], 120])
    figures["moved, longest"], figures["frames, longest"], figures["frames, median"] = moved
    if view == "embeddings":  # with the button held, the map is panned
        page.evaluate(PRESSED, fields[view])
        figures["panned, longest"], figures["frames, longest, panned"], _ = page.evaluate(MOVED, [fields[view], 60])
    context.close()
    return figures


def _page(path: Path, view: View) -> Path:
    """Write the page, which also notes when it is ready and exposes its functions and data (without its policy)."""
    source = html([view], view.name)
    policy = source.index("<meta http-equiv"), source.index('">', source.index("script-src")) + 2
    source = source[: policy[0]] + source[policy[1] :]
    source = source.replace('main.dataset.ready = "yes";', 'main.dataset.ready = performance.mark("ready").name;')
    source = source.replace("async function start(views) {", "async function start(views) { globalThis.views = views;")
    source = source.replace("for (const { name, heading,", "globalThis.page_data = page; for (const { name, heading,")
    path.write_text(source, encoding="utf-8")
    return path


def _views() -> dict[str, View]:
    chance = np.random.default_rng(0)
    maps = np.stack([_head(chance) for _ in range(N_LAYERS * N_HEADS)]).reshape(N_LAYERS, N_HEADS, N_TOKENS, N_TOKENS)
    tokens = [{"text": f" token{place}"} for place in range(N_TOKENS)]
    part = {"name": "decoder", "target_tokens": tokens, "source_tokens": tokens}
    opened = {
        "heads": [[layer, head] for layer in range(N_LAYERS) for head in range(N_HEADS)],
        "weights": maps.reshape(-1, N_TOKENS, N_TOKENS),
    }
    xy = chance.normal(size=(10_000, 2))
    steps = np.arange(2000)
    runs = [{"name": f"run {number}", "x": steps, "y": chance.normal(size=2000).cumsum()} for number in range(100)]
    size = f"{N_LAYERS * N_HEADS} heads, {N_TOKENS} tokens"
    return {
        f"{size}, all weights": View("attention", {"parts": [{**part, "weights": maps}]}),
        f"{size}, thumbnails first": View(
            "attention", {"parts": [{**part, "thumbs": thumbnails(maps), "open": opened}]}
        ),
        "map of 10,000 embeddings": View("embeddings", {"xy": xy, "labels": [f"t{place}" for place in range(10_000)]}),
        "100 runs of 2,000 steps": View("curves", {"runs": runs}),
    }


def _whole_model() -> dict[str, View]:
    """Return the file of `penwright inspect --whole` for a model of 12 layers and 12 heads, twice."""
    text = "".join(f"It was day {number}, and the rain fell on house {number * 7 % 31}.\n" for number in range(200))
    model = {"d_model": 96, "n_layers": 12, "n_heads": 12, "context_length": 300}
    settings = {"model": model, "tokenizer": {"type": "bytes"}, "training": {"steps": 1, "batch_tokens": 512}}
    with TemporaryDirectory() as folder:
        (Path(folder) / "days.txt").write_text(text, encoding="utf-8")
        writer = penwright.train(Path(folder) / "days.txt", run=Path(folder) / "run", settings=settings, quiet=True)
    view = whole_model(Inspector(writer), text[:255])
    return {f"whole model of 12 layers, 12 heads, 256 tokens{width}": view for width in ("", ", on a phone")}


def _head(chance: np.random.Generator) -> np.ndarray:
    """Return causal attention over noise, as bytes."""
    scores = np.exp(chance.normal(0, 2, (N_TOKENS, N_TOKENS))) * np.tri(N_TOKENS)
    return to_root_bytes(scores / scores.sum(-1, keepdims=True))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
