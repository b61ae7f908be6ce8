"""Prompts and answers: JSON lines of messages, or tables with a column of prompts and a column of answers."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from penwright.data.batches import IGNORED, LENGTH_STEP, Indices, Markers, TextBatch
from penwright.data.bucketing import Bucketed, Labels
from penwright.data.cleaning import Cleaning, Rule
from penwright.data.columns import find_column, names_in
from penwright.data.corpus import DEFAULT_READING, Broken, Columns, Corpus, ReadingOptions
from penwright.data.files import examine_text
from penwright.data.paths import expand_archives
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.layout import ANSWER_NAMES, PROMPT_NAMES
from penwright.data.readers.tables import Table, find_table
from penwright.data.rows import (
    RowKind,
    Rows,
    RowSource,
    TwoSides,
    common_rules,
    first_side_leaks,
    hold_out_some,
    open_evaluation_rows,
    open_rows,
)
from penwright.data.store import Column
from penwright.errors import PenwrightError
from penwright.tokenizers.chat_template import ASSISTANT, ChatTemplate, Message, Turn

MOST_HELD_OUT = 500  # maximum number of held-out conversations, unless the settings give a share
MOST_CHARACTERS = 1_000_000  # maximum total length of the messages of a conversation, in characters
MESSAGES_NAMES = ("messages", "conversations", "conversation")
ROLES = {"human": "user", "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT}
LIST = '[{"'  # the beginning of a list of messages in JSON
BAD_MESSAGES = Broken("not a list of messages with role and content")
NO_ANSWER = Broken("no answer from the assistant")
REJECTED = Broken("rejected by the chat template")


class Conversation(NamedTuple):
    """A conversation: its messages, and the turns into which the chat template splits them."""

    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]


def open_conversations(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Conversation]:
    """Open a corpus of conversations for training. No conversation with a held-out prompt is in the training set."""
    return open_rows(_kind(reading), paths, reading)


def open_evaluation_conversations(
    paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING
) -> Corpus[Conversation]:
    """Open a corpus of conversations for evaluation. Only unreadable conversations are dropped."""
    return open_evaluation_rows(_kind(reading), paths, reading)


def conversation_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """Find the column of messages, or the columns of prompt and answer, by name. Return None if they are missing."""
    lowered = {name.casefold(): name for name in reversed(names)}
    for name in MESSAGES_NAMES:
        if name in lowered:
            return (lowered[name],)
    prompt = next((lowered[name] for name in PROMPT_NAMES if name in lowered), None)
    answer = next((lowered[name] for name in ANSWER_NAMES if name in lowered), None)
    if prompt is None or answer is None:
        return None
    more = [lowered["input"]] if prompt.casefold() == "instruction" and "input" in lowered else []
    return (prompt, *more, answer)


def _kind(reading: ReadingOptions) -> RowKind[Conversation]:
    """Return the RowKind of conversations, whose two sides are everything before the last answer, and that answer."""
    return RowKind(
        name=f"conversations {reading.template.source}",
        unit="conversation",
        chosen_by="their prompts",
        sources=_sources,
        rules=_rules,
        check=lambda rows, keep, reading: [],
        hold_out=partial(hold_out_some, first="prompts", unit="conversation", most=MOST_HELD_OUT, least=1),
        leak_rule=partial(first_side_leaks, "prompt"),
        example=partial(_conversation, reading.template),
        sides=slice(0, 2),
    )


def _sources(paths: Sequence[str], reading: ReadingOptions) -> list[RowSource]:
    sources = []
    for path in expand_archives(paths):
        file = None if is_hub(path) else examine_text(path, reading.encoding)
        table = find_table(file, names_in(reading.columns)) if file else open_hub(path)
        if table is None:
            raise PenwrightError(
                f"{path} does not contain prompts and answers. Pass JSON lines such as "
                '{"prompt": "...", "completion": "..."} or {"messages": [{"role": "user", "content": "..."}, ...]}'
            )
        sources.append(_source(table, reading.columns, reading.template))
    return sources


def _source(table: Table, columns: Columns, template: ChatTemplate) -> RowSource:
    """Return the conversations of a table."""
    named = [columns.source, columns.target] if columns.source is not None and columns.target is not None else None
    trained = [name for roles in columns.as_trained.values() for name, _ in roles]
    chosen = named or (trained if set(trained) <= set(table.columns) else None) or conversation_columns(table.columns)
    if not chosen:
        raise PenwrightError(
            f"{table.name} has neither a column 'messages' nor columns of prompts and answers; its columns are: "
            f"{', '.join(table.columns)}. Name them: --set data.source=PROMPT --set data.target=ANSWER"
        )
    indices = [find_column(table, each) for each in chosen]
    names = [table.columns[index] for index in indices]
    choice = f"messages = column {names[0]}" if len(names) == 1 else f"prompt = column {' + '.join(names[:-1])}, "
    choice += "" if len(names) == 1 else f"answer = column {names[-1]}"
    roles = {"text": tuple((name, index + 1) for name, index in zip(names, indices, strict=True))}
    return RowSource(table.files, partial(_rows, table, indices, template), table.location, choice, roles=roles)


def _rows(table: Table, indices: Sequence[int], template: ChatTemplate) -> Iterator[TwoSides | Broken]:
    """Yield the two sides of each conversation: the messages before the last answer, as JSON, and the last answer."""
    for row in table.rows(indices):
        messages = row if isinstance(row, Broken) else _messages(row)
        if isinstance(messages, Broken):
            yield messages
            continue
        while messages and messages[-1].role != ASSISTANT:
            messages = messages[:-1]
        if not messages:
            yield NO_ANSWER
        elif template.rejects(messages):
            yield REJECTED
        else:
            yield json.dumps(messages[:-1], ensure_ascii=False), messages[-1].content.strip()


def _messages(row: Sequence[str]) -> list[Message] | Broken:
    """Return the messages in a row: one JSON list of messages, or a prompt and an answer, as text or as JSON lists."""
    if len(row) == 1:
        return _parsed(row[0])
    *prompts, answer = map(str.strip, row)
    prompt = "\n\n".join(filter(None, prompts))
    before = _parsed(prompt) if prompt.startswith(LIST) else [Message("user", prompt)]
    after = _parsed(answer) if answer.startswith(LIST) else [Message(ASSISTANT, answer)]
    return before if isinstance(before, Broken) else after if isinstance(after, Broken) else [*before, *after]


def _parsed(text: str) -> list[Message] | Broken:
    """Parse a JSON list of messages with the keys `role` and `content`, or `from` and `value`."""
    try:
        messages = json.loads(text)
        return [Message(_role(each.get("role", each.get("from"))), _content(each)) for each in messages]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return BAD_MESSAGES


def _role(name: str) -> str:
    return ROLES.get(name.casefold(), name.casefold())


def _content(message: dict[str, object]) -> str:
    """Return the text of a message. If it consists of parts, join their texts."""
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(content, str):
        raise TypeError(content)
    return content.strip()


def _rules(rows: Rows, cleaning: Cleaning) -> list[Rule]:
    """Return the cleaning rules for conversations: the common rules with a higher length limit."""
    return common_rules(rows, Cleaning(MOST_CHARACTERS, None, cleaning.deduplicate))


def _conversation(template: ChatTemplate, sides: TwoSides) -> Conversation:
    before, answer = sides
    messages = (*(Message(*each) for each in json.loads(before)), Message(ASSISTANT, answer))
    return Conversation(messages, tuple(template.turns(messages)[0]))


class AnswerBatches(Bucketed[TextBatch]):
    """Batches of conversations of similar length. The targets are the answers, each with an end token.

    Each conversation begins with a start token, unless its template begins with one or the model has none. If a
    conversation is longer than the context, only its end is used.
    """

    def __init__(
        self,
        prompt: Column,
        answer: Column,
        turn: Labels,
        context_length: int,
        batch_tokens: int,
        markers: Markers,
        seed: int = 0,
    ):
        """Group the rows by conversation. `turn[i]` is the position of row i in its conversation, from 0."""
        self.prompt, self.answer, self.markers, self.most = prompt, answer, markers, context_length + 1
        # Index of the first row of each conversation, then the number of rows.
        self.begins = np.flatnonzero(np.append(turn, 0) == 0)
        ends = np.concatenate([[0], np.cumsum(prompt.lengths + answer.lengths + 1)])
        firsts = (prompt[row][:1].tolist() for row in self.begins[:-1].tolist())
        self.n_added = np.array([markers.begins and first != [markers.start] for first in firsts])
        lengths = self.n_added + np.diff(ends[self.begins])
        self.n_cut = int((lengths > self.most).sum())
        super().__init__([np.minimum(lengths, self.most)], batch_tokens, seed)

    def examples(self, rows: Indices) -> TextBatch:
        """Return these conversations as a batch."""
        read = [self._conversation(row) for row in rows.tolist()]
        width = -(-max(len(tokens) - 1 for tokens, _ in read) // LENGTH_STEP) * LENGTH_STEP
        tokens = np.full((len(read), width), self.markers.pad, dtype=np.int64)
        targets = np.full((len(read), width), IGNORED, dtype=np.int64)
        for number, (ids, is_answer) in enumerate(read):
            tokens[number, : len(ids) - 1] = ids[:-1]
            targets[number, : len(ids) - 1] = np.where(is_answer, ids, IGNORED)[1:]
        n_targets = int((targets != IGNORED).sum())
        return TextBatch(n_targets, torch.from_numpy(tokens), torch.from_numpy(targets), None)

    def _conversation(self, number: int) -> tuple[Indices, NDArray[np.bool_]]:
        """Return the tokens of a conversation, and a mask of the tokens that belong to an answer."""
        added = [self.markers.start] * int(self.n_added[number])
        tokens, is_answer = list[ArrayLike]([added]), list[ArrayLike]([[False] * len(added)])
        for row in range(self.begins[number], self.begins[number + 1]):
            prompt, answer = self.prompt[row], self.answer[row]
            tokens += [prompt, answer, [self.markers.end]]
            is_answer += [[False] * len(prompt), [True] * (len(answer) + 1)]
        return np.concatenate(tokens)[-self.most :].astype(np.int64), np.concatenate(is_answer)[-self.most :].astype(
            np.bool_
        )
