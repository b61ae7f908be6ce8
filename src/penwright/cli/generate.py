"""The commands for language models: `penwright generate` and `penwright chat`."""

import sys
from collections import Counter
from collections.abc import Generator as Stream
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penwright.cli.decoding_options import given_settings, with_settings
from penwright.cli.options import (
    Device,
    InPrecision,
    Json,
    RunFolder,
    lines_of,
    print_json,
    read_text,
    refuse_unused,
    warn,
)
from penwright.config import WRITER_SETTINGS, DecodingSettings, decoding_settings, merge, parse_override

if TYPE_CHECKING:
    from penwright.config import Table
    from penwright.evaluation.novelty import Novelty, NoveltyReport
    from penwright.generation.generator import Completion, Generator

AnyDecodingSetting = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set any [decoding] key, such as dry_base=2. Repeatable.", metavar="KEY=VALUE"),
]


@with_settings(WRITER_SETTINGS, before="set_")
def generate(
    run: RunFolder,
    prompt: Annotated[
        str | None, typer.Argument(help="Text to continue. Default: start a new text.", metavar="PROMPT")
    ] = None,
    prompts: Annotated[str | None, typer.Option(help="File of prompts, one per line; - reads standard input.")] = None,
    n: Annotated[int, typer.Option(help="Number of completions per prompt.", metavar="N", min=1)] = 1,
    set_: AnyDecodingSetting = None,
    novelty: Annotated[bool, typer.Option(help="Report what is copied from the training text.")] = False,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print one JSON object per completion, with its seed, scores and novelty.")
    ] = False,
    **settings: Any,
) -> None:
    """Continue a prompt, and print the text as it is generated.

    Sampling options default to the run's [decoding] settings, which `penwright config RUN` prints.
    """
    from penwright.workflows.load import load_generator

    if prompts is not None:
        refuse_unused({"PROMPT": prompt}, "with --prompts")
    if json:
        refuse_unused({"--jsonl": jsonl, "--novelty": novelty}, "with --json")
    inputs = None if prompts is None else lines_of(read_text(prompts))
    generator = load_generator(run, device, precision)
    if prompt is None:  # a text of one line, by characters, has no newline
        prompt = "" if generator.tokenizer.unknown_characters("\n") else "\n"
    inputs = [prompt] if inputs is None else inputs
    chosen = _settings(generator.defaults, given_settings(settings), set_ or [])
    if not (json or jsonl or novelty or n > 1 or prompts is not None):
        _print_stream(generator.stream(prompt, chosen), prompt)
        return
    completions: Iterable[Completion] = generator.each([text for text in inputs for _ in range(n)], chosen)
    report = None
    if novelty:
        from penwright.workflows.novelty import novelty as novelty_of

        completions = list(completions)
        report = novelty_of(run, [completion.text for completion in completions])
    if json:
        for completion in completions:
            print_json(asdict(completion))
    elif jsonl:
        for record in _records(generator, completions, chosen.seed, report.texts if report else ()):
            print_json(record)
    else:
        _print(completions, report)


def _settings(defaults: DecodingSettings, options: "Table", overrides: Sequence[str]) -> DecodingSettings:
    """Merge the run's settings, the options and --set. Later values override earlier ones."""
    return decoding_settings(defaults, None, merge(options, *map(parse_override, overrides)), WRITER_SETTINGS)


def _print_stream(pieces: "Stream[str, None, Completion]", prompt: str = "") -> "Completion":
    """Print the prompt, its completion while it is generated, and its warnings. Return the completion."""
    before = prompt.lstrip("\n")  # printed with the first piece: if the settings are invalid, `next` raises an error
    try:
        while True:
            sys.stdout.write(before + next(pieces))
            sys.stdout.flush()
            before = ""
    except StopIteration as end:
        completion: Completion = end.value
    print(before, flush=True)
    for warning in completion.warnings:
        warn(warning)
    return completion


def _print(completions: "Iterable[Completion]", report: "NoveltyReport | None") -> None:
    """Print numbered completions with their prompts, then the novelty report. Print warnings on standard error."""
    for number, completion in enumerate(completions, start=1):
        print(f"--- {number}\n{(completion.prompt + completion.text).strip()}", flush=True)
        for warning in completion.warnings:
            warn(warning)
    if report is not None:
        from penwright.cli.evaluate import novelty_lines

        print("\n".join(["--- novelty", *novelty_lines(report)]))


def _records(
    generator: "Generator", completions: "Iterable[Completion]", seed: int, measured: "Sequence[Novelty]"
) -> "Iterator[Table]":
    """Yield a full record of each completion, with the prompt, number, seed and settings that reproduce it."""
    counts = Counter[str]()
    for index, completion in enumerate(completions):
        numbered = {"seed": seed, "number": counts[completion.prompt]}
        likelihood = {"mean_log_prob": completion.mean_log_prob, "bits_per_byte": generator.bits_per_byte(completion)}
        new = {"novelty": asdict(measured[index])} if measured else {}
        yield {**asdict(completion), **numbered, **likelihood, **new}
        counts[completion.prompt] += 1


@with_settings(["max_new_tokens", "temperature", "top_p", "seed"], before="set_")
def chat(
    run: RunFolder,
    message: Annotated[
        str | None,
        typer.Argument(
            help="Message to answer. Default: start a conversation; each line is a message.", metavar="MESSAGE"
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message that begins the conversation.")] = None,
    set_: AnyDecodingSetting = None,
    precision: InPrecision = None,
    device: Device = "cpu",
    **settings: Any,
) -> None:
    """Chat with a model that was trained on prompts and answers.

    Answers appear as they are generated. Each answer takes all earlier messages into account. An empty line or
    Ctrl+D ends the conversation. Sampling options default to the run's [decoding] settings.
    """
    from penwright.tokenizers.chat_template import ASSISTANT, Message
    from penwright.workflows.load import load_generator

    generator = load_generator(run, device, precision, "chat")
    chosen = _settings(generator.defaults, given_settings(settings), set_ or [])
    messages = [Message("system", system)] if system else []
    generator.chat_tokens([*messages, Message("user", "")])  # if the model cannot answer, fail before the user types
    for text in [message] if message is not None else _typed():
        messages.append(Message("user", text))
        answer = _print_stream(generator.stream_answer(messages, chosen))
        messages.append(Message(ASSISTANT, answer.text))


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
