"""Unit tests of the page's JavaScript modules, run in a browser."""

from typing import Any

import pytest

from penwright.serving.server import PAGE
from penwright.text import gap_between

TEXT = "é 😀 سلام 你好\nsecond line"
FIRST, SECOND = TEXT.splitlines()
STREAM = f": a comment\r\n\r\nevent: token\r\nid: 7\r\ndata: {FIRST}\r\ndata:{SECOND}\r\n\r\ndata: last\n\n"
CUT_ANYWHERE = """async ([text, ends]) => {
  const { makeParser } = await import("/events.js");
  const bytes = new TextEncoder().encode(text);
  const all = [];
  for (let cut = 0; cut <= bytes.length; cut++) {
    const parser = makeParser();
    const pieces = [bytes.slice(0, cut), bytes.slice(cut)];
    all.push(JSON.stringify([...pieces.flatMap(parser.push), ...parser.finish()]));
  }
  const parser = makeParser();
  const singly = [...bytes].flatMap(byte => parser.push(Uint8Array.of(byte))).concat(parser.finish());
  return [[...new Set(all)].map(each => JSON.parse(each)), singly];
}"""
EXPECTED = [{"event": "token", "data": TEXT, "id": "7"}, {"event": "message", "data": "last", "id": None}]


def test_every_module_is_short_and_documented() -> None:
    for path in PAGE.rglob("*.js"):
        text = path.read_text("utf-8")
        assert text.startswith("/**"), path.name
        assert text.count("\n") < 300, path.name


def test_stopped_and_failed_runs_can_be_continued_before_their_first_step(visit: Any) -> None:
    script = """async jobs => {
      const { joined, makeJobs } = await import("/screens/train/jobs.js");
      const list = makeJobs({ act: () => undefined, details: () => undefined });
      list.show(joined(...jobs), ".", { load: null, processors: 1, free_memory: null, free_disk: 1 });
      const texts = (card, selector) => [...card.querySelectorAll(selector)].map((each) => each.textContent);
      const cards = [...list.root.querySelectorAll("article")];
      return cards.map((card) => [card.ariaLabel, ...texts(card, ".state"), ...texts(card, "button")]);
    }"""
    states = ["stopped", "failed", "preparing", "waiting", "finished"]
    jobs = [{"name": state, "state": state, "minutes": 1, "note": ""} for state in states]
    facts = {"seconds": 0, "scores": {}, "best_step": None, "model": None, "changed": 0, "total_steps": None}
    runs = [{"name": "imported", "state": "stopped", "step": 0, **facts}]
    runs += [{"name": "elsewhere", "state": "stopped", "step": 5, **facts}]
    found = {name: shown for name, *shown in visit("#/write").evaluate(script, [jobs, runs])}
    assert found["stopped"] == ["Stopped; you can continue it", "Continue", "Delete"]
    assert found["failed"] == ["Failed", "Try again", "Delete"]
    assert found["finished"] == ["Finished", "Train longer", "Delete"]
    assert found["imported"] == ["Stopped", "Delete"]
    assert found["elsewhere"] == ["Stopped; you can continue it · step 5", "Continue", "Delete"]
    assert "Continue" not in found["preparing"] + found["waiting"]


def test_updates_of_runs_keep_their_buttons(visit: Any) -> None:
    script = """async () => {
      const { makeJobs } = await import("/screens/train/jobs.js");
      const { makeList } = await import("/screens/runs/list.js");
      const [acts, opened] = [[], []];
      const jobs = makeJobs({ act: (what, { name, run }) => acts.push([what, name, run.step]), details: () => null });
      const list = makeList({ changed: () => {}, open: (...where) => opened.push(where), stop: () => {} });
      document.querySelector("main").replaceChildren(jobs.root, list.root);
      const facts = { seconds: 1, scores: {}, best_step: null, total_steps: 9, model_step: 1, state: "training" };
      const tasks = { novel: "generate", talk: "chat", vectors: "encode", strange: "other" };
      function show(step) {
        const runs = Object.entries(tasks).map(([name, task]) => ({ ...facts, name, task, step, model: name }));
        const machine = { load: null, processors: 1, free_memory: null, free_disk: 1 };
        jobs.show(runs.map((run) => ({ ...run, minutes: 1, note: "", run, own: true })), ".", machine);
        list.draw(runs, new Map());
      }
      show(1);
      const buttons = [...document.querySelectorAll("main button")];
      buttons.at(-1).focus();
      show(2);
      const steps = [".state", ".run-facts"].map((name) => document.querySelector(`main ${name}`).textContent);
      const same = [...document.querySelectorAll("main button")].map((each, at) => each === buttons[at]);
      buttons.forEach((each) => each.click());
      return { same, steps, acts, opened, focus: document.activeElement === buttons.at(-1) };
    }"""
    found = visit("#/write").evaluate(script)
    assert found["same"] == [True] * 14 and found["focus"]
    assert "step 2" in found["steps"][0] and "step 2" in found["steps"][1]
    assert ["stop", "strange", 2] in found["acts"], "a kept button uses the newest facts"
    assert found["opened"] == [["write", "novel"], ["write", "talk"], ["inspect", "vectors"]]


