"""The Classify screen."""

from typing import Any
from urllib.parse import quote

import numpy as np

TEXT = "a fine film number 3"
TABLE = 'text,label\n"a fine, ""old"" film",good\na dull film,bad\na dull film number 9,good\nno label here,?\n'


def test_labels_attribution_and_gap_equal_the_models(visit: Any, server: Any) -> None:
    page = visit(f"#/classify?text={quote(TEXT)}")
    page.wait_for_selector(".picture .pw-attribution")
    worker = server.copies.get("classifier")
    (found,) = worker.classifier.classify([TEXT])
    rows = page.locator(".labels tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == list(found.scores)
    expected = worker.inspector.attribution(TEXT)
    page.click(".picture summary")
    page.wait_for_selector(".picture td")
    values = [float(text.replace("−", "-")) for text in page.locator(".picture .pw-twin td").all_inner_texts()]
    np.testing.assert_allclose(values, expected.values, rtol=0.01, atol=0.001)
    assert "completeness gap" in page.inner_text(".picture .pw-title")


def test_other_labels_and_methods_can_be_explained(visit: Any, server: Any) -> None:
    page = visit(f"#/classify?text={quote(TEXT)}")
    page.wait_for_selector(".picture .pw-attribution")
    page.click("button:has-text('leaving out')")
    page.wait_for_selector(".picture .pw-title:has-text('leaving out')")
    other = page.locator(".labels .pw-choose").nth(1)
    label = other.inner_text()
    other.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(f".picture .pw-title:has-text('{label}')")
    page.click(".picture summary")
    page.wait_for_selector(".picture td")
    values = [float(text.replace("−", "-")) for text in page.locator(".picture .pw-twin td").all_inner_texts()]
    expected = server.copies.get("classifier").inspector.occlusion(TEXT, label)
    np.testing.assert_allclose(values, expected.values, rtol=0.01, atol=0.001)


def test_views_of_a_classifier_say_that_they_show_its_transformer_alone(visit: Any, server: Any) -> None:
    assert server.copies.get("classifier").classifier.linear is not None
    page = visit(f"#/classify?text={quote(TEXT)}")
    page.wait_for_selector(".one :text('This is the Transformer alone')")
    page = visit(f"#/inspect?model=classifier&text={quote(TEXT)}&tool=model")
    page.wait_for_selector(".lead:has-text('This is the Transformer alone')")
    page = visit("#/inspect?model=writer&text=It%20was&tool=model")
    page.wait_for_selector(".pw-flowmap")
    assert "alone" not in page.inner_text(".lead")


def test_text_without_visible_characters_has_no_label(visit: Any) -> None:
    page = visit("#/classify?text=%E2%80%8B")
    page.wait_for_selector(".one .pw-note:has-text('has no label')")
    assert page.is_hidden(".one [aria-label=Why]") and page.locator(".labels table").count() == 0


def test_calibration_note_is_shown(visit: Any) -> None:
    page = visit(f"#/classify?text={quote(TEXT)}")
    page.wait_for_selector(".one .pw-note:has-text('held-out texts')")


def test_opened_table_is_classified_sorted_and_saved(visit: Any, server: Any) -> None:
    page = visit("#/classify")
    page.set_input_files(
        "input[type=file]", {"name": "films.csv", "mimeType": "text/csv", "buffer": TABLE.encode("utf-8-sig")}
    )
    page.wait_for_selector(".rows tbody tr >> nth=3")
    texts = ['a fine, "old" film', "a dull film", "a dull film number 9", "no label here"]
    found = server.copies.get("classifier").classifier.classify(texts)
    labels = [each.label for each in found]
    assert page.locator(".rows tbody th").all_inner_texts() == labels
    right = [label == truth for label, truth in zip(labels, ["good", "bad", "good"], strict=False)]
    assert f"of {len(right)} labelled texts" in page.inner_text(".summary")
    counts = [int(text) for text in page.locator(".matrix button").all_inner_texts()]
    assert sum(counts) == 3 and counts[0] + counts[3] == sum(right)
    page.select_option("select[aria-label=Order]", "unsure")
    order = sorted(range(4), key=lambda at: found[at].scores[found[at].label])
    assert page.locator(".rows td.text").all_inner_texts() == [texts[at] for at in order]
    with page.expect_download() as waiting:
        page.click(".many button:has-text('Save')")
    saved = waiting.value.path().read_text(encoding="utf-8").split("\n")
    assert saved[0].strip() == "text,given,label,p(bad),p(good)"
    assert saved[1].startswith('"a fine, ""old"" film",good,')


def test_files_in_other_encodings_are_decoded_or_refused(visit: Any) -> None:
    found = visit("#/classify").evaluate(
        """async (files) => {
          const { textOf } = await import("./files.js");
          const fileOf = (bytes) => new File([new Uint8Array(bytes)], "films.csv");
          return Promise.all(files.map((bytes) => textOf(fileOf(bytes)).catch((error) => error.message)));
        }""",
        [list("ein schöner Film".encode(encoding)) for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252")],
    )
    assert found[:3] == ["ein schöner Film"] * 3
    assert found[3].startswith("films.csv is not a text in UTF-8")


def test_row_opens_its_text_and_escape_returns(visit: Any) -> None:
    page = visit("#/classify")
    page.set_input_files("input[type=file]", {"name": "a.csv", "mimeType": "text/csv", "buffer": TABLE.encode()})
    page.wait_for_selector(".rows tbody tr >> nth=3")
    page.locator(".rows button").nth(1).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".picture .pw-attribution")
    assert page.input_value(".asked textarea") == "a dull film" and page.is_hidden(".many")
    page.keyboard.press("Escape")
    assert page.is_visible(".rows") and page.evaluate("document.activeElement.dataset.number") == "1"


def test_csv_is_parsed_and_round_trips(visit: Any) -> None:
    tables = {
        "a\tb\n1\t2\r\n\n": [["a", "b"], ["1", "2"]],
        '\nx;"y;z"\na, b;c': [["x", "y;z"], ["a, b", "c"]],
        "only a line, with commas": [["only a line, with commas"]],
        "one\ntwo": [["one"], ["two"]],
        "Good, but long, and slow\nBad\nFine, fine\n": [["Good, but long, and slow"], ["Bad"], ["Fine, fine"]],
        'text\tlabel\n"Never, I said.\t0\ngood\t1': [["text", "label"], ['"Never, I said.', "0"], ["good", "1"]],
    }
    page = visit("#/classify")
    rows = page.evaluate(
        """async (texts) => {
          const { parse, format } = await import("./screens/classify/csv.js");
          return [texts.map((text) => parse(text)), parse(format([["a,\\"b\\"", "c\\nd"], ["", "\U0001f98a"]]))];
        }""",
        list(tables),
    )
    assert rows == [list(tables.values()), [['a,"b"', "c\nd"], ["", "\U0001f98a"]]]


def test_requests_for_a_table_are_limited_and_finished_rows_are_kept_after_an_error(visit: Any) -> None:
    script = """async (lengths) => {
      const { makeMany } = await import("/screens/classify/many.js");
      const [sent, errors] = [[], []];
      window.fetch = async (path, { body }) => {
        const { texts } = JSON.parse(body);
        sent.push(texts.length);
        const results = texts.map(() => ({ label: "a", labels: null, score: null, scores: { a: 1, b: 0 } }));
        return new Response(JSON.stringify({ results }), { status: sent.length < 4 ? 200 : 413 });
      };
      const [signal, model] = [new AbortController().signal, { id: "films", labels: ["a", "b"] }];
      const [announce, chosen, fail] = [() => {}, () => {}, (error) => errors.push(error)];
      const many = makeMany({ model, signal, announce, chosen, fail });
      await many.show(lengths.map((length) => ["x".repeat(length)]));
      return [sent, many.root.querySelectorAll("tbody tr").length, errors.length];
    }"""
    lengths = [300_000, 200_000, 600_000, *[1] * 70]
    assert visit("#/clusters").evaluate(script, lengths) == [[2, 1, 64, 6], 67, 1]
