"""The model map on the Inspect screen: its numbers equal the model's, and it works by keyboard."""

import re
from typing import Any

import numpy as np
import pytest

from penwright.tokenizers import TextStream

from .conftest import eventually

MODEL = ".shown .pw-flowmap"
TEXTS = {"writer": "It was day", "translator": "eins zwei drei", "classifier": "a fine film"}


def fetch_view(page: Any, picture: str, **body: Any) -> Any:
    script = """async ([picture, asked]) => {
      const { askPacked } = await import("/api.js");
      const { Tensor } = await import("/views/bytes.js");
      const plain = (_, value) => (value instanceof Tensor ? [...value.values] : value);
      return JSON.parse(JSON.stringify(await askPacked(`inspect/${picture}`, asked), plain));
    }"""
    return page.evaluate(script, [picture, body])["views"][0]["data"]


@pytest.mark.parametrize("kind", list(TEXTS))
def test_model_map_shows_the_models_numbers(visit: Any, server: Any, kind: str) -> None:
    text, inspector = TEXTS[kind], server.copies.get(kind).inspector
    page = visit(f"#/inspect?model={kind}&text={text}&tool=model&position=1")
    page.wait_for_selector(MODEL)
    expected = inspector.model_map(text, position=1)
    found = fetch_view(page, "model", model=kind, text=text, position=1)["map"]
    for stack, own in zip(found["stacks"], expected.stacks, strict=True):
        for each, one in zip(stack["sublayers"], own.sublayers, strict=True):
            np.testing.assert_allclose(each["added"], one.added, rtol=1e-5)
            np.testing.assert_allclose(each["weights"], one.weights.ravel(), atol=1e-6)
    shown = page.locator(".pw-model-side .pw-bars").first.locator("td").all_inner_texts()
    for text_shown, probability in zip(shown, expected.outcomes.probabilities, strict=True):
        assert abs(float(text_shown.replace("<", "").rstrip(" %")) / 100 - probability) <= 0.0051
    rows = page.locator(".shown details.pw-twin").first
    rows.locator("summary").click()
    rows.locator("tbody td").first.wait_for()  # the table is built after the click
    cells = rows.locator("tbody tr").first.locator("td").all_inner_texts()
    first = expected.stacks[0].sublayers[0]
    assert float(cells[0]) == pytest.approx(first.added[expected.stacks[0].position], abs=6e-4)


@pytest.mark.parametrize("kind", list(TEXTS))
def test_keyboard_leads_from_the_map_to_one_product_and_back(visit: Any, server: Any, kind: str) -> None:
    text, inspector = TEXTS[kind], server.copies.get(kind).inspector
    page = visit(f"#/inspect?model={kind}&text={text}&tool=model", width=390, height=844)
    page.wait_for_selector(MODEL)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "must fit a phone's screen"
    page.focus(MODEL)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-head-box")
    stack = "encoder" if kind == "classifier" else "decoder"
    place = inspector.place_detail(text, f"{stack}.0")
    length = float(page.inner_text(".pw-flow-name span >> nth=0").rsplit(" ", 1)[1])
    assert length == pytest.approx(float(np.linalg.norm(place.sublayers[0].before)), rel=0.006)
    page.focus(".pw-head-box")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-model-inner .pw-field")
    page.focus(".pw-model-inner .pw-field")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-row-table")
    position = int(page.inner_text(".pw-crumbs [aria-current]").split()[1])
    row = inspector.arithmetic(text, f"{stack}.0.0").row(position)
    shown = page.locator(".pw-row-table td:nth-child(2)").all_inner_texts()
    expected = [each for each, masked in zip(row.scores[0], row.masked[0], strict=True) if np.isfinite(masked)]
    np.testing.assert_allclose([float(each.replace("−", "-")) for each in shown], expected, atol=0.006)
    page.locator(".pw-row-table button").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".pw-sum")
    for _ in range(4):
        page.keyboard.press("Escape")
    page.wait_for_selector(f"{MODEL}:visible")


