"""Chat templates in Jinja, which turn messages into one text. Other projects store them in tokenizer_config.json."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from penwright.config import ChatSettings
from penwright.errors import PenwrightError
from penwright.tokenizers.kinds import Markup

PLAIN = (
    "{% for message in messages %}{{ '\\n' if not loop.first }}{{ message.role | capitalize }}:\n{{ message.content }}"
    "{% endfor %}{{ '\\nAssistant:\\n' if add_generation_prompt }}"
)
OPEN, CLOSE = "\ue000", "\ue001"  # delimiters around a message's number, which stands for its content
PLACE = re.compile(f"{OPEN}(\\d+){CLOSE}")
ASSISTANT = "assistant"
MOST_SECONDS = 10
LIMITS = {"RLIMIT_AS": 512 << 20, "RLIMIT_CPU": MOST_SECONDS, "RLIMIT_CORE": 0}
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # environment variables that Python needs


class Message(NamedTuple):
    """One message of a conversation."""

    role: str  # system, user or assistant
    content: str


class Turn(NamedTuple):
    """An answer by the assistant, and the text between the previous answer and this one."""

    prompt: tuple[str, ...]  # pieces of text: Markup from the template, or the contents of messages
    answer: str


@dataclass(frozen=True)
class ChatTemplate:
    """A template that turns messages into pieces of text. It runs in a sandbox with limits, as it may be untrusted."""

    source: str = PLAIN
    start_token: str = ""  # text that the template calls bos_token
    end_token: str = ""  # text that the template calls eos_token; after an answer, the end token takes its place

    def turns(self, messages: Sequence[Message]) -> tuple[list[Turn], tuple[str, ...]]:
        """Return the turns of a conversation, and the pieces after the last answer.

        These pieces are the prompt for the next answer.
        """
        turns, pieces, is_after_answer = list[Turn](), list[str](), False
        for piece in self._pieces(messages):
            if isinstance(piece, Markup):
                pieces.append(Markup(piece.removeprefix(self.end_token)) if is_after_answer else piece)
                is_after_answer = False
                continue
            is_after_answer = messages[piece].role == ASSISTANT
            if is_after_answer:
                turns.append(Turn(tuple(pieces), messages[piece].content))
                pieces = []
            else:
                pieces.append(messages[piece].content)
        return turns, tuple(pieces)

    def _pieces(self, messages: Sequence[Message]) -> Iterator[Markup | int]:
        """Yield the text of the template in pieces, with the number of each message in place of its content."""
        text = _rendered(self, tuple(each.role for each in messages))
        for place, piece in enumerate(PLACE.split(text)):
            if place % 2:
                yield int(piece)
            elif piece:
                yield Markup(piece)


@lru_cache(maxsize=1024)
def _rendered(template: ChatTemplate, roles: tuple[str, ...]) -> str:
    """Return the text of the template for messages with these roles, and with placeholders as contents.

    Any template but the plain one is rendered by a process with limited memory and time. Raises PenwrightError if it
    is invalid, rejects the messages, or exceeds a limit.
    """
    from penwright.tokenizers import chat_worker  # noqa: PLC0415 - few runs need it

    marked = [{"role": role, "content": f"{OPEN}{n}{CLOSE}"} for n, role in enumerate(roles)]
    tokens = {"bos_token": template.start_token, "eos_token": template.end_token}
    if template.source == PLAIN:
        return chat_worker.render(PLAIN, marked, tokens)
    request = json.dumps({"source": template.source, "messages": marked, "tokens": tokens})
    command = [sys.executable, "-I", "-X", "utf8", str(Path(chat_worker.__file__)), json.dumps(LIMITS)]
    environment = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    try:
        done = subprocess.run(
            [*command, json.dumps(sys.path)],
            input=request.encode(),
            capture_output=True,
            env=environment,
            timeout=MOST_SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # the process exceeded a limit
        limit = f"{MOST_SECONDS} s or {LIMITS['RLIMIT_AS'] >> 20} MiB of memory"
        raise PenwrightError(f"the chat template cannot be used: it needs more than {limit}") from None
    if "invalid" in answer:
        raise PenwrightError(f"the chat template is not valid: {answer['error']}")
    if "error" in answer:
        raise PenwrightError(f"the chat template rejects these messages: {answer['error']}")
    return str(answer["text"])


PLAIN_TEMPLATE = ChatTemplate()


def template_of(settings: ChatSettings | None) -> ChatTemplate:
    """Return the chat template of a model, or the plain template if it has none."""
    return ChatTemplate(settings.template, settings.bos_token, settings.eos_token) if settings else PLAIN_TEMPLATE
