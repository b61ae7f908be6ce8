"""Checks of every type and shape annotation while the tests run, and shared fixtures."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import jaxtyping
import pytest
import torch
from hypothesis import settings

from .type_checks import check_types_of

if TYPE_CHECKING:
    from playwright import sync_api

check_types_of("penwright")
# Each run tries the same examples. `pytest --hypothesis-profile=default` tries new ones.
settings.register_profile("the same", derandomize=True, deadline=None)
settings.load_profile("the same")
os.environ["PENWRIGHT_COMPILE"] = "off"  # tests start no background processes
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # otherwise torch starts processes, which import torch
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # otherwise torch compiles a program for each instruction set
gc.set_threshold(50_000, 20, 100)  # test items and libraries are many objects, and collecting garbage visits all
LONGEST = (
    "compiled_steps",
    "distributed",
    "docs",
    "ensemble",
    "examples",
    "finetune",
    "import_real",
    "inspect",
    "launcher",
    "onnx",
    "openapi",
    "page",
    "page_runs",
    "page_studio",
    "studio",
    "train",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take longest first, so that no process works on one of them alone at the end."""
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONGEST)
    gc.freeze()  # the items and all that is imported stay until the end


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make random weights and inputs the same in every run, whatever the order of the tests."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # test models are small, and training in this process changes the number


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep caches out of the home folder, so that earlier runs and other programs cannot change results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))  # processes that tests start see it too
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_training() -> Iterator[None]:
    """Let plans time a single small step of each size, and runs evaluate twice and write short samples.

    Training does not wait to measure the load of other programs. Tests that depend on one of these numbers set it.
    """
    from penwright.tasks import generation
    from penwright.training import loop
    from penwright.training.auto import machine, throughput

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throughput, "STEPS", 1)
        patch.setattr(throughput, "MOST_TOKENS", 256)
        patch.setattr(machine, "PAUSE", 0.0)
        patch.setattr(generation, "SAMPLE_TOKENS", 4)
        patch.setattr(generation, "FEW_TOKENS", 2)
        patch.setattr(loop, "EVALUATIONS", 2)
        yield


@pytest.fixture
def no_type_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off type checks, which compilers would trace, and which slow down long training loops."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


BROWSER = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # no other host resolves
SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the checkout. Tests that need them are skipped if they are absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no corpora in {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def browser() -> Iterator["sync_api.Browser"]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    installed = which("chromium") or which("chromium-browser") or which("google-chrome")
    with sync_api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=installed, args=BROWSER)
        except sync_api.Error as missing:
            pytest.skip(f"no browser to test the views in: {missing.message.splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def browse(browser: "sync_api.Browser") -> Iterator[Callable[..., "sync_api.Page"]]:
    """A function that opens a file in the browser.

    At the end, there must be no console message and no request other than for files.
    """
    contexts, messages, requests = [], [], []

    def open_file(path: Path, scheme: str = "light", width: int = 1440, height: int = 900) -> "sync_api.Page":
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": width, "height": height}, reduced_motion="reduce"
        )
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert messages == []
    assert all(url.startswith(("file:", "about:srcdoc", "data:")) for url in requests), requests


@pytest.fixture
def open_html(browse: Callable[..., "sync_api.Page"], tmp_path: Path) -> Callable[..., "sync_api.Page"]:
    """A function that opens an HTML source in the browser, with the checks of `browse`."""

    def open_source(source: str, scheme: str = "light", width: int = 1440, height: int = 900) -> "sync_api.Page":
        path = tmp_path / "page.html"
        path.write_text(source, encoding="utf-8")
        return browse(path, scheme, width, height)

    return open_source
