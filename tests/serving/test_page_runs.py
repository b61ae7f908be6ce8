"""The Runs screen; and layout and accessibility of this screen, Translate and Classify."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import penwright
from penwright.run.folder import Run

from .conftest import eventually, open_details

SIZES = [("light", 1440, 900), ("dark", 390, 844)]
PLACES = {
    "#/translate?text=eins%20zwei.%20drei%20vier.&glossary=zwei%09couple": ".details .way",
    "#/classify?text=a%20fine%20film": ".picture .pw-attribution",
    "#/runs?runs=%5B%22writer%22%2C%22translator%22%5D": ".pw-plot",
}


@pytest.mark.parametrize(("scheme", "width", "height"), SIZES)
def test_screens_fit_the_window_and_pass_axe(visit: Any, scheme: str, width: int, height: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    rules = (
        {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    )  # all other rules give the same result in both themes
    for place, awaited in PLACES.items():
        page = visit(place, scheme, width, height)
        page.wait_for_selector(awaited)
        open_details(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        found = axe.Axe().run(page, options=rules).response["violations"]
        assert not found, [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found]


def read_last_point(page: Any) -> Any:
    """Return the diagram's announcement for its last point."""
    page.focus(".pw-plot")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    return page.inner_text(".diagram [aria-live]")


def test_diagram_shows_the_runs_losses(visit: Any, runs: Path) -> None:
    page = visit("#/runs?runs=%5B%22writer%22%5D")
    page.wait_for_selector(".pw-plot")
    page.click(".diagram summary")
    page.wait_for_selector(".diagram td")
    cells = page.locator(".diagram .pw-twin td").all_inner_texts()
    losses = [record["loss"] for record in Run.open(runs / "writer").records("steps.jsonl")]
    assert float(cells[0]) == pytest.approx(losses[0], rel=0.01)
    assert float(cells[2]) == pytest.approx(losses[-1], rel=0.01)
    assert "writer, training" in read_last_point(page)


def test_several_runs_are_overlaid_and_their_settings_compared(visit: Any) -> None:
    page = visit("#/runs?runs=%5B%22writer%22%5D")
    page.wait_for_selector(".pw-plot")
    page.focus("input[value=translator]")
    page.keyboard.press("Space")
    page.wait_for_selector(".differences th:has-text('translator')")
    rows = dict(
        zip(
            page.locator(".differences tbody th").all_inner_texts(),
            page.locator(".differences tbody td").all_inner_texts()[::2],
            strict=True,
        )
    )
    assert rows["task"] == "generate" and "model.d_model" not in rows
    assert page.locator(".pw-keys li").count() == 4


def test_ticking_runs_quickly_shows_the_last_choice_and_no_error(visit: Any) -> None:
    page = visit("#/runs?runs=%5B%5D")
    page.wait_for_selector(".run-list li")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/runs/figures?*", hold)
    page.route("**/runs/samples?*", hold)
    for name in ("translator", "classifier", "translator", "translator"):
        page.locator(f".run-list input[value={name}]").click()
    page.unroute("**/runs/figures?*")
    page.unroute("**/runs/samples?*")
    for route in reversed(held):
        with suppress(Exception):  # the page may have cancelled the request
            route.continue_()
    page.locator(".run-list input[value=writer]").click()
    page.wait_for_selector(".pw-plot")
    chosen = page.evaluate("[...document.querySelectorAll('.run-list input:checked')].map(e => e.value)")

    def shown() -> set[str]:
        return {text.split(",")[0].strip() for text in page.locator(".pw-keys li").all_inner_texts()}

    assert eventually(lambda: shown() == set(chosen)), shown()
    assert page.locator(".alert").count() == 0


def test_samples_of_each_step_are_shown(visit: Any, runs: Path) -> None:
    page = visit("#/runs?runs=%5B%22translator%22%5D")
    page.wait_for_selector(".tried .card")
    samples = Run.open(runs / "translator").records("samples.jsonl")
    first, last = samples[0]["step"], samples[-1]["step"]
    assert page.locator(".tried .card").count() == sum(each["step"] == last for each in samples)
    page.focus(".samples input[type=range]")
    page.keyboard.press("Home")
    assert page.inner_text(".samples output") == f"step {first}"
    expected = [each["completion"] for each in samples if each["step"] == first]
    assert page.locator(".tried .written").count() == len(expected)