def test_translations_of_earlier_weights_are_not_shown(visit: Any) -> None:
    script = """async steps => {
      const { makeTranslations } = await import("/screens/translate/sentences.js");
      const [known, found] = [makeTranslations(), []];
      let requests = 0;
      window.fetch = async () => new Response(JSON.stringify({ sentences: [++requests] }));
      for (const step of steps) await known.ask([{ text: "eins" }], {}, step, null, (_, result) => found.push(result));
      return found;
    }"""
    assert visit("#/clusters").evaluate(script, [5, 5, 9, 9]) == [1, 1, 2, 2]


def test_leaving_during_an_upload_says_which_texts_are_missing(visit: Any) -> None:
    script = """async () => {
      const { makeTexts } = await import("/screens/train/texts.js");
      const leaving = new AbortController();
      const sent = [];
      window.fetch = (path, { signal }) => new Promise((_, reject) => {
        sent.push(path);
        if (signal.aborted) reject(signal.reason);
        signal.addEventListener("abort", () => reject(signal.reason));
        setTimeout(() => leaving.abort());
      });
      const dataTransfer = new DataTransfer();
      for (const name of ["a.txt", "b.txt"]) dataTransfer.items.add(new File(["x"], name));
      const failed = new Promise((fail) => makeTexts({ signal: leaving.signal, fail, announce: fail, changed: fail }));
      document.dispatchEvent(new DragEvent("drop", { dataTransfer }));
      return [(await failed).message, sent[0]];
    }"""
    message, path = visit("#/clusters").evaluate(script)
    assert "You left the Train screen" in message and "a.txt, b.txt" in message and path == "studio/upload"


def test_long_names_of_uploads_keep_their_suffix(visit: Any) -> None:
    script = """async names => {
      const { clean } = await import("/screens/train/texts.js");
      return names.map(clean);
    }"""
    names = ["a" * 104 + " bcd.xlsx", "電" * 60 + ".csv.gz", "🎬" * 60 + ".csv", ".a|b.", "Vol. 2 of a trilogy", "\n"]
    found = visit("#/write").evaluate(script, names)
    assert found == ["a" * 104 + ".xlsx", "電" * 34 + ".csv.gz", "🎬" * 26 + ".csv", "a_b", "Vol. 2 of a trilogy", "_"]


MAKE_PLAN = """async answer => {
  const { makePlan } = await import("/screens/train/plan.js");
  const [status, body] = answer;
  const [left, trained, turns] = [[], [], []];
  const turn = () => plan.sections[0].querySelector("[role=status]").textContent;
  window.fetch = async (path, { body: sent }) => {
    plan.queued(["another", JSON.parse(sent).ticket]);
    turns.push(turn());
    return new Response(JSON.stringify(body), { status });
  };
  const plan = makePlan({
    signal: new AbortController().signal,
    state: { get: () => "", set: () => undefined, number: () => 10 },
    announce: () => undefined,
    texts: () => ["alt.txt", "bild.jpg", "films.xlsx"],
    leaveOut: (name) => left.push(name),
    train: (request) => trained.push(request),
  });
  await plan.update();
  const [found, planned] = plan.sections;
  for (const button of [...found.querySelectorAll("button"), ...planned.querySelectorAll("#train")]) button.click();
  const report = [...found.querySelectorAll(".found > .report li")].map((each) => each.textContent);
  const buttons = [...found.querySelectorAll("button")].map((each) => each.textContent);
  return { left, trained, report, buttons, turns: [...turns, turn()] };
}"""


def test_text_that_makes_a_plan_impossible_can_be_left_out(visit: Any) -> None:
    problem = {"error": {"message": "texts/bild.jpg is not text but looks like a JPEG image"}}
    found = visit("#/write").evaluate(MAKE_PLAN, [400, problem])
    assert found["buttons"] == ["Leave out bild.jpg"] and found["left"] == ["bild.jpg"]


