"""The Inspect screen."""

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penwright.inspection import Inspector
from penwright.inspection.comparison import compare
from penwright.serving.inspect import run_inspection
from penwright.serving.model_worker import ModelWorker

SLOW: dict[str, Callable[[Inspector], object]] = {
    "attribution": lambda inspector: inspector.attribution("a fine film"),
    "leaving out": lambda inspector: inspector.occlusion("a fine film"),
    "importance": lambda inspector: inspector.head_importance("a fine film"),
    "patching": lambda inspector: inspector.patching("a fine film", "a dull film"),
}
WAIT = ".shown:not([aria-busy]) > *"


def fetch_view(page: Any, picture: str, **body: Any) -> Any:
    """Return a view's data as the page's own code unpacks it."""
    script = """async ([picture, asked]) => {
      const { askPacked } = await import("/api.js");
      const { Tensor } = await import("/views/bytes.js");
      const flat = ({ shape, values }) => ({ shape, numbers: [...values] });
      const plain = (_, value) => (value instanceof Tensor ? flat(value) : value);
      return JSON.parse(JSON.stringify(await askPacked(`inspect/${picture}`, asked), plain));
    }"""
    return page.evaluate(script, [picture, body])["views"][0]["data"]


@pytest.mark.parametrize("kind", ["writer", "translator", "classifier"])
def test_attention_head_shows_the_models_weights(visit: Any, server: Any, kind: str) -> None:
    text = {"writer": "It was day", "translator": "eins zwei drei", "classifier": "a fine film"}[kind]
    inspector = server.copies.get(kind).inspector
    part = "cross" if kind == "translator" else inspector.heads[0].partition(".")[0]
    page = visit(f"#/inspect?model={kind}&text={text}&tool=heads&head={part}.1.1")
    page.wait_for_selector(".shown .pw-field")
    maps = inspector.attention(text)
    expected = maps.part(part).weights[1, 1]
    data = fetch_view(page, "head", model=kind, text=text, head=f"{part}.1.1")
    shown = np.array(data["weights"]["numbers"]).reshape(data["weights"]["shape"])
    np.testing.assert_allclose(shown, expected[: len(shown)], atol=1e-6)
    np.testing.assert_allclose(shown.sum(-1), 1, atol=1e-5)
    assert page.locator("text=not why the model answers").filter(visible=True).count() == 1
    page.focus(".shown .pw-field")
    page.keyboard.press("ArrowDown")
    said = page.inner_text(".shown .pw-readout")
    assert abs(float(said.rpartition(": ")[2].replace("<", "").rstrip(" %")) / 100 - expected[1, 0]) <= 0.0051


def test_keyboard_moves_between_grid_and_heads(visit: Any) -> None:
    page = visit("#/inspect?model=writer&text=It%20was&tool=heads")
    page.wait_for_selector(".pw-head-card")
    page.focus(".pw-head-card")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    title = ".pw-stage h3"
    page.wait_for_selector(f"{title}:text('layer 0, head 1')")
    for key, head in (("PageDown", "layer 1, head 1"), ("[", "layer 1, head 0"), ("PageUp", "layer 0, head 0")):
        page.keyboard.press(key)
        page.wait_for_selector(f"{title}:text('{head}')")
    page.keyboard.press("PageUp")  # no layer is above the first
    page.wait_for_url(re.compile(r"head=decoder\.0\.0"))
    page.reload()
    page.wait_for_selector(f"{title}:text('layer 0, head 0')")
    page.keyboard.press("Escape")
    page.wait_for_selector(".pw-head-card:visible")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "decoder, layer 0, head 0"


def test_sorting_of_heads_is_kept_in_the_address(visit: Any) -> None:
    page = visit("#/inspect?model=translator&text=eins&tool=heads")
    page.click(".shown >> text=encoder >> nth=1")
    page.click(".shown >> text=entropy")
    page.wait_for_url(re.compile("(?=.*part=encoder).*sort=entropy"))
    page.reload()
    page.wait_for_selector(".pw-sorted")
    assert page.locator(".pw-head-card").first.get_attribute("aria-label").startswith("encoder, layer")


