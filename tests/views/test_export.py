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
def everything() -> str:
    return html(samples.views(), "Every view")


def test_the_samples_have_every_view() -> None:
    assert set(samples.every()) == set(view_names())


def test_scripts_and_style_are_at_most_210_kilobytes_and_files_are_short() -> None:
    scripts = [path.read_text("utf-8") for path in MODULES.glob("*.js")]
    assert sum(len(text.encode()) for text in [*scripts, STYLE.read_text("utf-8")]) <= 210_000
    assert max(text.count("\n") for text in scripts) < 300


def test_a_view_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"no view 'haeds'.*: ablation.*heads"):
        View("haeds", {})


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.html, \.svg or \.png, not as '\.gif'"):
        View("head", samples.head()).save(tmp_path / "view.gif")


def test_no_text_of_the_data_can_become_part_of_the_page() -> None:
    page = html([View("text", {**samples.scores(), "tokens": samples.tokens(samples.HOSTILE)})], "</title><script>")
    assert page.count("<script") == page.count("</script>") == 2
    assert "x()" not in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_every_view_opens_from_a_file_and_none_is_wider_than_the_screen(
    everything: str, opened: Callable[..., Any], scheme: str, width: int, height: int
) -> None:
    page = opened(everything, scheme, width, height)
    page.wait_for_selector("main[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    empty = "[...document.querySelectorAll('section')].filter(s => s.querySelector('.pw').offsetHeight < 40).length"
    assert page.evaluate(empty) == 0
    paper = [int(part) for part in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))]
    assert (sum(paper) > 600) == (scheme == "light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(opened: Callable[..., Any], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = opened(html(samples.views(8), "Every view"), scheme)
    page.wait_for_selector("main[data-ready]")
    for closed in page.query_selector_all("summary"):
        closed.click()
    page.wait_for_selector("main:not(:has(.pw-twin > summary:only-child))")  # tables are built after the click
    rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}  # all others are the same in both themes
    found = axe.Axe().run(page, options=rules).response["violations"]
    assert not found, [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found]


@pytest.mark.parametrize("name", ["alignment", "arithmetic", "attribution", "head", "lens", "lines", "text"])
def test_texts_that_are_hard_to_show_are_shown(opened: Callable[..., Any], name: str) -> None:
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
    page = opened(html([View(name, data)], "x</script>"), width=390, height=844)
    page.wait_for_selector("main[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown = page.inner_text("main")
    assert "</script>" in shown
    assert "‹202E›" in shown or name in ("attribution", "text"), "a sign that turns text round is shown by its number"


def test_every_module_says_what_it_is_for() -> None:
    for path in MODULES.glob("*.js"):
        assert path.read_text("utf-8").startswith("/**"), path.name