def test_training_keeps_the_choices_that_the_plan_shows(visit: Any) -> None:
    chosen = {"tokenizer.type": "bpe", "tokenizer.vocab_size": 1024, "model.size": "tiny", "model.n_layers": 2}
    choices = [{"key": key, "value": value, "reason": "-"} for key, value in {**chosen, "model.dropout": 0.1}.items()]
    files = [{"path": "texts/alt.txt", "remark": ""}]
    files += [{"path": "texts/films.xlsx", "remark": "sheet 'Films' (not read: Marks, Names)"}]
    plan = {
        "reason": "-",
        "recipe": {"task": "classify", "training": {"minutes": 5}},
        "choices": choices,
        "data": {"dropped": [], "n_read": 9, "n_kept": 9, "unit": "row", "split": "-", "text": [], "files": files}
        | {"notes": ["texts/alt.txt: the columns have no header", "not read: 3 files"]},
        "examples": [],
        "passage": [],
        "columns": [],
        "roles": {},
        "bytes": 9,
        "characters": 9,
        "sizes": [{"size": "tiny", "parameters": 9000, "epochs": 2.0, "is_chosen": True}],
        "budgets": [{"minutes": 5, "epochs": 2.0, "low": None, "high": None, "share": None}],
        "outlook": {"pays_up_to": 9, "accuracy": None},
        "minutes_wanted": None,
    }
    found = visit("#/write").evaluate(MAKE_PLAN, [200, plan])
    assert found["turns"] == ["Plans are made one after another. Before this one: 1", ""]
    (request,) = found["trained"]
    assert request["choices"] == chosen and request["minutes"] == 5
    assert found["report"][1:-1] == ["films.xlsx: sheet 'Films' (not read: Marks, Names)", "not read: 3 files"]


@pytest.mark.parametrize("stream", [STREAM, STREAM.replace("\r\n", "\n"), STREAM.replace("\r\n", "\r"), STREAM[:-2]])
def test_event_parser_accepts_any_chunking(visit: Any, stream: str) -> None:
    distinct, singly = visit("#/write").evaluate(CUT_ANYWHERE, [stream, None])
    assert distinct == [EXPECTED]
    assert singly == EXPECTED


def test_any_text_round_trips_through_the_address(visit: Any) -> None:
    script = """async texts => {
      const { address, parse } = await import("/store.js");
      return texts.map(text => parse(address("write", { text, empty: "" })));
    }"""
    texts = ["a b&c=d?e#f%20+", "\n\t😀", "سلام", "#/inspect?x=1"]
    found = visit("#/write").evaluate(script, texts)
    assert found == [{"screen": "write", "values": {"text": text}} for text in texts]


def test_tokens_before_an_edit_are_kept(visit: Any) -> None:
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


def test_tokens_sharing_a_character_are_one_part(visit: Any) -> None:
    script = """async scored => {
      const { partsOf, join } = await import("/screens/write/text.js");
      const parts = partsOf("😀é!", scored.map(([start, end], id) => ({ start, end, id, text: "?" })));
      return [parts.map(({ text, tokens }) => [text, tokens.map(({ id }) => id)]), join(parts)];
    }"""
    scored = [[0, 1], [0, 1], [0, 1], [1, 2], [2, 3]]
    assert visit("#/write").evaluate(script, scored) == [[["😀", [0, 1, 2]], ["é", [3]], ["!", [4]]], "😀é!"]


def test_gaps_between_sentences_equal_the_servers(visit: Any) -> None:
    script = """async (gaps) => {
      const { gapBetween } = await import("/screens/translate/scripts.js");
      return gaps.map((each) => gapBetween(...each));
    }"""
    gaps = [("Hi.", "", "You?", "好。", "你"), ("好。", " ", "你", "Hi.", "You?"), ("a", "", "b", "c", "d")]
    expected = [gap_between(before, gap, after, (left, right)) for before, gap, after, left, right in gaps]
    assert visit("#/translate").evaluate(script, gaps) == expected


def test_document_is_joined_and_wrapped_by_script(visit: Any) -> None:
    script = """async ([texts, width]) => {
      const { joined } = await import("/screens/translate/document.js");
      const sentences = [{ before: "", text: "One.", after: " " }, { before: "", text: "Two.", after: "" }];
      return joined([{ first: "", rest: "", width, sentences }], texts);
    }"""
    page = visit("#/translate")
    assert page.evaluate(script, [["我来了。", "你好吗？"], 0]) == "我来了。你好吗？"
    assert page.evaluate(script, [["我来了。", "你好吗？"], 8]) == "我来了。\n你好吗？"
    assert page.evaluate(script, [["The cat sat.", "It slept."], 12]) == "The cat sat.\nIt slept."