def test_training_run_is_updated_and_shows_alerts(visit: Any, runs: Path) -> None:
    folder = runs / "live"
    folder.mkdir()
    (folder / "recipe.toml").write_bytes((runs / "writer" / "recipe.toml").read_bytes())
    lines = folder / "steps.jsonl"

    def step(number: int, loss: float, skipped: int = 0) -> None:
        record = {"step": number, "seconds": number / 10, "targets": 9 * number, "loss": loss, "skipped": skipped}
        with lines.open("a") as file:
            file.write(json.dumps({**record, "gradient norm": 1.0, "learning rate": 0.1, "total_steps": 99}) + "\n")

    try:
        for number in range(1, 30):
            step(number, 3.0)
        page = visit("#/runs?runs=%5B%22live%22%5D")
        page.wait_for_selector(".run-list .training")
        assert page.locator(".alarm").count() == 0
        step(30, 9.0, skipped=2)
        page.wait_for_selector(".alarm:has-text('Spike')")
        page.wait_for_selector(".alarm:has-text('2 steps were skipped')")
        assert "step 30" in page.inner_text(".run-list .training")
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_lost_server_is_reported_once(visit: Any) -> None:
    page = visit("#/runs", expect=("ERR_FAILED",))
    page.route("**/runs", lambda route: route.abort())
    page.click(".alert:has-text('does not answer') button")
    for _ in range(2):
        page.wait_for_event("requestfailed", lambda request: request.url.endswith("/runs"))
    assert page.locator(".alert").count() == 0
    page.unroute("**/runs")
    page.wait_for_event("response", lambda answer: answer.url.endswith("/runs"))
    page.route("**/runs", lambda route: route.abort())
    page.wait_for_selector(".alert")


@pytest.mark.parametrize("ending", ["csv", "svg", "png"])
def test_diagram_can_be_saved(visit: Any, runs: Path, ending: str) -> None:
    page = visit("#/runs?runs=%5B%22writer%22%5D")
    page.wait_for_selector(".pw-plot")
    page.click(".menu > button")
    with page.expect_download() as waiting:
        page.click(f"[role=menuitem]:has-text('.{ending}')")
    saved = waiting.value.path().read_bytes()
    if ending == "svg":
        root = ElementTree.fromstring(saved)
        assert root.tag.endswith("svg") and b"nats" in saved and len(root) > 5
    elif ending == "png":
        assert saved.startswith(b"\x89PNG")
    else:
        rows = saved.decode().split("\r\n")
        losses = [record["loss"] for record in Run.open(runs / "writer").records("steps.jsonl")]
        found = [float(row.split(",")[-1]) for row in rows if row.startswith('"writer, training"')]
        assert found == pytest.approx(losses)


def test_diagram_options_are_kept_in_the_address(visit: Any) -> None:
    page = visit("#/runs?runs=%5B%22writer%22%5D")
    page.wait_for_selector(".pw-plot")
    page.click(".tabs button:has-text('Gradient norm')")
    page.click("button:has-text('by time')")
    page.click("label:has-text('log y')")
    page.wait_for_url(re.compile("logy=true"))
    page.reload()
    page.wait_for_selector(".pw-plot")
    assert page.get_attribute(".tabs button:has-text('Gradient norm')", "aria-pressed") == "true"
    assert page.get_attribute("button:has-text('by time')", "aria-pressed") == "true"
    assert page.is_checked("label:has-text('log y') input")


def test_training_is_stopped_after_confirmation(visit: Any, runs: Path) -> None:
    folder = runs / "busy"
    folder.mkdir()
    (folder / "recipe.toml").write_bytes((runs / "writer" / "recipe.toml").read_bytes())
    (folder / "steps.jsonl").write_text('{"step": 10, "seconds": 1.0, "targets": 50, "loss": 3.0, "total_steps": 99}\n')
    try:
        page = visit("#/runs?runs=%5B%22busy%22%5D")
        button = page.get_by_role("button", name="Stop training busy")
        button.focus()
        page.keyboard.press("Enter")
        assert page.get_by_role("dialog", name="Stop training busy?").is_visible()
        assert page.evaluate("document.activeElement.textContent") == "Keep training"
        for _ in range(2):  # when the second response comes, the list has been redrawn behind the dialog
            page.wait_for_event("response", lambda answer: answer.url.endswith("/runs"))
        page.keyboard.press("Enter")
        assert not Run(folder).is_stop_requested
        assert eventually(lambda: page.evaluate("document.activeElement.ariaLabel") == "Stop training busy")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector(".run-list .state:has-text('stopping')")
        assert Run(folder).is_stop_requested and button.count() == 0
        assert page.evaluate("document.activeElement.value") == "busy", "the keyboard is still in the list"
        Run(folder).mark_stopped()
        page.wait_for_selector("li:has(input[value=busy]) .state:text-is('stopped')")
        spoken = "document.getElementById('spoken').textContent"
        assert eventually(lambda: page.evaluate(spoken) == "busy has stopped.")
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


