"""Chat templates in Jinja, which turn messages into one text. Other projects store them in tokenizer_config.json."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from penwright.config import ChatSettings
from penwright.errors import PenwrightError
from penwright.sandbox import run_limited
from penwright.tokenizers.encoders import Ragged
from penwright.tokenizers.markup import AfterAnswer, Answer, Markup, Separator
from penwright.tokenizers.tokenizer import Tokenizer

CONTENT = "{{ message.content }}"
PLAIN = (
    f"{{% for message in messages %}}{{{{ '\\n' if not loop.first }}}}{{{{ message.role | capitalize }}}}:\n{CONTENT}"
    "{% endfor %}{{ '\\nAssistant:\\n' if add_generation_prompt }}"
)
OPEN, CLOSE = "\ue000", "\ue001"  # enclose a placeholder: a message's number, which replaces its content
EDGE = "\x1f"  # white space around each placeholder; a template that removes it trims the contents of messages
# Many templates leave the reasoning out of earlier answers, so it has a placeholder of its own.
REASONING, END_OF_REASONING = f"{OPEN}{CLOSE}", "</think>"
REASONED = re.compile(f".*{END_OF_REASONING}\n*", re.DOTALL)
PLACE = re.compile(f"({EDGE}?)({REASONING}{END_OF_REASONING}\n*{EDGE})?{OPEN}(\\d{{1,6}}){CLOSE}({EDGE}?)")
PROBE = 'Say "hé" & <go>'  # a message to test whether a template copies messages unchanged
ASSISTANT = "assistant"
ROLE = re.compile(r"[\w .'-]{1,100}")  # templates copy roles, so a role must not contain special tokens
MOST_SECONDS = 10
LIMITS = {"RLIMIT_AS": 512 << 20, "RLIMIT_CPU": MOST_SECONDS, "RLIMIT_CORE": 0}


class Message(NamedTuple):
    """One message of a conversation."""

    role: str  # system, user or assistant
    content: str


class RejectedMessages(PenwrightError):
    """An error for messages that a chat template rejects, such as those with an unknown role."""


class Turn(NamedTuple):
    """An answer by the assistant, and the text between the previous answer and this one."""

    prompt: tuple[str, ...]  # pieces of text: Markup from the template, or the contents of messages
    answer: Answer  # includes the spaces around it, because a tokenizer may join a space to a word


@dataclass(frozen=True)
class ChatTemplate:
    """A template that turns messages into pieces of text. It runs in a sandbox with limits, as it may be untrusted."""

    source: str = PLAIN
    start_token: str = ""  # text that the template calls bos_token
    end_token: str = ""  # text that the template calls eos_token
    end_of_turn: str = ""  # special token that ends an answer; "": the end token of the tokenizer
    unknown_token: str = ""  # text that the template calls unk_token; "": the variable is undefined
    pad_token: str = ""  # text that the template calls pad_token; "": the variable is undefined

    def turns(self, messages: Sequence[Message]) -> tuple[list[Turn], tuple[str, ...]]:
        """Return the turns of a conversation, and the text after the last answer, in pieces.

        This text is the prompt for the next answer. It does not include the token that ends the last answer.
        """
        turns, pieces, is_after_answer = list[Turn](), list[str](), False
        end = self.end_of_turn or self.end_token
        for piece in self._pieces(messages):
            if isinstance(piece, Markup):
                rest = piece.lstrip(" ")
                if is_after_answer and end and rest.startswith(end):
                    answer = turns[-1].answer
                    turns[-1] = turns[-1]._replace(answer=Answer(answer + piece[: -len(rest)], answer.before))
                    pieces.append(AfterAnswer(rest.removeprefix(end)))
                else:
                    pieces.append(piece)
                is_after_answer = False
                continue
            is_after_answer = piece.role == ASSISTANT
            if is_after_answer:
                before = pieces.pop() if pieces and isinstance(pieces[-1], Markup) else Markup()
                pieces.append(type(before)(before.rstrip(" ")))  # spaces before an answer belong to the answer
                turns.append(Turn(tuple(pieces), Answer(before[len(pieces[-1]) :] + piece.content, pieces[-1])))
                pieces = []
            else:
                pieces.append(piece.content)
        return turns, tuple(pieces)

    def after_answer(self) -> str:
        """Return the text that the template writes between an answer and the next message."""
        pieces = iter(list(self._pieces([Message(role, "") for role in ("user", ASSISTANT, "user")])))
        any(isinstance(piece, Message) and piece.role == ASSISTANT for piece in pieces)  # skip past the answer
        after = next(pieces, "")
        return after if isinstance(after, Markup) else ""

    def rejects(self, messages: Sequence[Message]) -> bool:
        """Return whether the template rejects a conversation, for example because of a system message."""
        try:
            any(self._pieces(messages))
        except RejectedMessages:
            return True
        return False

    def check(self) -> None:
        """Raise PenwrightError unless the template copies messages unchanged, apart from the spaces around them."""
        probe = Message("user", PROBE)
        pieces = self.turns([probe])[1]
        if PROBE not in pieces or "".join(pieces) != _rendered(self, (probe,)):
            raise PenwrightError("the chat template leaves out messages or changes their characters")

    def end_of_answer(self, tokenizer: Tokenizer) -> int:
        """Return the token that ends each answer."""
        return tokenizer.special_ids.get(self.end_of_turn, tokenizer.end_id)

    def _pieces(self, messages: Sequence[Message]) -> Iterator[Markup | Message]:
        """Yield the pieces of template text, and the messages between them, trimmed if the template trims messages."""
        starts = [*map(_answer_start, messages[:-1]), 0][: len(messages)]
        text, place = _rendered(self, _marked(messages, starts)), 0
        if REASONING in PLACE.sub("", text):  # the template writes the reasoning elsewhere
            starts = [0] * len(messages)
            text = _rendered(self, _marked(messages, starts))
        for match in PLACE.finditer(text):
            if match.start() > place:
                yield Markup(text[place : match.start()])
            if (number := int(match[3])) >= len(messages):
                raise PenwrightError("the chat template outputs private-use characters that are reserved for messages")
            message, place = messages[number], match.end()
            content = message.content if match[2] else message.content[starts[number] :]
            content = content if match[1] else content.lstrip()
            yield message._replace(content=content if match[4] else content.rstrip())
        if place < len(text):
            yield Markup(text[place:])


def _answer_start(message: Message) -> int:
    """Return the index at which the answer begins in a message: after its reasoning, if it has any."""
    reasoning = REASONED.match(message.content) if message.role == ASSISTANT else None
    return reasoning.end() if reasoning else 0


def _marked(messages: Sequence[Message], starts: Sequence[int]) -> tuple[Message, ...]:
    """Replace the contents of messages with placeholders. The reasoning before an answer has its own placeholder."""
    marked = []
    for number, (message, start) in enumerate(zip(messages, starts, strict=True)):
        end = message.content[:start].rpartition(END_OF_REASONING)[2]  # line breaks, which some templates remove
        reasoning = f"{REASONING}{END_OF_REASONING}{end}{EDGE}" if start else ""
        marked.append(Message(message.role, f"{EDGE}{reasoning}{OPEN}{number}{CLOSE}{EDGE}"))
    return tuple(marked)


def _rendered(template: ChatTemplate, messages: tuple[Message, ...]) -> str:
    """Render the template. Raise PenwrightError if it is invalid, rejects the messages, or exceeds a limit."""
    for message in messages:
        if not ROLE.fullmatch(message.role):
            raise RejectedMessages(f"{message.role!r} cannot be the role of a message. Use user or {ASSISTANT}")
    today = date.today() if "strftime_now" in template.source else None  # such a template writes the date
    answer = _answer(template, messages, today)
    if "invalid" in answer:
        raise PenwrightError(f"the chat template is not valid: {answer['error']}")
    if "error" in answer:
        raise RejectedMessages(f"the chat template rejects these messages: {answer['error']}")
    return answer["text"]


@lru_cache(maxsize=1024)
def _answer(template: ChatTemplate, messages: tuple[Message, ...], today: date | None) -> dict[str, str]:
    """Return the rendered text or an error. Except for PLAIN, templates run in a process with limited memory and time.

    `today` only makes each day's results separate entries of the cache. Raises PenwrightError if the process exceeds a
    limit.
    """
    from penwright.tokenizers import chat_worker  # noqa: PLC0415 - few runs need it

    given = [each._asdict() for each in messages]
    others = {"unk_token": template.unknown_token, "pad_token": template.pad_token}
    tokens = {"bos_token": template.start_token, "eos_token": template.end_token}
    tokens |= {name: token for name, token in others.items() if token}
    if template.source == PLAIN:
        return {"text": chat_worker.render(PLAIN, given, tokens)}
    request = json.dumps({"source": template.source, "messages": given, "tokens": tokens})
    try:
        done = run_limited(chat_worker.__file__, LIMITS, MOST_SECONDS, input=request.encode(), capture_output=True)
        answer: dict[str, str] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # the process exceeded a limit
        limit = f"{MOST_SECONDS} s or {LIMITS['RLIMIT_AS'] >> 20} MiB of memory"
        raise PenwrightError(f"the chat template cannot be used: it needs more than {limit}") from None
    return answer


PLAIN_TEMPLATE = ChatTemplate()


def plain_settings(tokenizer: Tokenizer) -> ChatSettings:
    """Return the plain template for other programs, with the start and end tokens that Penwright adds by itself."""
    answers = PLAIN.replace(CONTENT, f"{CONTENT}{{{{ eos_token if message.role == '{ASSISTANT}' }}}}")
    start, end = tokenizer.pieces[tokenizer.start_id], tokenizer.pieces[tokenizer.end_id]
    template = f"{'{{ bos_token }}' * tokenizer.begins}{answers}"
    return ChatSettings(template=template, bos_token=start, eos_token=end)


def template_of(settings: ChatSettings | None) -> ChatTemplate:
    """Return the chat template of a model, or the plain template if it has none."""
    if settings is None:
        return PLAIN_TEMPLATE
    return ChatTemplate(
        settings.template,
        settings.bos_token,
        settings.eos_token,
        settings.end_of_turn,
        settings.unk_token,
        settings.pad_token,
    )


def encode_pieces(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int]:
    """Encode a text that is split into pieces. Special tokens are recognized only in Markup, the template's own text.

    The text between two special tokens is encoded as a whole, because a tokenizer may join a space to a word. An
    Answer must be the only piece.
    """
    ids = tokenizer.special_ids
    names = _any_of(tuple(ids))
    encode = tokenizer.encode_after_special if isinstance(next(iter(pieces), ""), AfterAnswer) else tokenizer.encode
    tokens, text = list[int](), ""
    for piece in pieces:
        if isinstance(piece, Answer):
            *specials, before = names.split(piece.before)
            encode = tokenizer.encode_after_special if specials else tokenizer.encode
            whole, first = encode(before + piece), encode(before)
            return whole[len(first) :] if whole[: len(first)] == first else encode(piece)
        for place, part in enumerate(names.split(piece) if isinstance(piece, Markup) else [piece]):
            if place % 2:
                tokens += [*encode(text), ids[part]]
                text = ""
                encode = tokenizer.encode if isinstance(piece, Separator) else tokenizer.encode_after_special
            else:
                text += part
    return [*tokens, *encode(text)]


@lru_cache(maxsize=8)
def _any_of(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})")


def encode_chunks(tokenizer: Tokenizer, chunks: Sequence[str | Sequence[str]]) -> Ragged:
    """Encode texts, whole or in pieces, into one array; return it with the number of tokens of each text."""
    texts = [chunk for chunk in chunks if isinstance(chunk, str)]
    if len(texts) == len(chunks):
        return tokenizer.encode_ragged(texts)
    encoded = [np.array(encode_pieces(tokenizer, [c] if isinstance(c, str) else c), tokenizer.dtype) for c in chunks]
    return Ragged(np.concatenate(encoded), np.array(list(map(len, encoded))))
