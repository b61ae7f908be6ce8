"""Chat templates in Jinja, which turn messages into one text. Other projects store them in tokenizer_config.json."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from penwright.config import ChatSettings
from penwright.errors import PenwrightError
from penwright.tokenizers.kinds import Markup

if TYPE_CHECKING:
    from jinja2 import Template

PLAIN = (
    "{% for message in messages %}{{ '\\n' if not loop.first }}{{ message.role | capitalize }}:\n{{ message.content }}"
    "{% endfor %}{{ '\\nAssistant:\\n' if add_generation_prompt }}"
)
OPEN, CLOSE = "\ue000", "\ue001"  # enclose the number of a message, a placeholder for its content
PLACE = re.compile(f"{OPEN}(\\d+){CLOSE}")
ASSISTANT = "assistant"


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
    """A template that turns messages into pieces of text. It runs in a sandbox, since it may be untrusted."""

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
        marked = [{"role": each.role, "content": f"{OPEN}{n}{CLOSE}"} for n, each in enumerate(messages)]
        tokens = {"bos_token": self.start_token, "eos_token": self.end_token}
        try:
            text = self._template.render(messages=marked, add_generation_prompt=True, **tokens)
        except Exception as error:  # a template may raise any exception
            raise PenwrightError(f"the chat template rejects these messages: {error}") from None
        for place, piece in enumerate(PLACE.split(text)):
            if place % 2:
                yield int(piece)
            elif piece:
                yield Markup(piece)

    @cached_property
    def _template(self) -> "Template":
        from jinja2 import TemplateError, nodes  # noqa: PLC0415 - few runs need it
        from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

        class Generation(Extension):
            """The tag `generation`, which other trainers use to mark answers."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> nodes.Node:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return nodes.Scope(body, lineno=line)

        def refuse(reason: str) -> None:
            raise TemplateError(reason)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        environment.globals["raise_exception"] = refuse
        try:
            return environment.from_string(self.source)
        except TemplateError as error:
            raise PenwrightError(f"the chat template is not valid: {error}") from None


PLAIN_TEMPLATE = ChatTemplate()


def template_of(settings: ChatSettings | None) -> ChatTemplate:
    """Return the chat template of a model, or the plain template if it has none."""
    return ChatTemplate(settings.template, settings.bos_token, settings.eos_token) if settings else PLAIN_TEMPLATE