def test_ticked_heads_are_ablated(visit: Any, server: Any) -> None:
    inspector = server.copies.get("writer").inspector
    text = "It was day 7"
    page = visit(f"#/inspect?model=writer&text={text}&tool=ablation")
    page.click("text=Try each head alone")
    page.wait_for_selector(".pw-importance td[style], .pw-importance button[style]")
    changes = inspector.head_importance(text)[0].changes
    said = page.locator(".pw-importance button >> nth=2").get_attribute("aria-label")
    assert said.startswith("decoder, layer 1, head 0, ")
    assert abs(float(said.split()[-2].replace("−", "-")) - changes[1, 0]) <= 0.01 * abs(changes[1, 0]) + 1e-3
    page.click("text=All heads")
    page.wait_for_selector(".pw-ablation")
    found = inspector.ablate(text, inspector.heads)
    figures = page.locator(".pw-ablation dd").all_inner_texts()
    assert figures[1:3] == [f"{loss:.3g}" for loss in (found.loss_before, found.loss_after)]
    page.click("text=None")
    page.wait_for_selector(".pw-ablation", state="detached")
    page = visit(f"#/inspect?model=writer&text={text}&tool=ablation&heads=decoder.9.9,decoder.1.1")  # of a larger model
    assert page.locator(".pw-ablation dd >> nth=0").inner_text() == "decoder 1·1"


def test_neighbours_of_a_word_and_of_a_neighbour_are_shown(visit: Any, server: Any) -> None:
    page = visit("#/inspect?model=writer&tool=embeddings&word=a")
    page.wait_for_selector(".pw-neighbours .pw-choose")
    expected = server.copies.get("writer").inspector.neighbours("a", 12)
    assert page.locator(".pw-neighbours bdi").all_inner_texts()[0] == expected.texts[0].replace(" ", "␣").replace(
        "\n", "⏎"
    )
    page.click(".pw-neighbours .pw-choose >> nth=0")
    page.wait_for_selector(".pw-neighbours th >> nth=0 >> text=/near “[^a]/")


def test_given_translation_is_inspected(visit: Any) -> None:
    page = visit("#/inspect?model=translator&text=eins%20zwei&target=two%20one&tool=tokens")
    page.wait_for_selector(".shown .pw-beside > .pw-passage")
    assert page.inner_text(".shown .pw-beside > .pw-passage").startswith("two one")
    page.fill("input[aria-label^=Translation]", "one")
    page.dblclick("button.main")  # the second click aborts the request of the first one
    page.wait_for_selector(".shown .pw-beside > .pw-passage:has-text('one'):not(:has-text('two'))")


def test_gradients_are_offered_for_tokens_with_a_score_and_the_next(visit: Any) -> None:
    script = """async () => {
      const { toolsFor } = await import("/screens/inspect/tools.js");
      const [controls, asked] = [document.createElement("div"), {}];
      const data = { tokens: [{ text: "It" }, { text: " was" }], log_probs: { size: 1 } };
      const ask = async (picture, extra) => ((asked[picture] = extra), { views: [{ data }] });
      const state = { get: (_, usual) => usual, number: (_, usual) => usual };
      const model = { kind: "writer", context_length: 9 };
      const here = { model, state, controls, ask, draw: () => {}, gone: () => false };
      await toolsFor(model).find(({ name }) => name === "gradients").show(here);
      return [[...controls.querySelectorAll("option")].map((each) => each.text), asked.attribution.position];
    }"""
    options, position = visit("#/write").evaluate(script)
    assert options == ["1 ␣was", "2 (next token)"] and position == 1, (
        "a model without a start token predicts no first token"
    )


def test_encoder_without_labels_is_opened_at_its_heads(visit: Any) -> None:
    script = """async () => {
      const { toolsFor } = await import("/screens/inspect/tools.js");
      return [[], ["bad", "good"]].map((labels) => toolsFor({ kind: "classifier", labels }).map(({ name }) => name));
    }"""
    without, with_labels = visit("#/write").evaluate(script)
    assert without == ["heads", "rollout", "arithmetic", "embeddings", "positions", "compare"]
    assert with_labels[0] == "tokens" and set(without) < set(with_labels)


def test_saved_page_opens_without_a_server(visit: Any, open_html: Any, tmp_path: Path) -> None:
    page = visit("#/inspect?model=writer&text=It%20was&tool=lens")
    page.wait_for_selector(".shown .pw-lens")
    page.click("text=Save")
    with page.expect_download() as download:
        page.click("text=Page (.html)")
    assert download.value.suggested_filename == "writer-lens.html"
    saved = open_html(download.value.path().read_text("utf-8"))
    saved.wait_for_selector("main[data-ready] .pw-lens-table")


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_view_can_be_saved_as_a_picture(visit: Any, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="pictures are an extra")
    page = visit("#/inspect?model=writer&text=It%20was&tool=heads")
    page.wait_for_selector(".pw-head-card")
    page.click("text=Save")
    with page.expect_download() as download:
        page.click(f"text=Picture (.{ending})")
    begin = download.value.path().read_bytes()[:60]
    assert begin.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in begin