LAYOUT = """async ([asked, width]) => {
  const { askPacked } = await import("/api.js");
  const { layout, hit } = await import("/views/flow.js");
  const plan = layout((await askPacked("inspect/model", asked)).views[0].data.map, width);
  return plan.places.flatMap((place) => place.columns.map((_, column) => {
    const [x, found] = [place.x(column), hit(plan, place.x(column), place.y(0))];
    const isInside = place.left <= x && x < place.left + place.wide && x < width;
    return isInside && found?.place === place && found.column === column;
  }));
}"""


def test_every_stack_is_drawn_inside_the_picture(visit: Any) -> None:
    page = visit("#/inspect")
    for kind, text in TEXTS.items():
        for width in (360, 1000):
            inside = page.evaluate(LAYOUT, [{"model": kind, "text": text}, width])
            assert len(inside) > 3 and all(inside), (kind, width)


def test_next_token_appends_the_likeliest_token(visit: Any, server: Any) -> None:
    text, inspector = TEXTS["writer"], server.copies.get("writer").inspector
    page = visit(f"#/inspect?model=writer&text={text}&tool=model")
    page.wait_for_selector(MODEL)
    outcomes, tokenizer = inspector.model_map(text).outcomes, inspector.tokenizer
    expected = outcomes.texts[0]
    texts = zip(outcomes.ids.tolist(), outcomes.texts, strict=True)
    whole = [token for token, shown in texts if TextStream(tokenizer).push(token) == shown]
    assert 0 < len(whole) < 10, "some tokens are special, or parts of characters"
    assert page.locator(".pw-model-side .pw-bars >> nth=0 >> button").count() == len(whole)
    page.click("text=next token")
    page.wait_for_function("length => document.getElementById('inspect-text').value.length > length", arg=len(text))
    assert page.input_value("#inspect-text") == text + str(expected)
    page.wait_for_selector(MODEL)
    page.click("text=back")
    page.wait_for_url(re.compile("position="))
    page.fill("#inspect-text", "I")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f"{MODEL}, .problem")
    assert page.locator(".problem").count() == 0, "the old position is dropped with the old text"


def test_circuit_shows_a_sentence_for_each_path(visit: Any, server: Any) -> None:
    text, inspector = TEXTS["translator"], server.copies.get("translator").inspector
    page = visit(f"#/inspect?model=translator&text={text}&tool=model&position=1")
    page.wait_for_selector(MODEL)
    page.click("button:text-is('Circuit')")
    page.wait_for_selector(".pw-path")
    found = inspector.paths(text, position=1, n_edges=16)
    assert page.locator(".pw-path span:first-child").all_inner_texts() == [found.sentence(each) for each in found.edges]
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(
        "(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight)(document.querySelector('.pw-circuit'))"
    )


def test_patching_and_logit_attribution_are_shown(visit: Any, server: Any) -> None:
    inspector = server.copies.get("writer").inspector
    page = visit("#/inspect?model=writer&text=It%20was%20day&tool=patching&other_text=It%20was%20dry")
    page.wait_for_selector(".pw-patching .pw-field")
    (found,) = inspector.patching("It was day", "It was dry")
    assert page.inner_text(".pw-patching > p >> nth=0") == found.explanation
    page.click("text=Parts")
    page.wait_for_selector(".pw-parts-table")
    parts = inspector.logit_attribution("It was day")
    assert page.inner_text(".pw-parts > p >> nth=0") == parts.explanation


@pytest.mark.parametrize("kind", list(TEXTS))
def test_logit_attribution_fits_a_phone_in_both_themes(visit: Any, kind: str) -> None:
    page = visit(f"#/inspect?model={kind}&text={TEXTS[kind]}&tool=parts", width=390, height=844)
    page.wait_for_selector(".pw-parts-table")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    colour = "getComputedStyle(document.querySelector('.pw-parts-table tr:last-child td')).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    assert eventually(lambda: page.evaluate(colour) != light, 5)


def test_mismatched_texts_and_unknown_places_are_refused(call_api: Any, server: Any) -> None:
    status, answer = call_api("inspect/patching?format=json", {"model": "writer", "text": "It", "other_text": "It was"})
    assert status == 400 and "tokens" in answer["error"]["message"]
    status, answer = call_api("inspect/place?format=json", {"model": "writer", "text": "It", "place": "decoder.77"})
    assert status == 400 and "no place" in answer["error"]["message"]
