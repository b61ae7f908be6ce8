"""The Write screen."""

import re
import time
from typing import Any

import numpy as np
import pytest
import torch

from penwright.tokenizers.tokenizer import never_generated

from .conftest import eventually

PLACE = "#/write?model=writer&text=It%20was&length=12&temperature=0.7&top_k=5&seed=3"
TEXT_IN_ADDRESS = "new URLSearchParams(location.hash.split('?')[1]).get('text')"

ALT_GRAPH = """() => {
  const keys = { code: "Digit0", ctrlKey: true, altKey: true, modifierAltGraph: true };
  const event = new KeyboardEvent("keydown", { key: "@", ...keys, bubbles: true, cancelable: true });
  return document.querySelector(".editor").dispatchEvent(event);
}"""  # false if the page has handled the key


def wait_until_done(page: Any) -> None:
    page.wait_for_selector("button.main:not([disabled])")


def write(page: Any) -> str:
    page.focus(".editor")
    page.keyboard.press("Control+End")
    page.keyboard.press("Control+Enter")
    wait_until_done(page)
    return page.evaluate("document.querySelector('.editor').textContent")


def percent(share: float) -> str:
    """Return a probability as the page shows it."""
    return "<0.1 %" if share < 0.001 else f"{100 * share:.{1 if share < 0.1 else 0}f} %"


def probabilities(server: Any, text: str) -> np.ndarray:
    """Return the probabilities of the next token from one plain forward pass."""
    generator = server.copies.get("writer").generator
    tokens = [generator.tokenizer.start_id, *generator.tokenizer.encode(text)]
    with torch.inference_mode():
        logits = generator.model(torch.tensor([tokens]))[0, -1].double().numpy()
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def test_token_details_equal_a_plain_forward_pass(visit: Any, server: Any) -> None:
    page = visit(PLACE)
    text = write(page)
    tokenizer = server.copies.get("writer").generator.tokenizer
    spans = page.locator(".editor .pw-token").all_inner_texts()
    assert "It was" + "".join(spans) == text
    place = 4
    page.hover(f".editor .pw-token >> nth={place}")
    expected = probabilities(server, "It was" + "".join(spans[:place]))
    (token,) = tokenizer.encode(spans[place])
    said = page.inner_text(".choices .hint")
    assert said.startswith(percent(expected[token]))
    entropy = -(expected * np.log(expected)).sum()
    assert f"entropy {float(f'{entropy:.3g}'):g} nats" in said
    rows = page.locator(".choices tbody tr").all_inner_texts()
    best = np.argsort(-expected, kind="stable")[:10]
    assert len(rows) == 10
    may_come = np.where(np.isin(range(len(expected)), never_generated(tokenizer)), 0, expected)
    sharp = np.where(may_come >= np.sort(may_come)[-5], may_come, 0) ** (1 / 0.7)
    chances = (sharp / sharp.sum())[best]
    for row, token, chance in zip(rows, best, chances, strict=True):
        assert re.findall(r"<?[\d.]+ %", row) == [percent(expected[token]), percent(chance) if chance else "0 %"]


def test_text_depends_on_the_seed_alone(visit: Any) -> None:
    page = visit(PLACE.replace("temperature=0.7&top_k=5", "temperature=2"))
    first = write(page)
    page.keyboard.press("Control+z")
    assert page.inner_text(".editor") == "It was"
    assert write(page) == first
    page.click("text=Undo")
    page.fill("label:has-text('Seed') input", "4")
    assert write(page) != first


@pytest.mark.parametrize("way", ["click", "key"])
def test_choosing_another_token_starts_a_branch(visit: Any, way: str) -> None:
    page = visit(PLACE)
    first = write(page)
    start = len("It was") + 3
    if way == "click":
        page.hover(".editor .pw-token >> nth=3")
        chosen = page.inner_text(".choices tbody tr:nth-child(4) bdi")
        page.click(".choices tbody tr:nth-child(4) button")
    else:
        page.keyboard.press("Control+Home")
        for _ in range(start + 1):
            page.keyboard.press("ArrowRight")
        page.wait_for_selector(".pw-current[data-place='4']")
        chosen = page.inner_text(".choices tbody tr:nth-child(4) bdi")
        assert page.evaluate(ALT_GRAPH), "AltGr types a character"
        page.keyboard.press("Alt+Digit4")
    wait_until_done(page)
    second = page.evaluate("document.querySelector('.editor').textContent")
    assert second[:start] == first[:start]
    label = "async text => (await import('/views/tokens.js')).label(text)"
    assert page.evaluate(label, second[start]) == chosen
    assert page.locator(".branches li").count() == 2
    page.click(".branches li:first-child button")
    assert page.evaluate("document.querySelector('.editor').textContent") == first
    assert page.locator(".editor .pw-token").count() == 12