@pytest.fixture
def run_with_early_weights(runs: Path) -> Iterator[Run]:
    """The writer's run with early weights of step 2."""
    run = Run(runs / "writer")
    weights = {name: tensor * 0.5 for name, tensor in run.checkpoints.newest()[0].weights().items()}
    run.checkpoints.save_early(2, weights, {"step": 2, "seconds": 1.25})
    yield run
    shutil.rmtree(run.folder / "checkpoints" / "early-00000002")


THEN_AND_NOW = "section[aria-label='Then and now']"


@pytest.mark.parametrize(("scheme", "width", "height"), SIZES)
def test_slider_moves_through_early_answers_and_heads(
    visit: Any, run_with_early_weights: Run, scheme: str, width: int, height: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit("#/runs?runs=%5B%22writer%22%5D", scheme, width, height)
    page.fill(f"{THEN_AND_NOW} input", "It was")
    with page.expect_response("**/inspect/heads") as response:
        page.keyboard.press("Enter")
    assert "step" not in response.value.request.post_data_json, "the served weights"
    page.wait_for_selector(f"{THEN_AND_NOW} .pw-attention canvas")
    assert page.locator(f"{THEN_AND_NOW} article .hint").all_text_contents() == [
        "After 1 second · step 2",
        "Now · step 6",
    ]
    texts = page.locator(f"{THEN_AND_NOW} .written").all_text_contents()
    assert texts[0] != texts[1]
    page.focus(f"{THEN_AND_NOW} input[type=range]")
    with page.expect_response("**/inspect/heads") as response:
        page.keyboard.press("ArrowLeft")
    (early, *_) = run_with_early_weights.checkpoints.early()
    assert response.value.ok and response.value.request.post_data_json["step"] == early.step
    assert page.inner_text(f"{THEN_AND_NOW} output") == "After 1 second · step 2"
    assert page.inner_text(f"{THEN_AND_NOW} [aria-current] .hint") == "After 1 second · step 2"
    assert page.locator(f"{THEN_AND_NOW} article:visible").count() == (2 if width > 900 else 1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = axe.Axe().run(page, options={"runOnly": ["color-contrast"]} if scheme == "dark" else {})
    assert not found.response["violations"]


def test_open_head_stays_open_when_the_slider_moves(visit: Any, run_with_early_weights: Run) -> None:
    page = visit("#/runs?runs=%5B%22writer%22%5D")
    page.fill(f"{THEN_AND_NOW} input", "It was")
    page.keyboard.press("Enter")
    page.locator(f"{THEN_AND_NOW} .pw-attention .pw-grid button").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{THEN_AND_NOW} .pw-head")
    page.focus(f"{THEN_AND_NOW} input[type=range]")
    with page.expect_response("**/inspect/head") as response:
        page.keyboard.press("Home")
    assert response.value.request.post_data_json["step"] == 2
    page.wait_for_selector(f"{THEN_AND_NOW} .pw-head")
    assert page.evaluate("document.activeElement.type") == "range", "the keyboard stays on the slider"


def test_views_of_early_weights_equal_the_early_models(call_api: Any, run_with_early_weights: Run) -> None:
    body = {"model": "writer", "text": "It was", "head": "decoder.0.1"}
    status, found = call_api("inspect/head?format=json", {**body, "step": 2})
    inspector = penwright.inspect(penwright.load(run_with_early_weights.checkpoints.early()[0].folder))
    expected = inspector.attention("It was").part("decoder").weights[0, 1]
    assert status == 200 and found["views"][0]["data"]["weights"] == pytest.approx(expected, abs=1e-6)
    status, refused = call_api("inspect/head", {**body, "step": 3})
    assert status == 400 and "Steps with early weights: 2" in refused["error"]["message"]
