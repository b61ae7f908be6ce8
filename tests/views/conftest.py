"""A browser without a network, and pages of views in it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # samples.py

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except sync_api.Error as missing:
            pytest.skip(f"no browser to test the views in: {missing.message.splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def opened(browser: "sync_api.Browser", tmp_path: Path) -> Iterator[Callable[..., "sync_api.Page"]]:
    """Open a page from file://; in the end it must have complained of nothing and asked for nothing."""
    contexts, complaints, requests = [], [], []

    def open_page(source: str, scheme: str = "light", width: int = 1440, height: int = 900) -> "sync_api.Page":
        path = tmp_path / "page.html"
        path.write_text(source, encoding="utf-8")
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": width, "height": height}, reduced_motion="reduce"
        )
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(url.startswith(("file:", "about:srcdoc")) for url in requests), requests
