"""Prompts and answers: JSON lines of messages, or tables with a column of prompts and a column of answers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from penwright.data.batches import IGNORED, LENGTH_STEP, Indices, Markers, TextBatch
from penwright.data.bucketing import Bucketed, Labels
from penwright.data.columns import find_column, names_in
from penwright.data.corpus import DEFAULT_READING, Broken, Columns, Corpus, ReadingOptions
from penwright.data.files import examine_text
from penwright.data.guesses import unused
from penwright.data.paths import expand_archives
from penwright.data.profiles import profiles_of
from penwright.data.readers.hub import is_hub, open_hub
from penwright.data.readers.layout import ANSWER_NAMES, INPUT_NAMES, INSTRUCTION_NAMES, PROMPT_NAMES
from penwright.data.readers.records import are_messages
from penwright.data.readers.tables import Table, find_table, text_of
from penwright.data.rows import (
    BATCH,
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
from penwright.data.splits import Mask, hash_texts
from penwright.data.store import Column
from penwright.errors import PenwrightError
from penwright.tokenizers.chat_template import ASSISTANT, ChatTemplate, Message, Turn

MOST_HELD_OUT = 500  # maximum number of held-out conversations, unless the settings give a share
MESSAGES_NAMES = ("messages", "conversations", "conversation")
SYSTEM_NAMES = ("system_prompt", "system")  # column names for system messages
SYSTEM = "system"
ROLES = {"human": "user", "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT}
TOOL_CALLS = Broken("tool calls, which are not supported")
NOT_TEXT = Broken("parts other than text, such as images, which are not supported")
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


def conversation_columns(
    names: Sequence[str], source: str | int | None = None, target: str | int | None = None
) -> tuple[str | int, ...] | None:
    """Find the column of messages, or the columns of prompt and answer, by name. Return None if they are missing.

    `source` and `target` are the columns of prompt and answer that the settings name.
    """
    lowered = {name.casefold(): name for name in reversed(names) if name not in (source, target)}
    if source is None and target is None:
        for name in MESSAGES_NAMES:
            if name in lowered:
                return (lowered[name],)
    prompt = next((lowered[name] for name in PROMPT_NAMES if name in lowered), None) if source is None else source
    answer = next((lowered[name] for name in ANSWER_NAMES if name in lowered), None) if target is None else target
    if prompt is None or answer is None:
        return None
    is_instruction = source is None and str(prompt).casefold() in INSTRUCTION_NAMES
    more = [lowered[name] for name in INPUT_NAMES if name in lowered] if is_instruction else []
    return (prompt, *more, answer)


def _kind(reading: ReadingOptions) -> RowKind[Conversation]:
    """Return the RowKind of conversations, whose two sides are everything before the last answer, and that answer."""
    return RowKind(
        name=f"conversations {reading.template.source}",
        unit="conversation",
        chosen_by="their prompts",
        sources=_sources,
        rules=common_rules,
        check=lambda rows, keep, reading: [],
        hold_out=_hold_out,
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
    trained = {role: [name for name, _ in each] for role, each in columns.as_trained.items()}
    chosen: Sequence[str | int] | None = trained.get("text")
    if not chosen or not set(chosen) <= set(table.columns) or columns.source is not None or columns.target is not None:
        chosen = conversation_columns(table.columns, columns.source, columns.target)
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
    known = trained.get("system", ()) if trained else SYSTEM_NAMES
    others = (index for index, name in enumerate(table.columns) if name.casefold() in known and index not in indices)
    if system := list(islice(others, 1)):
        choice += f", system message = column {table.columns[system[0]]}"
        roles["system"] = ((table.columns[system[0]], system[0] + 1),)
    read = partial(_rows, table, [*system, *indices], len(system), template)
    rest = unused(profiles_of(table), [*indices, *system])
    remark = f"{table.name}: {rest}" if rest else ""
    return RowSource(table.files, read, table.location, choice, remark=remark, roles=roles)


def _rows(table: Table, columns: Sequence[int], n_system: int, template: ChatTemplate) -> Iterator[TwoSides | Broken]:
    """Yield the two sides of each conversation: the messages before the last answer, as JSON, and the last answer."""
    for row in table.rows(columns):
        if isinstance(row, Broken):
            yield row
            continue
        messages = _messages(row[n_system:])
        if isinstance(messages, Broken):
            yield messages
            continue
        if n_system and row[0].strip() and messages and messages[0].role != SYSTEM:
            messages = _with_system_message(row[0].strip(), messages, template)
        while messages and messages[-1].role != ASSISTANT:
            messages = messages[:-1]
        if not messages:
            yield NO_ANSWER
        elif template.rejects(messages):
            yield REJECTED
        else:
            yield json.dumps(messages[:-1], ensure_ascii=False), messages[-1].content.strip()


def _with_system_message(text: str, messages: Sequence[Message], template: ChatTemplate) -> list[Message]:
    """Put a system message first or, if the template rejects it, put its text before the first message."""
    whole = [Message(SYSTEM, text), *messages]
    if not template.rejects(whole):
        return whole
    return [messages[0]._replace(content=f"{text}\n\n{messages[0].content}"), *messages[1:]]


def _messages(row: Sequence[str]) -> list[Message] | Broken:
    """Return the messages in a row: one JSON list of messages, or a prompt and an answer, as text or as JSON lists."""
    if len(row) == 1:
        return _parsed(row[0])
    *prompts, answer = map(text_of, row)
    before, after = _parsed("\n\n".join(filter(None, prompts)), "user"), _parsed(answer, ASSISTANT)
    if isinstance(before, Broken) or isinstance(after, Broken):
        return after if isinstance(after, Broken) else before
    return after if after[0].role != ASSISTANT and before[-1] in (*after, Message("user", "")) else [*before, *after]


def _parsed(text: str, role: str = "") -> list[Message] | Broken:
    """Parse a JSON list of messages with the keys `role` and `content`, or `from` and `value`.

    If a `role` is given, any other text is one message of this role.
    """
    try:
        messages = json.loads(text)
        if role and not are_messages(messages):
            return [Message(role, text)]
        if any(each.get("tool_calls") for each in messages):
            return TOOL_CALLS
        contents = (each["content"] for each in messages if isinstance(each.get("content"), list))
        if any(part["type"] != "text" for part in chain.from_iterable(contents)):
            return NOT_TEXT
        names = [each.get("role", each.get("from")).casefold() for each in messages]
        return [Message(ROLES.get(name, name), _content(each)) for name, each in zip(names, messages, strict=True)]
    except (ValueError, RecursionError):  # not JSON
        return [Message(role, text)] if role else BAD_MESSAGES
    except (TypeError, AttributeError, KeyError):
        return BAD_MESSAGES


def _content(message: dict[str, Any]) -> str:
    """Return the text of a message. If it consists of parts, join their texts."""
    content: Any = message.get("content", message.get("value"))
    return str.strip("".join(part["text"] for part in content) if isinstance(content, list) else content)


def _hold_out(rows: Rows, keep: Mask, reading: ReadingOptions) -> Mask:
    """Choose the conversations to hold out. Those with the same beginning stay together: one may continue another.

    The beginning ends with the first message of the user.
    """
    keys, beginnings = rows.first_hashes.copy(), map(_beginning, rows.read(keep))
    batches = iter(lambda: [text.encode() for text in islice(beginnings, BATCH)], [])
    keys[keep] = np.concatenate([hash_texts(batch) for batch in batches])
    prompts = np.unique(np.stack([keys[keep], rows.first_hashes[keep]]), axis=1)
    beginning, n_prompts = np.unique(prompts[0], return_counts=True)
    is_shared = np.isin(keys, beginning[n_prompts > 1]) if len(beginning) > 1 else np.zeros_like(keep)
    rows = replace(rows, first_hashes=np.where(is_shared, keys, rows.first_hashes))
    return hold_out_some(rows, keep, reading, first="prompts", unit="conversation", most=MOST_HELD_OUT, least=1)


def _beginning(sides: TwoSides) -> str:
    """Return the messages up to the user's first one, as JSON."""
    messages = json.loads(sides[0])
    n = next((number for number, (role, _) in enumerate(messages, 1) if role == "user"), len(messages))
    return json.dumps(messages[:n], ensure_ascii=False)


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
        ids, mask = np.concatenate(tokens)[-self.most :], np.concatenate(is_answer)[-self.most :]
        return ids.astype(np.int64), mask.astype(np.bool_)