def test_refused_view_shows_the_error_in_its_place(visit: Any) -> None:
    page = visit("#/inspect?model=writer&text=It&tool=embeddings", expect=("status of 400",))
    page.fill("input[aria-label='A word']", " ")
    page.click("button:text-is('Neighbours')")
    page.wait_for_selector(".pw-neighbours, .problem")
    page.route("**/inspect/lens", lambda route: route.fulfill(status=400, body='{"error": {"message": "no lens"}}'))
    page.click("text=Lens")
    page.wait_for_selector(".problem")
    assert page.inner_text(".problem") == "no lens"


def test_two_texts_are_compared_side_by_side(visit: Any, server: Any) -> None:
    inspector = server.copies.get("writer").inspector
    page = visit("#/inspect?model=writer&text=It%20was%20day%207&tool=compare")
    page.fill("input[name=other_text]", "It was night 7")
    page.keyboard.press("Enter")
    page.wait_for_selector(".shown .pw-comparison")
    assert page.locator(".pw-pair .pw-passage").all_inner_texts() == ["It was day 7", "It was night 7"]
    expected = compare(inspector.token_nlls("It was day 7"), inspector.token_nlls("It was night 7"))
    place = expected.first_texts.index("7")
    page.focus(f".pw-pair > :nth-child(2) [data-row='{place}']")
    said = page.inner_text(".pw-comparison .pw-panel")
    numbers = [float(each.replace("−", "-")) for each in re.findall(r"[-−]?\d+\.\d+(?= and| nats)", said)]
    assert numbers == pytest.approx([expected.first[place], expected.second[place]], rel=0.01)
    assert page.locator(".pw-pair .pw-current").count() == 2, "the same row is marked on both sides"
    page.wait_for_url(re.compile("other_text=It"))
    page.reload()
    page.wait_for_selector(".shown .pw-comparison")
    assert page.input_value("input[name=other_text]") == "It was night 7"


def test_two_models_and_their_heads_are_compared(visit: Any, server: Any, runs: Path) -> None:
    workers = server.registry._workers
    workers["other-writer"] = twin = ModelWorker.load(runs / "writer", "other-writer", workers["writer"].limits)
    try:
        page = visit("#/inspect?model=writer&text=It%20was&tool=compare&beside=model&what=heads")
        page.wait_for_selector(".shown .pw-statistics")
        statistics = server.copies.get("writer").inspector.head_statistics("It was")[0]
        assert page.locator(".pw-statistics tbody tr").count() == statistics.entropy.size
        assert page.locator(".pw-statistics thead th").all_inner_texts() == [
            "head",
            "writer",
            "other-writer",
            "difference",
        ]
        cells = page.locator(".pw-statistics tbody tr:has(th:text-is('decoder.1.0')) td").all_inner_texts()
        assert float(cells[0]) == pytest.approx(statistics.entropy[1, 0], rel=0.02) and float(cells[2]) == 0
        page.click(".pw-statistics button:text-is('previous')")
        page.click(".controls button:text-is('surprise')")
        page.wait_for_selector(".shown .pw-comparison")
        page.click(".controls button:text-is('heads')")
        page.wait_for_selector(".pw-statistics button[aria-pressed=true]:text-is('previous')")
    finally:
        del workers["other-writer"]
        twin.close()


def test_comparison_of_incompatible_models_is_refused(call_api: Any) -> None:
    status, found = call_api("inspect/compared/tokens", {"text": "a", "model": "writer", "other_model": "classifier"})
    assert status == 400 and "cannot be compared" in str(found)
    status, found = call_api("inspect/compared/heads?format=json", {"model": "writer", "text": "a", "other_text": "b"})
    assert status == 200 and found["views"][0]["data"]["names"] == ["the text", "the other text"]


@pytest.mark.parametrize("question", SLOW)
def test_client_that_disconnects_stops_its_inspection(runs: Path, question: str) -> None:
    worker = ModelWorker.load(runs / "classifier")
    has_begun, may_go_on, answered = threading.Event(), threading.Event(), []

    def answer(inspector: Inspector) -> None:
        has_begun.set()
        assert may_go_on.wait(10)
        answered.append(SLOW[question](inspector))

    async def ask_and_leave() -> None:
        asking = asyncio.create_task(run_inspection(worker, answer))
        await asyncio.to_thread(has_begun.wait, 10)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        may_go_on.set()
        assert await run_inspection(worker, SLOW[question]) is not None

    with ThreadPoolExecutor(1) as thread:  # other tests' browsers keep an event loop running in this thread
        thread.submit(asyncio.run, ask_and_leave()).result()
    assert not answered
    worker.close()
