from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import samples

from penwright.errors import PenwrightError
from penwright.views import View, notebook


def output(view: View) -> str:
    return view._repr_mimebundle_()["text/html"]


def test_notebook_output_of_every_view_is_within_the_limit() -> None:
    for view in samples.views():
        assert len(output(view).encode()) <= notebook.LIMIT, view.name
        assert view._repr_mimebundle_()["text/plain"].startswith(f"View(name='{view.name}'")


def test_large_attention_keeps_thumbnails_and_some_weights(open_html: Callable[..., Any]) -> None:
    weights = np.random.default_rng(0).integers(0, 256, (4, 8, 160, 160), dtype=np.uint8)  # incompressible
    part = {
        "name": "encoder",
        "weights": weights,
        "target_tokens": samples.text(160),
        "source_tokens": samples.text(160),
    }
    shown = output(View("attention", {"parts": [part], "first": [(3, 7)]}))
    assert len(shown.encode()) <= notebook.LIMIT
    page = open_html(f"<!doctype html><html lang=en><title>n</title><body>{shown}")
    frame = page.frame_locator("iframe")
    frame.locator("main[data-ready]").wait_for()
    assert frame.locator(".pw-head-card").count() == 32
    frame.locator(".pw-head-card").nth(31).click()
    frame.locator(".pw-field").wait_for()
    frame.locator(".pw-back").click()
    frame.locator(".pw-head-card").nth(30).click()
    assert "Save the view as .html to keep all" in frame.locator("[role=status]").inner_text()


def test_too_large_view_is_refused_with_a_workaround() -> None:
    noise = np.random.default_rng(0).normal(size=(120_000, 2))
    with pytest.raises(PenwrightError, match=r"Save it as \.html"):
        output(View("embeddings", {"xy": noise, "labels": ["x"] * 120_000}))


def test_frame_adopts_the_views_height_and_notebooks_theme(open_html: Callable[..., Any]) -> None:
    outputs = output(View("labels", samples.data_of_each_view()["labels"])) + output(View("head", samples.head()))
    page = open_html(f"<!doctype html><html lang=en><title>n</title><body style='background:#111;color:#eee'>{outputs}")
    for frame in ("iframe >> nth=0", "iframe >> nth=1"):
        page.frame_locator(frame).locator("html[data-theme=dark] main[data-ready]").wait_for()
    page.wait_for_function("document.querySelectorAll('iframe')[0].offsetHeight < 300")
    page.wait_for_function("document.querySelectorAll('iframe')[1].offsetHeight > 600")
    assert page.evaluate(
        "[...document.querySelectorAll('iframe')].every(f => f.getAttribute('sandbox') === 'allow-scripts')"
    )


def test_frames_follow_the_theme_and_are_released_when_removed(
    open_html: Callable[..., Any],
) -> None:
    outputs = output(View("labels", samples.data_of_each_view()["labels"])) * 2
    page = open_html(f"<!doctype html><html lang=en><title>n</title><style>.dark{{color:#eee}}</style><body>{outputs}")
    for theme in ("light", "dark", "light"):
        page.evaluate("dark => document.body.classList.toggle('dark', dark)", theme == "dark")
        for place in (0, 1):
            page.frame_locator(f"iframe >> nth={place}").locator(
                f"html[data-theme={theme}] main[data-ready]"
            ).wait_for()
    assert page.evaluate("penwrightFrames.size") == 2
    page.evaluate("document.querySelector('iframe').parentElement.remove()")
    frame = "document.querySelector('iframe')"
    height = page.evaluate(f"{frame}.style.height")
    page.evaluate(f"{frame}.style.display = 'none'")  # like notebooks that render only visible cells
    page.wait_for_timeout(200)
    assert page.evaluate(f"{frame}.style.height") == height
    for _ in range(10):  # the frame is released at the next change after garbage collection
        page.request_gc()
        page.evaluate("document.body.classList.toggle('dark')")
        page.wait_for_timeout(400)
        if page.evaluate("penwrightFrames.size") == 1:
            return
    pytest.fail("a removed frame is still referenced")


@pytest.mark.parametrize("name", ["text", "attribution", "curves", "embeddings", "head", "arithmetic", "lens"])
def test_frame_below_the_fold_shows_its_whole_view(open_html: Callable[..., Any], name: str) -> None:
    shown = output(View(name, samples.data_of_each_view()[name]))
    page = open_html(f"<!doctype html><html lang=en><title>n</title><body><p style='height:3000px'></p>{shown}")
    element = page.query_selector("iframe")
    element.content_frame().wait_for_selector("main[data-ready]")
    page.wait_for_function("document.querySelector('iframe').style.height !== '520px'")  # even while out of sight
    element.scroll_into_view_if_needed()
    frame = element.content_frame()
    lowest = "Math.max(...[...document.querySelectorAll('main *')].map(e => e.getBoundingClientRect().bottom))"
    for _ in range(100):  # the view is drawn once it is visible
        page.wait_for_timeout(100)
        if frame.evaluate(lowest) <= element.bounding_box()["height"]:
            break
    assert frame.evaluate(lowest) <= element.bounding_box()["height"]
    plots = "[...document.querySelectorAll('.pw-plot, .pw-map')].map(e => e.offsetHeight)"
    assert all(height >= 300 for height in frame.evaluate(plots))