def test_stopping_frees_the_model(visit: Any, server: Any) -> None:
    page = visit("#/write?model=writer&text=It&length=4096&temperature=0")
    page.click("button:has-text('Continue')")
    page.wait_for_selector(".editor .pw-token >> nth=20", state="attached")  # a line break is not visible
    page.keyboard.press("Escape")
    wait_until_done(page)
    count = page.locator(".editor .pw-token").count()
    assert count < 4000
    start = time.monotonic()
    page.evaluate("fetch('next', { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{}' })")
    assert time.monotonic() - start < 5, "the stopped generation must not hold the queue"
    assert page.locator(".editor .pw-token").count() == count


def test_text_being_written_is_kept_when_the_screen_is_left(visit: Any) -> None:
    page = visit("#/write?model=writer&text=It&length=4096&temperature=0")
    editor = "document.querySelector('.editor')?.textContent"
    for leave_and_return in (lambda: page.keyboard.press("Alt+Shift+Digit1"), page.go_back):
        page.click("button:has-text('Continue')")
        page.wait_for_selector(".editor .pw-token >> nth=20", state="attached")
        written = page.evaluate(editor)
        page.keyboard.press("Alt+Shift+Digit6")
        page.wait_for_selector("main[data-ready='runs']")
        leave_and_return()
        page.wait_for_selector("main[data-ready='write']")
        assert page.evaluate(editor).startswith(written)
        page.fill(".editor", "It")


def test_moving_a_slider_needs_no_new_forward_pass(visit: Any, server: Any) -> None:
    logits = server.copies.get("writer").logits
    page = visit("#/write?model=writer&text=It%20was")
    page.wait_for_selector(".choices tbody tr")
    passes = logits.cache_info().misses
    with page.expect_response("**/next"):
        page.fill("label:has-text('Temperature') input", "0.2")
    with page.expect_response("**/next"):
        page.fill("label:has-text('Top k') input", "1")
    page.wait_for_selector("text=1 token can be drawn")
    assert logits.cache_info().misses == passes


def test_reload_restores_text_settings_and_colours(visit: Any) -> None:
    page = visit(PLACE)
    text = write(page)
    shares = "[...document.querySelectorAll('.editor .pw-token')].map(each => each.style.getPropertyValue('--share'))"
    page.click("text=entropy")
    before = page.evaluate(shares)
    assert eventually(lambda: page.evaluate(TEXT_IN_ADDRESS) == text)
    assert eventually(lambda: page.evaluate("location.hash.includes('entropy')"))  # the address is updated with a delay
    page.reload()
    page.wait_for_selector(".editor .pw-token")
    assert page.evaluate("document.querySelector('.editor').textContent") == text
    assert page.evaluate(shares) == before
    assert page.input_value("label:has-text('Temperature') input") == "0.7"
    assert page.get_attribute("text=entropy", "aria-pressed") == "true"


def test_typed_text_is_scored(visit: Any, server: Any) -> None:
    page = visit("#/write?model=writer&text=It%20was%20day%207")
    page.click("text=Score my text")
    page.wait_for_selector(".editor .pw-token")
    assert page.locator(".editor .pw-token").count() == len("It was day 7")
    page.hover(".editor .pw-token >> nth=7")
    expected = probabilities(server, "It was ")
    share = expected[server.copies.get("writer").generator.tokenizer.encode("d")[0]]
    assert page.inner_text(".choices .hint").startswith(percent(share))


def test_text_is_never_interpreted_as_html(visit: Any) -> None:
    page = visit("#/write?model=writer&text=x")
    page.focus(".editor")
    hostile = "<img src=x onerror=alert(1)><b>é 😀</b>&amp;"
    page.keyboard.insert_text(hostile)
    page.click("text=Score my text")
    page.wait_for_selector(".editor .pw-token")
    assert page.evaluate("document.querySelector('.editor').textContent") == hostile + "x"
    assert page.locator(".editor img, .editor b").count() == 0
    page.click("text=Inspect >> nth=-1")
    page.wait_for_selector(".shown .pw-passage")
    assert page.locator("main img, main b").count() == 0
    assert "<img" in page.evaluate("document.querySelector('.shown .pw-beside > .pw-passage').textContent")


