"""The `penwright chat` command: chat with a model that was trained on prompts and answers."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import Device, InPrecision, RunFolder, warn, without_none

if TYPE_CHECKING:
    from penwright.config import DecodingSettings, Table
    from penwright.generation.generator import Generator
    from penwright.tokenizers.chat_template import Message

NAME = "chat"


def command(
    run: RunFolder,
    message: Annotated[
        str | None, typer.Argument(help="Message to answer. Default: a conversation, with one message per line.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message that begins the conversation.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of tokens in an answer. Default: the run's setting.", min=1)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 always takes the most likely token.", min=0)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Nucleus sampling: sample from the smallest set of tokens whose probabilities add up to P."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same answers.", min=0)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set any [decoding] key, such as min_p=0.05. Repeatable.")
    ] = None,
    precision: InPrecision = None,
    device: Device = "cpu",
) -> None:
    """Chat with a model that was trained on prompts and answers.

    Answers appear as they are generated. Each answer takes all earlier messages into account. An empty line or
    Ctrl+D ends the conversation.
    """
    from penwright.config import DecodingSettings, merge, parse_override, validate, with_present_names
    from penwright.tokenizers.chat_template import ASSISTANT, Message
    from penwright.workflows.load import load_generator

    generator = load_generator(run, device, precision, "chat")
    flags: Table = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    overrides = (with_present_names(parse_override(text), "decoding.") for text in set_ or [])
    table = merge(generator.defaults.model_dump(), without_none(flags), *overrides)
    settings = validate(DecodingSettings, table, "the options")
    messages = [Message("system", system)] if system else []
    generator.chat_tokens(messages)  # if the model cannot answer, fail before the user types a message
    for text in [message] if message is not None else _typed():
        messages.append(Message("user", text))
        messages.append(Message(ASSISTANT, _answer(generator, messages, settings)))


def _typed() -> Iterator[str]:
    """Yield the lines of standard input up to an empty line. On a terminal, print a prompt before each line."""
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    while True:
        if is_terminal:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().rstrip("\r\n")
        if not line.strip():
            return
        yield line


def _answer(generator: "Generator", messages: "list[Message]", settings: "DecodingSettings") -> str:
    """Print the answer while it is generated, then return it."""
    pieces = generator.stream_answer(messages, settings)
    try:
        while True:
            sys.stdout.write(next(pieces))
            sys.stdout.flush()
    except StopIteration as end:
        sys.stdout.write("\n")
        sys.stdout.flush()
        for warning in end.value.warnings:
            warn(warning)
        text: str = end.value.text
        return text
