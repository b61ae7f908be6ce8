"""The frame of the page, and properties of all its screens."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penwright.serving.model_worker import ModelWorker
from penwright.serving.server import PAGE

PLACES = {
    "writer": [
        "tokens",
        "heads",
        "rollout",
        "lens",
        "gradients",
        "ablation",
        "arithmetic",
        "embeddings",
        "positions",
        "compare&other_text=night",
    ],
    "translator": [
        "tokens",
        "heads",
        "alignment",
        "rollout",
        "lens",
        "gradients",
        "ablation",
        "arithmetic",
        "embeddings",
        "positions",
        "compare&other_text=eins",
    ],
    "classifier": [
        "tokens",
        "heads",
        "rollout",
        "lens",
        "gradients",
        "ablation",
        "arithmetic",
        "embeddings",
        "positions",
        "compare&other_text=eins",
    ],
}
WAIT = ".shown:not([aria-busy]) > *"
SIZES = [("light", 1440, 900), ("dark", 390, 844)]


def go_to(page: Any, place: str) -> None:
    page.evaluate("place => { delete document.querySelector('main').dataset.ready; location.hash = place; }", place)
    page.wait_for_selector("main[data-ready]")


@pytest.mark.parametrize(("scheme", "width", "height"), SIZES)
def test_every_view_of_every_model_is_drawn_and_fits_the_screen(
    visit: Any, scheme: str, width: int, height: int
) -> None:
    page = visit("#/write", scheme, width, height)
    for kind, tools in PLACES.items():
        for tool in tools:
            go_to(page, f"#/inspect?model={kind}&tool={tool}")
            page.wait_for_selector(WAIT)
            assert page.locator(".problem, .alert").all_inner_texts() == [], (kind, tool)
            assert page.locator(".shown .pw").count() > 0, (kind, tool)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (kind, tool)
            tabs = page.evaluate("(({ scrollWidth: w, clientWidth: all }) => w - all)(document.querySelector('.tabs'))")
            assert width < 700 or tabs <= 0, "on wide screens, no tab is cut"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_accessibility_violation(visit: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit("#/write?text=It%20was%20day%201&given=3", scheme)
    page.wait_for_selector(".editor .pw-token")
    rules = (
        {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    )  # all other rules give the same result in both themes
    places = ["heads&head=decoder.1.0", "ablation&heads=decoder.0.0", "embeddings&word=day", "compare&other_text=night"]
    for place in ["", *(f"#/inspect?model=writer&text=day&tool={tool}" for tool in places)]:
        if place:
            go_to(page, place)
            page.wait_for_selector(WAIT)
        found = axe.Axe().run(page, options=rules).response["violations"]
        assert not found, [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found]


@pytest.mark.parametrize("screen", ["write", "translate", "classify", "inspect", "clusters", "runs", "train"])
def test_css_rules_of_a_screen_apply_only_to_it(screen: str) -> None:
    css = re.sub(r"/\*.*?\*/", "", (PAGE / f"{screen}.css").read_text("utf-8"), flags=re.S)
    rules = [rule.strip() for rule in re.findall(r"([^{};]+)\{", css) if not rule.strip().startswith("@")]
    selectors = [each.strip() for rule in rules for each in rule.split(",\n")]
    assert len(selectors) > 10
    assert [each for each in selectors if f":where(.{screen})" not in each and not each.startswith(f".{screen}")] == []


def test_screen_without_a_suitable_model_says_so(visit: Any, server: Any) -> None:
    page = visit("#/inspect?model=translator")
    models = page.evaluate("fetch('models').then(answer => answer.json())")["models"]
    only = json.dumps({"models": [each for each in models if each["kind"] == "translator"]})
    page.route("**/models", lambda route: route.fulfill(body=only, content_type="application/json"))
    page.goto(f"{server.address}/#/write")
    page.reload()
    page.wait_for_selector("main[data-ready='write']")
    assert "Write needs a writer, but none is served." in page.inner_text("main")
    assert page.get_attribute(".rail a[href='#/write']", "aria-disabled") == "true"


def test_model_in_the_address_may_be_new_or_unknown(visit: Any, server: Any, runs: Path) -> None:
    page = visit("#/inspect?model=translator")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url.removeprefix(f"{server.address}/")))
    workers = server.registry._workers
    workers["7"] = ModelWorker.load(runs / "classifier", "7", workers["classifier"].limits)
    try:
        go_to(page, "#/classify?model=7")
        assert page.locator(".alert").count() == 0 and page.input_value("#picker select") == "7"
        requests.clear()
        page.focus(".rail a[href='#/classify']")
        for _ in range(2):
            page.wait_for_event("response", lambda answer: answer.url.endswith("/models/steps"))
        assert "models" not in requests, "names that look like numbers are no change"
        go_to(page, "#/write?model=nobody")
        assert page.inner_text(".alert p") == "“nobody” is not served, or is not a writer. The model here is “writer”."
        assert page.evaluate("document.activeElement.hash") == "#/classify", "redrawing the rail keeps the focus"
    finally:
        workers.pop("7").close()


def test_chosen_theme_survives_a_reload(visit: Any) -> None:
    page = visit("#/write")
    page.click("button[aria-label='Light or dark']")
    page.reload()
    page.wait_for_selector("main[data-ready]")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(21, 22, 26)"


def test_question_mark_opens_key_help_except_while_typing(visit: Any) -> None:
    page = visit("#/write")
    page.focus(".editor")
    page.keyboard.type("What?")
    assert page.inner_text(".editor") == "What?"
    assert page.locator("dialog").count() == 0
    page.focus(".rail a")
    page.keyboard.press("?")
    assert "Ctrl + Enter" in page.inner_text("dialog")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_shortcuts_switch_screens_and_keep_their_state(visit: Any) -> None:
    page = visit("#/write")
    page.focus(".editor")
    page.keyboard.type("It was")
    page.keyboard.press("Alt+Shift+Digit4")
    page.wait_for_selector("main[data-ready='inspect']")
    page.keyboard.press("Alt+Shift+Digit1")
    page.wait_for_selector("main[data-ready='write']")
    assert page.inner_text(".editor") == "It was"
    page.go_back()
    page.wait_for_selector("main[data-ready='inspect']")


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": {"message": "no such setting"}}, "no such setting"),
        (422, {"detail": [{"loc": ["body", "text"], "msg": "too long"}]}, "text: too long"),
        (502, "<html>", "The server answered with status 502."),
    ],
)
def test_server_errors_are_shown_in_plain_words(visit: Any, status: int, body: Any, message: str) -> None:
    page = visit("#/write", expect=(f"status of {status}",))
    page.route("**/write", lambda route: route.fulfill(status=status, body=json.dumps(body)))
    page.click("button:has-text('Continue')")
    assert page.inner_text(".alert p") == message
    page.click(".alert button")
    assert page.locator(".alert").count() == 0
    page.click("button:has-text('Continue')")
    page.wait_for_selector(".alert")
    go_to(page, "#/inspect")
    assert page.locator(".alert").count() == 0, "it was about another screen"


def test_unreachable_server_is_reported(visit: Any) -> None:
    page = visit("#/write", expect=("ERR_FAILED",))
    page.route("**/write", lambda route: route.abort())
    page.click("button:has-text('Continue')")
    assert "Is `penwright` still running?" in page.inner_text(".alert")


@pytest.mark.parametrize(("kind", "n_steps"), [("writer", 9), ("translator", 9), ("classifier", 8)])
def test_tour_visits_each_part_with_the_given_sentence(visit: Any, kind: str, n_steps: int) -> None:
    page = visit(f"#/inspect?model={kind}&text=x&tool=positions")
    page.click("button[title^='A tour']")
    page.fill(".tour textarea", "eins zwei")
    page.keyboard.press("Enter")
    for step in range(1, n_steps + 1):
        page.wait_for_selector(f".tour .hint:text-is('{step} of {n_steps}')")
        page.wait_for_selector(WAIT if "/inspect" in page.url else ".choices tbody tr")
        assert page.evaluate("document.activeElement.tagName") == "H2"
        assert "text=eins+zwei" in page.url
        page.click(".tour button.main")
    assert page.locator(".tour, .problem, .alert").count() == 0


def test_escape_leaves_the_tour(visit: Any) -> None:
    page = visit("#/write?model=writer")
    page.click("button[title^='A tour']")
    page.keyboard.press("Escape")
    assert page.locator(".tour").count() == 0