def test_typed_and_pasted_line_breaks_are_kept(visit: Any) -> None:
    page = visit("#/write?model=writer")
    page.focus(".editor")
    page.keyboard.type("a\n\nb\n")
    page.evaluate("""() => {
      const data = new DataTransfer();
      data.setData("text/plain", "c\\r\\nd");
      const given = { inputType: "insertFromPaste", dataTransfer: data, bubbles: true, cancelable: true };
      document.querySelector(".editor").dispatchEvent(new InputEvent("beforeinput", given));
    }""")
    page.keyboard.type("e")
    page.keyboard.press("Backspace")
    assert eventually(lambda: page.evaluate(TEXT_IN_ADDRESS) == "a\n\nb\nc\nd")


def test_narrow_screen_shows_choices_of_a_token_until_closed(visit: Any) -> None:
    page = visit(PLACE.replace("length=12", "length=4"), width=390, height=844)
    write(page)
    page.wait_for_selector(".choices h2:has-text('What may come next')")
    assert page.locator(".of-part").count() == 0, "no token is selected after writing"
    page.click(".editor .pw-token >> nth=1")
    box = page.locator(".choices").bounding_box()
    assert box["y"] > 300, "must lie below the text"
    assert box["y"] + box["height"] <= 844 - 62, "must lie above the rail"
    page.click(".choices .close")
    assert page.locator(".of-part").count() == 0


GROWING_TEXT = """async ([given, pieces]) => {
  const { makeEditor } = await import("/screens/write/editor.js");
  const { plain } = await import("/screens/write/text.js");
  const token = { id: 1, logProb: -1, rank: 1, entropy: 1, likeliest: [] };
  const editor = makeEditor({ changed: () => {}, pointed: () => {}, placeholder: "" });
  document.querySelector(".editor").replaceWith(editor.root);
  const places = () => [...editor.root.querySelectorAll(".pw-token")].map((span) => {
    const { left, top } = span.getClientRects()[0];
    return [Math.round(left), Math.round(top + editor.root.scrollTop)];
  });
  editor.draw([plain(given)]);
  editor.lock(true);
  for (const text of pieces) editor.append([{ text, tokens: [token] }]);
  const lines = [...editor.root.querySelectorAll("div")].map((line) => line.textContent);
  const written = { text: editor.root.textContent, places: places() };
  editor.lock(false);
  const flat = { text: editor.root.textContent, places: places() };
  return { lines, written, flat, left: editor.root.querySelectorAll("div").length };
}"""


@pytest.mark.parametrize("given", ["", "A line.\n", "A line.\nand half", "\n\n"])
def test_lines_do_not_move_when_writing_ends(visit: Any, given: str) -> None:
    page = visit("#/write?model=writer")
    pieces = [" one", " two\n", "\n", "three", "\n\n", " four\nfive", " six " * 60, "seven\n"]
    found = page.evaluate(GROWING_TEXT, [given, pieces])
    assert found["written"]["text"] == given + "".join(pieces)
    assert found["flat"]["text"] == given + "".join(pieces) + "\n", "the last line break must be visible"
    assert found["written"]["places"] == found["flat"]["places"] and found["left"] == 0
    assert "".join(found["lines"]) == given + "".join(pieces)
    assert all(line.endswith("\n") for line in found["lines"])
    assert len(found["lines"]) == 4 + given.endswith("\n"), "the given text is one block, whatever line breaks it has"


MANY_LINES = """async lines => {
  const { makeEditor } = await import("/screens/write/editor.js");
  const editor = makeEditor({ changed: () => {}, pointed: () => {}, placeholder: "" });
  document.querySelector(".editor").replaceWith(editor.root);
  const token = { id: 1, logProb: -1, rank: 1, entropy: 1, likeliest: [] };
  const frames = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  editor.draw(lines.map((text) => ({ text, tokens: [token] })));
  editor.root.scrollTop = 1000;
  const seen = () => [editor.root.scrollHeight, editor.root.scrollTop];
  const before = seen();
  editor.lock(true);
  await frames();
  const locked = seen();
  const spans = [...editor.root.querySelectorAll(".pw-token")];
  const laidOut = spans.filter((span) => span.checkVisibility({ contentVisibilityAuto: true })).length;
  editor.lock(false);
  await frames();
  return { before, locked, after: seen(), laidOut };
}"""


def test_lines_out_of_sight_are_not_laid_out_while_writing(visit: Any) -> None:
    page = visit("#/write?model=writer")
    found = page.evaluate(MANY_LINES, [*("far away " * (number % 40) + "\n" for number in range(400)), "the end"])
    assert found["before"] == found["locked"] == found["after"]
    assert 10 < found["laidOut"] < 200
