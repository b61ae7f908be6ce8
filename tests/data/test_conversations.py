"""Conversations: the file formats that are read, and which tokens are training targets."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penwright.data.batches import IGNORED, Markers
from penwright.data.cleaning import Cleaning
from penwright.data.conversations import AnswerBatches, Conversation, open_conversations
from penwright.data.corpus import Columns, Corpus, ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.store import Column
from penwright.errors import PenwrightError
from penwright.tokenizers.chat_template import ChatTemplate

N = 30
FORMATS = {
    "prompt and completion": lambda n: {"prompt": f"Ask {n}", "completion": f"Answer {n}."},
    "alpaca": lambda n: {"instruction": "Ask", "input": str(n), "output": f"Answer {n}."},
    "messages": lambda n: {
        "messages": [{"role": "user", "content": f"Ask {n}"}, {"role": "assistant", "content": f"Answer {n}."}]
    },
    "sharegpt": lambda n: {
        "conversations": [{"from": "human", "value": f"Ask {n}"}, {"from": "gpt", "value": f"Answer {n}."}]
    },
    "lists of prompts": lambda n: {
        "prompt": [{"role": "user", "content": f"Ask {n}"}],
        "completion": [{"role": "assistant", "content": f"Answer {n}."}],
    },
    "preferences": lambda n: {
        "prompt": f"Ask {n}",
        "chosen": [{"role": "user", "content": f"Ask {n}"}, {"role": "assistant", "content": f"Answer {n}."}],
        "rejected": "no",
    },
    "parts": lambda n: {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": f"Ask {n}"}]},
            {"role": "assistant", "content": f"Answer {n}."},
            {"role": "user", "content": "no answer follows"},
        ]
    },
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_conversation_format_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(FORMATS[name](n)) + "\n" for n in range(N)), encoding="utf-8")
    assert detect_task([path])[0] == "chat"
    corpus = open_conversations([path])
    read = [*corpus.training, *corpus.held_out]
    assert len(read) == N
    assert {each.messages[-1].content for each in read} == {f"Answer {n}." for n in range(N)}
    assert all(each.messages[0].role == "user" and each.messages[0].content.startswith("Ask") for each in read)
    prompts = [{each.messages[0] for each in part} for part in (corpus.training, corpus.held_out)]
    assert not prompts[0] & prompts[1]
    assert all("".join(each.turns[0].prompt) == f"User:\n{each.messages[0].content}\nAssistant:\n" for each in read)


def opened(folder: Path, rows: Iterable[dict[str, object]], **options: Any) -> Corpus[Conversation]:
    path = folder / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return open_conversations([path], ReadingOptions(**options))


def test_instructions_with_a_context_and_a_category_are_conversations(tmp_path: Path) -> None:
    rows = [
        {"instruction": f"Who won {n}?", "context": f"Team {n} won.", "response": f"Team {n}", "category": "ab"[n % 2]}
        for n in range(N)
    ]
    corpus = opened(tmp_path, rows)
    assert detect_task([tmp_path / "chat.jsonl"])[0] == "chat"
    prompts = {each.messages[0].content for each in (*corpus.training, *corpus.held_out)}
    assert prompts == {f"Who won {n}?\n\nTeam {n} won." for n in range(N)}
    assert any("not used: 'category'" in note for note in corpus.report.notes)


def test_column_of_system_messages_is_read(tmp_path: Path) -> None:
    rows = [{"system_prompt": "Be kind." * (n % 2), "question": f"Ask {n}", "response": f"It is {n}"} for n in range(N)]
    corpus = opened(tmp_path, rows)
    roles = {tuple(message.role for message in each.messages) for each in corpus.training}
    assert roles == {("system", "user", "assistant"), ("user", "assistant")}
    assert "system" in corpus.roles
    before = Columns(as_trained={"text": (("question", 2), ("response", 3))})  # a run that was trained without them
    assert all(len(each.messages) == 2 for each in opened(tmp_path, rows, columns=before).training)
    rejecting = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    )
    corpus = opened(tmp_path, rows, template=ChatTemplate(rejecting + "{% endfor %}"))
    assert any(each.messages[0].content.startswith("Be kind.\n\nAsk") for each in corpus.training)


@pytest.mark.parametrize("columns", [Columns(source="body"), Columns(target="body")])
def test_one_of_two_columns_can_be_named(tmp_path: Path, columns: Columns) -> None:
    rows = [{"body": f"Text {n}", "question": f"Ask {n}", "response": f"It is {n}"} for n in range(N)]
    first = next(iter(opened(tmp_path, rows, columns=columns).training))
    contents = [message.content.split()[0] for message in first.messages]
    assert contents == (["Text", "It"] if columns.source else ["Ask", "Text"])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "tool calls"),
        ({"role": "assistant", "content": "Let me look.", "tool_calls": [{"id": "1"}]}, "tool calls"),
        ({"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url"}]}, "images"),
    ],
)
def test_conversations_that_hold_more_than_text_are_dropped_and_counted(
    tmp_path: Path, message: dict[str, object], reason: str
) -> None:
    rows = [FORMATS["messages"](n) for n in range(N)]
    rows.append({"messages": [{"role": "user", "content": "Ask"}, message, {"role": "assistant", "content": "Rain."}]})
    (dropped,) = opened(tmp_path, rows).report.dropped
    assert reason in dropped.reason
    assert dropped.count == 1


def test_prompts_and_answers_may_be_data_in_json(tmp_path: Path) -> None:
    def row(n: int) -> dict[str, object]:
        return {"prompt": json.dumps([{"role": "cook", "name": f"Ann {n}"}]), "completion": json.dumps([{"age": n}])}

    corpus = opened(tmp_path, map(row, range(N)))
    read = [tuple(message.content for message in each.messages) for each in (*corpus.training, *corpus.held_out)]
    assert sorted(read) == sorted(tuple(row(n).values()) for n in range(N))


def test_prompt_is_kept_unless_the_answer_repeats_it(tmp_path: Path) -> None:
    rows = [{**FORMATS["preferences"](n), "prompt": f"{'Story' if n % 2 else 'Ask'} {n}"} for n in range(N)]
    corpus = opened(tmp_path, rows)
    lengths = [len(each.messages) for each in (*corpus.training, *corpus.held_out)]
    assert sorted(lengths) == [2] * (N // 2) + [3] * (N // 2)


def test_empty_lists_are_no_text_but_the_text_of_one_may_be_an_answer(tmp_path: Path) -> None:
    """SQuAD has an empty list of answers for a question without an answer."""
    rows: list[dict[str, object]] = [FORMATS["alpaca"](n) for n in range(N)]
    rows += [{"instruction": "Ask", "input": "no answer", "output": []}, {**rows[0], "input": [], "output": "[]"}]
    corpus = opened(tmp_path, rows)
    read = {tuple(message.content for message in each.messages) for each in (*corpus.training, *corpus.held_out)}
    assert read == {("Ask", "[]"), *((f"Ask\n\n{n}", f"Answer {n}.") for n in range(N))}


def test_long_conversations_are_dropped(tmp_path: Path) -> None:
    rows = [{"prompt": f"Ask {n}", "completion": "long " * (2000 if n == 0 else 2)} for n in range(N)]
    assert len(opened(tmp_path, rows, cleaning=Cleaning(5000)).training) < len(
        opened(tmp_path, rows, cleaning=Cleaning(10_000)).training
    )


def test_beginnings_of_a_held_out_conversation_are_held_out_too(tmp_path: Path) -> None:
    rows = []
    for talk in range(20):
        messages: list[dict[str, str]] = []
        for turn in range(4):
            messages = [*messages, {"role": "user", "content": f"Ask {turn} in {talk}"}]
            messages = [*messages, {"role": "assistant", "content": f"Answer {turn} in {talk}"}]
            rows.append({"messages": messages})
    corpus = opened(tmp_path, rows)
    begins = [{each.messages[0] for each in part} for part in (corpus.training, corpus.held_out)]
    assert begins[1]
    assert not begins[0] & begins[1]


def test_conversations_that_all_begin_alike_are_split(tmp_path: Path) -> None:
    begin = [{"role": "user", "content": "Let's play."}, {"role": "assistant", "content": "Yes."}]
    corpus = opened(tmp_path, [{"messages": [*begin, *FORMATS["messages"](n)["messages"]]} for n in range(N)])
    assert len(corpus.held_out) == N // 10


def test_malformed_conversations_are_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    bad = [{"messages": "hello"}, {"messages": [{"role": "user", "content": "only a question"}]}, {"messages": [1]}]
    good = [FORMATS["messages"](n) for n in range(N)]
    path.write_text("".join(json.dumps(each) + "\n" for each in [*good, *bad]), encoding="utf-8")
    corpus = open_conversations([path])
    assert len(corpus.training) + len(corpus.held_out) == N
    assert {dropped.reason: dropped.count for dropped in corpus.report.dropped} == {
        "not a list of messages with role and content": 2,
        "no answer from the assistant": 1,
    }


def test_conversations_that_the_template_rejects_are_dropped_and_counted(tmp_path: Path) -> None:
    path, system = tmp_path / "chat.jsonl", {"role": "system", "content": "Be kind."}
    talks = [FORMATS["messages"](n) for n in range(N)]
    talks[3] = {"messages": [system, *talks[3]["messages"]]}
    path.write_text("".join(json.dumps(each) + "\n" for each in talks), encoding="utf-8")
    rejecting = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    )
    corpus = open_conversations([path], ReadingOptions(template=ChatTemplate(rejecting + "{% endfor %}")))
    assert len(corpus.training) + len(corpus.held_out) == N - 1
    (dropped,) = corpus.report.dropped
    assert (dropped.reason, dropped.count) == ("rejected by the chat template", 1)
    assert "line 4" in dropped.first


def test_table_without_prompts_lists_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text('{"a": "x y", "b": "z w"}\n' * 3, encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"columns are: a, b\. Name them: --set data.source=PROMPT"):
        open_conversations([path])


def column(*rows: list[int]) -> Column:
    return Column(np.concatenate(rows).astype(np.uint16), np.cumsum([0, *map(len, rows)]), 0)


def test_only_answers_and_their_end_tokens_are_targets() -> None:
    prompt, answer = column([1, 2], [3], [4]), column([5], [6, 7], [8])
    turn = np.array([0, 1, 0], dtype=np.int32)  # two conversations, of two turns and of one
    batches = AnswerBatches(prompt, answer, turn, 16, 64, Markers(pad=9, start=10, end=11))
    (batch,) = batches.in_order()
    rows = {tuple(row) for row in batch.tokens.tolist()}
    assert rows == {(10, 4, 8, 9, 9, 9, 9, 9), (10, 1, 2, 5, 11, 3, 6, 7)}
    long, short = sorted(batch.targets.tolist(), key=lambda row: row.count(IGNORED))
    assert long == [IGNORED, IGNORED, 5, 11, IGNORED, 6, 7, 11]
    assert short == [IGNORED, 8, 11, *[IGNORED] * 5]
    assert batch.n_targets == 7


def test_long_conversation_keeps_its_end() -> None:
    batches = AnswerBatches(
        column([1, 2, 3, 4]), column([5, 6]), np.zeros(1, dtype=np.int32), 4, 64, Markers(pad=9, start=10, end=11)
    )
    (batch,) = batches.in_order()
    assert batches.n_cut == 1
    assert batch.tokens.tolist() == [[3, 4, 5, 6]]
    assert batch.targets.tolist() == [[IGNORED, 5, 6, 11]]


def test_no_start_token_is_added_for_a_model_without_one() -> None:
    markers = Markers(pad=9, start=10, end=11, begins=False)
    batches = AnswerBatches(column([1, 2]), column([5]), np.zeros(1, dtype=np.int32), 16, 64, markers)
    assert next(batches.in_order()).tokens.tolist() == [[1, 2, 5, 9]]


def test_start_token_of_the_template_is_not_doubled() -> None:
    markers = Markers(pad=9, start=10, end=11)
    for prompt in ([10, 1], [1]):
        batches = AnswerBatches(column(prompt), column([5]), np.zeros(1, dtype=np.int32), 16, 64, markers)
        assert next(batches.in_order()).tokens.tolist() == [[10, 1, 5, 9]]
