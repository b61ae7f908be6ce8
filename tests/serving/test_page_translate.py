"""The Translate screen."""

import re
from math import exp
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from penwright.translation.alignment import Aligner
from penwright.translation.documents import translated

from .conftest import eventually

PLACE = "#/translate?model=translator&text="
FILLED = ".words .sentence:not([aria-busy])"


def visit_with(visit: Any, text: str, *size: Any) -> Any:
    page = visit(PLACE + quote(text), *size)
    page.wait_for_selector(".words .sentence")
    wait_until_translated(page)
    return page


def wait_until_translated(page: Any) -> None:
    page.wait_for_selector(".words:not(:has([aria-busy]))")


def shown_words(page: Any) -> list[str]:
    text: str = page.evaluate("[...document.querySelectorAll('.words .sentence')].map(e => e.textContent).join(' ')")
    return text.split()


def expected_words(text: str) -> list[str]:
    """Return the words of a text as the page shows them."""
    return text.split() or ["∅"]


def test_typed_text_is_translated_as_by_the_library(visit: Any, server: Any) -> None:
    page = visit("#/translate?model=translator")
    page.fill(".source textarea", "eins zwei drei")
    page.wait_for_selector(FILLED)
    expected = server.copies.get("translator").translator.translate(["eins zwei drei"], n_best=5)[0]
    ways = page.locator(".way").all_inner_texts()
    assert [way.split() for way in ways] == [expected_words(each.text) for each in expected.candidates]
    sure = [float(each.strip("<> %sure")) for each in page.locator(".ways .hint").all_inner_texts()]
    assert sure == sorted(sure, reverse=True) and sure[0] == pytest.approx(
        100 * exp(expected.candidates[0].score), abs=1
    )
    page.wait_for_url(re.compile("text=eins.zwei.drei"))


def test_pointing_at_a_word_marks_its_alignment(visit: Any, server: Any) -> None:
    text = "eins zwei 7,5 km"
    page = visit_with(visit, text)
    with page.expect_response("**/translating/links"):  # the model computes for one thread at a time
        page.locator(".words .word").first.hover()
    look = "parseInt(document.querySelector('.copy span').style.getPropertyValue('--look'))"
    assert eventually(lambda: (page.evaluate(look) or 0) > 0)  # the page's security policy forbids wait_for_function
    translator = server.copies.get("translator").translator
    best = translator.translate([text], n_best=5)[0].text
    (weights,) = Aligner(translator.model, translator.tokenizer, None).weights([(text, best)])
    marks = page.evaluate(
        "[...document.querySelectorAll('.copy span')].map(e => parseInt(e.style.getPropertyValue('--look')))"
    )
    np.testing.assert_allclose(marks, 100 * weights[0], atol=1)


def test_choosing_another_word_retranslates_from_there(visit: Any, server: Any) -> None:
    text = "eins zwei drei"
    page = visit_with(visit, text)
    page.locator(".words .word").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".other-words button")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".details .hint:has-text('You chose this beginning')")
    wait_until_translated(page)
    translator = server.copies.get("translator").translator
    chosen = translator.alternatives(text, "", 8)[1].word
    expected = translator.translate([text], n_best=5, prefixes=f"{chosen} ")[0].text
    assert shown_words(page) == expected_words(expected)


def test_another_candidate_can_be_chosen(visit: Any) -> None:
    page = visit_with(visit, "eins zwei")
    other = page.locator(".way").nth(1)
    text = other.inner_text()
    other.click()
    assert shown_words(page) == text.split()
    assert page.get_attribute(".way >> nth=1", "aria-pressed") == "true"


def test_glossary_terms_are_shown_as_chips(visit: Any) -> None:
    page = visit_with(visit, "eins zwei 7,5 km")
    page.click(".glossary summary")
    page.click("text=Add a term")
    page.fill("[aria-label='Term']", "zwei")
    page.fill("[aria-label='Required words']", "couple")
    page.keyboard.press("Tab")
    page.wait_for_selector(".chip:has-text('zwei → couple')")
    chips = page.locator(".chip").all_inner_texts()
    assert any("zwei → couple" in chip for chip in chips) and any(
        "7,5 km" in chip and "stays" in chip for chip in chips
    )
    assert page.locator(".copy .term").all_inner_texts()[0] == "zwei"
    page.wait_for_url(re.compile("glossary=zwei%09couple"))


def test_alignment_and_beam_search_are_drawn_when_opened(visit: Any) -> None:
    page = visit_with(visit, "eins zwei")
    page.click("summary:has-text('Word alignment')")
    page.wait_for_selector(".pw-alignment")
    page.click("summary:has-text('Beam search')")
    page.wait_for_selector(".pw-beam .pw-node")


def test_document_is_saved_as_the_library_translates_it(visit: Any, server: Any) -> None:
    document = f"Eins zwei.\n\n  - drei vier\n\n{'zwei drei ' * 6}\n{'vier ' * 9}"
    page = visit_with(visit, document)
    with page.expect_download() as waiting:
        page.click("button:has-text('Save')")
    saved = waiting.value.path().read_text(encoding="utf-8")
    translator = server.copies.get("translator").translator

    def best(texts: Any) -> list[str]:
        return [each.text for each in translator.translate(texts, n_best=5)]

    assert saved == translated(document, "en", best)


def test_history_is_kept_in_the_browser_until_cleared(visit: Any) -> None:
    page = visit_with(visit, "eins zwei")
    page.click(".history summary")
    assert page.locator(".history li button").all_inner_texts() == ["eins zwei"]
    page.click(".history button:has-text('Clear')")
    assert page.is_hidden(".history") and page.evaluate("localStorage.getItem('penwright-translations')") == "[]"


def test_text_is_never_interpreted_as_html(visit: Any) -> None:
    page = visit_with(visit, "<img src=x onerror=alert(1)> eins")
    assert page.locator(".pane img").count() == 0
    assert page.evaluate("document.querySelector('.copy').textContent").startswith("<img src=x")


def test_only_changed_sentences_of_the_last_edit_are_translated(visit: Any) -> None:
    page = visit_with(visit, "eins zwei. drei vier.")
    requests = []
    page.on("request", lambda request: requests.append(request.post_data) if "/sentences" in request.url else None)
    with page.expect_response("**/translating/sentences"):
        page.fill(".source textarea", "eins zwei. drei fünf.")
        page.fill(".source textarea", "eins zwei. drei sechs.")
    wait_until_translated(page)
    assert len(requests) == 1 and "sechs" in requests[0] and "eins zwei" not in requests[0]
