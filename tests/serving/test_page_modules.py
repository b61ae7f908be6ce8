"""The parts of the page that are plain functions, in a browser."""

from typing import Any

import pytest

TEXT = "é 😀 سلام 你好\nsecond line"
STREAM = f": a comment\r\n\r\nevent: token\r\nid: 7\r\ndata: {TEXT.splitlines()[0]}\r\ndata:second line\r\n\r\ndata: last\n\n"
CUT = """async ([text, ends]) => {
  const { makeParser } = await import("/events.js");
  const bytes = new TextEncoder().encode(text);
  const all = [];
  for (let cut = 0; cut <= bytes.length; cut++) {
    const parser = makeParser();
    all.push(JSON.stringify([...parser.push(bytes.slice(0, cut)), ...parser.push(bytes.slice(cut)), ...parser.finish()]));
  }
  const parser = makeParser();
  const singly = [...bytes].flatMap(byte => parser.push(Uint8Array.of(byte))).concat(parser.finish());
  return [[...new Set(all)].map(each => JSON.parse(each)), singly];
}"""
EXPECTED = [{"event": "token", "data": TEXT, "id": "7"}, {"event": "message", "data": "last", "id": None}]


@pytest.mark.parametrize("stream", [STREAM, STREAM.replace("\r\n", "\n"), STREAM.replace("\r\n", "\r"), STREAM[:-2]])
def test_events_are_the_same_wherever_the_network_cuts_them(visit: Any, stream: str) -> None:
    distinct, singly = visit("#/write").evaluate(CUT, [stream, None])
    assert distinct == [EXPECTED]
    assert singly == EXPECTED


def test_an_address_holds_any_text(visit: Any) -> None:
    script = """async texts => {
      const { address, parse } = await import("/store.js");
      return texts.map(text => parse(address("write", { text, empty: "" })));
    }"""
    texts = ["a b&c=d?e#f%20+", "\n\t😀", "سلام", "#/inspect?x=1"]
    found = visit("#/write").evaluate(script, texts)
    assert found == [{"screen": "write", "values": {"text": text}} for text in texts]


def test_tokens_stay_up_to_the_change_of_a_text(visit: Any) -> None:
    script = """async changes => {
      const { edited, prompt } = await import("/screens/write/text.js");
      const token = (id, text) => ({ text, tokens: [{ id, text }] });
      const parts = [{ text: "The ", tokens: [] }, token(1, "cat"), token(2, " sat"), { text: " on", tokens: [] }];
      return changes.map(text => {
        const next = edited(parts, text);
        return [next.map(({ text, tokens }) => [text, tokens.length]), prompt(next)];
      });
    }"""
    page = visit("#/write")
    same, shorter, inside, before = page.evaluate(
        script, ["The cat sat on", "The cat sat", "The cats sat on", "A cat sat"]
    )
    assert same == [[["The ", 0], ["cat", 1], [" sat", 1], [" on", 0]], {"text": "The cat sat on", "tokens": []}]
    assert shorter == [[["The ", 0], ["cat", 1], [" sat", 1]], {"text": "The ", "tokens": [1, 2]}]
    assert inside == [[["The ", 0], ["cat", 1], ["s sat on", 0]], {"text": "The cats sat on", "tokens": []}]
    assert before == [[["A cat sat", 0]], {"text": "A cat sat", "tokens": []}]


def test_scored_tokens_that_share_a_character_are_one_part(visit: Any) -> None:
    script = """async scored => {
      const { partsOf, join } = await import("/screens/write/text.js");
      const parts = partsOf("😀é!", scored.map(([start, end], id) => ({ start, end, id, text: "?" })));
      return [parts.map(({ text, tokens }) => [text, tokens.map(({ id }) => id)]), join(parts)];
    }"""
    scored = [[0, 1], [0, 1], [0, 1], [1, 2], [2, 3]]
    assert visit("#/write").evaluate(script, scored) == [[["😀", [0, 1, 2]], ["é", [3]], ["!", [4]]], "😀é!"]
