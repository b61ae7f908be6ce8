"""Text direction on the page: each text is aligned to the side where its script begins."""

import json
from typing import Any
from urllib.parse import quote

import pytest

HEBREW, ARABIC, ENGLISH = "שלום לכולם", "مرحبا بالعالم", "hello, world"
SIDE = """element => {
  const range = document.createRange();
  range.selectNodeContents(element);
  const [text, box] = [range, element].map(each => each.getBoundingClientRect());
  const style = getComputedStyle(element);
  const left = text.left - box.left - parseFloat(style.paddingLeft) - parseFloat(style.borderLeftWidth);
  const right = box.right - text.right - parseFloat(style.paddingRight) - parseFloat(style.borderRightWidth);
  return Math.abs(left) < Math.abs(right) ? "left" : "right";
}"""


def sides(page: Any, selector: str) -> list[str]:
    """Return the edge of its element to which each text is aligned."""
    return [each.evaluate(SIDE) for each in page.locator(selector).all()]


def alter_response(page: Any, address: str, change: Any) -> None:
    """Change the JSON of the server's response."""

    def altered(route: Any) -> None:
        answer = route.fetch()
        found = answer.json()
        change(found)
        route.fulfill(response=answer, body=json.dumps(found))

    page.route(f"**/{address}", altered)


def test_each_translation_is_aligned_by_its_direction(visit: Any) -> None:
    def put(found: Any) -> None:
        for way, text in zip(found["sentences"][0]["ways"], (HEBREW, ENGLISH, ARABIC), strict=False):
            one, two = ({"text": each, "before": "", "probability": 0.5} for each in text.split())
            way.update(text=text, words=[one, {**two, "before": " "}], weights=[])

    page = visit("#/translate?model=translator")
    alter_response(page, "translating/sentences", put)
    page.fill(".source textarea", "eins zwei")
    page.wait_for_selector(".ways li >> nth=2")
    assert sides(page, "button.way")[:3] == ["right", "left", "right"]
    assert sides(page, ".words p") == ["right"]
    page.click(".history summary")
    assert sides(page, ".history li bdi") == ["right"]


def test_marks_lie_below_words_of_a_right_to_left_source(visit: Any) -> None:
    page = visit("#/translate?model=translator&text=" + quote(f"{HEBREW}\n{ENGLISH}"))
    page.wait_for_selector(".copy span")
    styles = "e => ['direction', 'unicodeBidi', 'textAlign', 'width'].map(name => getComputedStyle(e)[name])"
    copy, field = (page.eval_on_selector(f".source {each}", styles) for each in (".copy", "textarea"))
    assert copy == field and copy[0] == "rtl"
    first, last = (page.locator(".copy span").nth(at).bounding_box()["x"] for at in (0, -1))
    assert first > last + 200, "the second line is English"


def test_lines_keep_their_alignment_while_the_model_writes(visit: Any) -> None:
    places = """() => {
      const range = document.createRange();
      range.selectNodeContents(document.querySelector(".editor"));
      return [...range.getClientRects()].filter(({ width }) => width > 40).map(({ left }) => left);
    }"""
    page = visit(f"#/write?model=writer&text={quote(f'{ENGLISH}{chr(10)}{HEBREW}')}")
    english, hebrew = page.evaluate(places)
    assert hebrew > english + 200
    page.evaluate("""() => {
      const line = document.createElement("div");
      line.append(document.querySelector(".editor").firstChild);
      document.querySelector(".editor").append(line);
    }""")
    assert hebrew in page.evaluate(places), "the same inside a block, as while the model writes"


def test_examples_and_branches_have_their_own_direction(visit: Any, server: Any) -> None:
    page = visit("#/write?model=writer")
    alter_response(page, "models", lambda found: [each.update(examples=[HEBREW, ENGLISH]) for each in found["models"]])
    page.goto(f"{server.address}/#/write?model=writer&length=2")
    page.reload()
    directions = "all => all.map(each => getComputedStyle(each).direction)"
    page.wait_for_selector(".examples button")
    assert page.eval_on_selector_all(".examples button", directions) == ["rtl", "ltr"]
    for at in (0, 1):
        page.fill(".editor", "")
        page.click(f".examples button >> nth={at}")
        page.wait_for_selector("button.main:not([disabled])")
    assert page.eval_on_selector_all(".branches button", directions) == ["rtl", "ltr"]


@pytest.mark.parametrize(("text", "side"), [(ARABIC, "right"), (ENGLISH, "left")])
def test_rows_and_samples_are_aligned_by_direction(visit: Any, text: str, side: str) -> None:
    page = visit("#/classify?model=classifier")
    table = f"text\n{text}\n{text}\n".encode()
    page.set_input_files("input[type=file]", {"name": "t.csv", "mimeType": "text/csv", "buffer": table})
    page.wait_for_selector(".rows td.text")
    assert sides(page, ".rows td.text") == [side, side]
    alter_response(page, "samples?*", lambda found: [each.update(prompt=text) for each in found["samples"]])
    page.goto(f"{page.url.partition('#')[0]}#/runs?runs=%5B%22writer%22%5D")
    page.wait_for_selector(".tried .prompt")
    assert set(
        page.eval_on_selector_all(".tried .prompt", "all => all.map(each => getComputedStyle(each).direction)")
    ) == {"rtl" if side == "right" else "ltr"}


def test_texts_have_lang_attributes(visit: Any) -> None:
    page = visit("#/translate?model=translator")
    alter_response(page, "models", lambda found: [each.update(languages=["de", "ja"]) for each in found["models"]])
    page.reload()
    page.fill(".source textarea", "eins zwei")
    page.wait_for_selector(".ways")
    found = [page.get_attribute(each, "lang") for each in (".source textarea", ".copy", ".words", ".ways")]
    assert found == ["de", "de", "ja", "ja"]
