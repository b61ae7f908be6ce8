"""Translation of HTML: texts change, tags stay."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.translation.html_tags import pieces, texts_of, with_texts

from .conftest import ApiCall, RunningServer


def uppercase_texts(html: str) -> str:
    parts = pieces(html)
    return with_texts(parts, {text: text.upper() for text in texts_of(parts)})


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>one <b>two</b>  three</p>", "<p>ONE <b>TWO</b>  THREE</p>"),
        ('<a href="x>y" title=\'a "b">\'>link</a>', '<a href="x>y" title=\'a "b">\'>LINK</a>'),
        ("a &lt; b &amp; c", "A &lt; B &amp; C"),
        ("&nbsp;one&nbsp;<br/>\n two ", "&nbsp;ONE&nbsp;<br/>\n TWO "),
        ("<!-- no --><!DOCTYPE html><title>t &lt;x</title>", "<!-- no --><!DOCTYPE html><title>T &lt;X</title>"),
        ("<script>if (a<b) '</p>'</script>x<style>p{}</style>", "<script>if (a<b) '</p>'</script>X<style>p{}</style>"),
        ("<code>x <i>y</i></code> z", "<code>x <i>y</i></code> Z"),
        ('<p translate="no">Brand <b>x</b></p> y', '<p translate="no">Brand <b>x</b></p> Y'),
        ("<i class='a notranslate'>no</i> y", "<i class='a notranslate'>no</i> Y"),
        ("1 < 2 and 3 > 2", "1 &lt; 2 AND 3 &gt; 2"),
        ("<p>12:30</p>", "<p>12:30</p>"),
        ("unclosed <b", "UNCLOSED &lt;B"),
        ("one<!-- unclosed", "ONE&lt;!-- UNCLOSED"),
        ("", ""),
    ],
)
def test_texts_are_replaced_and_tags_stay(html: str, expected: str) -> None:
    assert uppercase_texts(html) == expected


tags = st.sampled_from(["<p>", "</p>", "<b a='>'>", "<", ">", '"', "'", "<!--", "-->", "<script>", "</script>", "<br>"])


@given(st.lists(tags | st.sampled_from(["word", " ", "&amp;", "İ", "\n"]), max_size=12).map("".join))
def test_untranslated_html_keeps_its_text(html: str) -> None:
    parts = pieces(html)
    assert "".join(part.before + part.after for part in parts if not part.text).count("<script>") <= html.count(
        "<script>"
    )
    same = with_texts(parts, {})
    assert with_texts(pieces(same), {}) == same
    assert len(re.sub(r"\s|&\w+;|[<>&]", "", same)) == len(re.sub(r"\s|&\w+;|[<>&]", "", html))


@pytest.mark.parametrize(
    "repeated", ["<a", "<!--", "<a '", "<\"<'", "<p> ", "<code>", "<script>", "<a href='\"<!-- ", "<a '>'"]
)
def test_parsing_time_is_linear_in_page_length(repeated: str) -> None:
    seen: list[int] = []

    class Counting(str):
        """A page that counts the characters searched."""

        def find(self, what: str, start: int = 0, end: Any = None) -> int:
            found = super().find(what, start)
            seen.append((len(self) if found < 0 else found) - start)
            return found

        def lower(self) -> str:
            return self

    for n in (500, 1000):
        seen.clear()
        pieces(Counting(repeated * n))
        assert sum(seen) < 8 * n * len(repeated) + 1000


def test_html_page_is_translated_text_by_text(call_api: ApiCall, server: RunningServer) -> None:
    translator = server.copies.get("translator").translator
    page = "<p>eins <b>zwei</b></p><script>eins</script>"
    status, found = call_api("translate", {"q": [page, "drei"], "source": "auto", "target": "target", "format": "html"})
    one, two, three = (each.text for each in translator.translate(["eins", "zwei", "drei"]))
    assert status == 200
    assert found["translatedText"] == [f"<p>{one} <b>{two}</b></p><script>eins</script>", three]


def test_page_may_have_more_texts_than_the_queue(call_api: ApiCall) -> None:
    page = "".join(f"<b>eins{n}</b>" for n in range(300))
    status, found = call_api("translate", {"q": page, "target": "target", "format": "html", "alternatives": 1})
    assert status == 200 and found["translatedText"].count("<b>") == 300 == found["alternatives"][0].count("</b>")
