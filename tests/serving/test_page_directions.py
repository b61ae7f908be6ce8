"""Texts of any script on the page: each stands on the side where it begins, in a list of others too."""

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
    """Beside which edge of its element each text stands."""
    return [each.evaluate(SIDE) for each in page.locator(selector).all()]


def answers(page: Any, address: str, change: Any) -> None:
    """The server's answer, changed."""

    def altered(route: Any) -> None:
        answer = route.fetch()
        found = answer.json()
        change(found)
        route.fulfill(response=answer, body=json.dumps(found))

    page.route(f"**/{address}", altered)


def test_every_translation_stands_on_its_own_side(visit: Any) -> None:
    def put(found: Any) -> None:
        for way, text in zip(found["sentences"][0]["ways"], (HEBREW, ENGLISH, ARABIC), strict=False):
            one, two = ({"text": each, "before": "", "probability": 0.5} for each in text.split())
            way.update(text=text, words=[one, {**two, "before": " "}], weights=[])

    page = visit("#/translate?model=translator")
    answers(page, "translating/sentences", put)
    page.fill(".source textarea", "eins zwei")
    page.wait_for_selector(".ways li >> nth=2")
    assert sides(page, "button.way")[:3] == ["right", "left", "right"]
    assert sides(page, ".words p") == ["right"]
    page.click(".history summary")
    assert sides(page, ".history li bdi") == ["right"]


def test_marks_lie_below_the_words_of_a_source_that_runs_from_right_to_left(visit: Any) -> None:
    page = visit("#/translate?model=translator&text=" + quote(f"{HEBREW}\n{ENGLISH}"))
    page.wait_for_selector(".copy span")
    styles = "e => ['direction', 'unicodeBidi', 'textAlign', 'width'].map(name => getComputedStyle(e)[name])"
    copy, field = (page.eval_on_selector(f".source {each}", styles) for each in (".copy", "textarea"))
    assert copy == field and copy[0] == "rtl"
    first, last = (page.locator(".copy span").nth(at).bounding_box()["x"] for at in (0, -1))
    assert first > last + 200, "the second line is English"


def test_lines_have_their_own_sides_also_while_the_model_writes(visit: Any) -> None:
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
    assert hebrew in page.evaluate(places), "as in the blocks of a text that grows"


def test_examples_and_branches_are_cut_where_their_text_ends(visit: Any, server: Any) -> None:
    page = visit("#/write?model=writer")
    answers(page, "models", lambda found: [each.update(examples=[HEBREW, ENGLISH]) for each in found["models"]])
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
def test_rows_and_samples_stand_on_their_side(visit: Any, text: str, side: str) -> None:
    page = visit("#/classify?model=classifier")
    table = f"text\n{text}\n{text}\n".encode()
    page.set_input_files("input[type=file]", {"name": "t.csv", "mimeType": "text/csv", "buffer": table})
    page.wait_for_selector(".rows td.text")
    assert sides(page, ".rows td.text") == [side, side]
    answers(page, "samples?*", lambda found: [each.update(prompt=text) for each in found["samples"]])
    page.goto(f"{page.url.partition('#')[0]}#/runs?runs=%5B%22writer%22%5D")
    page.wait_for_selector(".tried .prompt")
    assert set(
        page.eval_on_selector_all(".tried .prompt", "all => all.map(each => getComputedStyle(each).direction)")
    ) == {"rtl" if side == "right" else "ltr"}


def test_texts_say_in_which_language_they_are(visit: Any) -> None:
    page = visit("#/translate?model=translator")
    answers(page, "models", lambda found: [each.update(languages=["de", "ja"]) for each in found["models"]])
    page.reload()
    page.fill(".source textarea", "eins zwei")
    page.wait_for_selector(".ways")
    found = [page.get_attribute(each, "lang") for each in (".source textarea", ".copy", ".words", ".ways")]
    assert found == ["de", "de", "ja", "ja"]
