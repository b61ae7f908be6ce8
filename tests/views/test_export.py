import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples

from penwright.errors import UsageError
from penwright.views import MODULES, STYLE, View, html
from penwright.views.export import view_names


@pytest.fixture(scope="module")
def page_of_all_views() -> str:
    return html(samples.views(), "Every view")


def test_samples_cover_every_view() -> None:
    assert set(samples.data_of_each_view()) == set(view_names())


def test_scripts_and_styles_are_small() -> None:
    scripts = [path.read_text("utf-8") for path in MODULES.glob("*.js")]
    assert sum(len(text.encode()) for text in [*scripts, STYLE.read_text("utf-8")]) <= 210_000
    assert max(text.count("\n") for text in scripts) < 300


def test_unknown_view_is_refused_with_the_known_names() -> None:
    with pytest.raises(UsageError, match=r"no view 'haeds'.*: ablation.*heads"):
        View("haeds", {})


def test_unknown_file_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.html, \.svg or \.png, not as '\.gif'"):
        View("head", samples.head()).save(tmp_path / "view.gif")


def test_data_cannot_inject_markup_into_the_page() -> None:
    page = html([View("text", {**samples.scores(), "tokens": samples.tokens(samples.HOSTILE)})], "</title><script>")
    assert page.count("<script") == page.count("</script>") == 2
    assert "x()" not in page


@pytest.mark.parametrize(("scheme", "width", "height"), [("light", 1440, 900), ("dark", 390, 844)])
def test_every_view_opens_from_a_file_and_fits_the_screen(
    page_of_all_views: str, open_html: Callable[..., Any], scheme: str, width: int, height: int
) -> None:
    page = open_html(page_of_all_views, scheme, width, height)
    page.wait_for_selector("main[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    empty = "[...document.querySelectorAll('section')].filter(s => s.querySelector('.pw').offsetHeight < 40).length"
    assert page.evaluate(empty) == 0
    paper = [int(part) for part in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))]
    assert (sum(paper) > 600) == (scheme == "light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_accessibility_violation(open_html: Callable[..., Any], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = open_html(html(samples.views(8), "Every view"), scheme)
    page.wait_for_selector("main[data-ready]")
    for closed in page.query_selector_all("summary"):
        closed.click()
    page.wait_for_selector("main:not(:has(.pw-twin > summary:only-child))")  # clicks build the tables
    rules = (
        {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    )  # all other rules give the same result in both themes
    found = axe.Axe().run(page, options=rules).response["violations"]
    assert not found, [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found]


@pytest.mark.parametrize("name", ["alignment", "arithmetic", "attribution", "head", "lens", "lines", "text"])
def test_hostile_texts_are_displayed_escaped(open_html: Callable[..., Any], name: str) -> None:
    n = len(samples.HOSTILE)
    tokens = samples.tokens(samples.HOSTILE)
    data = {
        "alignment": {**samples.alignment(), "source": samples.HOSTILE, "target": samples.HOSTILE},
        "arithmetic": samples.arithmetic(n) | {"target_tokens": tokens, "source_tokens": tokens},
        "attribution": {"method": "m", "target": "</script>", "tokens": tokens, "values": np.ones(n), "gap": None},
        "head": samples.head(n) | {"target_tokens": tokens, "source_tokens": tokens},
        "lens": samples.lens(2, n) | {"tokens": tokens},
        "lines": samples.head(n) | {"target_tokens": tokens, "source_tokens": tokens},
        "text": samples.scores(n) | {"tokens": tokens},
    }[name]
    page = open_html(html([View(name, data)], "x</script>"), width=390, height=844)
    page.wait_for_selector("main[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown = page.inner_text("main")
    assert "</script>" in shown
    assert "‹202E›" in shown or name in ("attribution", "text"), "a bidi override is shown by its code point"


def test_every_module_begins_with_a_comment() -> None:
    for path in MODULES.glob("*.js"):
        assert path.read_text("utf-8").startswith("/**"), path.name
