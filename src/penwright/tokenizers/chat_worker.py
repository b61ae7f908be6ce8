"""A program that renders an untrusted chat template in a process with limited memory and time.

It reads a JSON object from standard input (see `render`), and writes a JSON object that has the text or the error.
"""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

MOST_CHARACTERS = 10_000_000  # maximum length of the rendered text, in characters


def render(source: str, messages: Sequence[dict[str, str]], tokens: dict[str, str]) -> str:
    """Render a template in a sandbox, with a generation prompt and without reasoning.

    Raises TemplateSyntaxError if the template is invalid. If it rejects the messages, it may raise any exception.
    """
    from jinja2 import TemplateError, nodes  # noqa: PLC0415 - few runs need it
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415 - as above
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - as above

    class Generation(Extension):
        """The Jinja tag `generation`, which marks the assistant's answers in templates of other projects."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(reason: str) -> None:
        raise TemplateError(reason)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    # Templates such as Qwen3's put an empty reasoning block before answers in training, so prompts must end with one.
    # As in transformers, templates may compare tools and documents with none.
    options = {"add_generation_prompt": True, "enable_thinking": False, "tools": None, "documents": None}
    return environment.from_string(source).render(messages=messages, **options, **tokens)


def main() -> None:
    """Answer one request."""
    try:
        text = render(**json.load(sys.stdin))
        answer = {"text": text} if len(text) <= MOST_CHARACTERS else {"error": "the rendered text is too long"}
    except Exception as error:  # a template may raise any exception
        name = type(error).__name__
        answer = {"error": str(error) or name}
        if name in ("TemplateSyntaxError", "TemplateAssertionError"):
            answer["invalid"] = "yes"
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
