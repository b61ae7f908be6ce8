"""penwright generate: write on from a prompt."""

import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import (
    Device,
    InPrecision,
    Json,
    RunFolder,
    lines_of,
    print_json,
    read_text,
    warn,
    without_none,
)
from penwright.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penwright.config import DecodingSettings, Table
    from penwright.evaluation.novelty import Novelty
    from penwright.generation.generator import Completion, Generator

NAME = "generate"


def command(
    run: RunFolder,
    prompt: Annotated[str, typer.Argument(help="What to continue.")] = "\n",
    prompts: Annotated[str | None, typer.Option(help="A file of prompts, one a line; - for standard input.")] = None,
    n: Annotated[int, typer.Option(help="How many continuations of each.", min=1)] = 1,
    max_new_tokens: Annotated[int | None, typer.Option(help="At most so many tokens.", min=1)] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="No end before so many tokens.", min=0)] = None,
    temperature: Annotated[float | None, typer.Option(help="0: always the likeliest token.", min=0)] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens; 0 turns this off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only the likeliest tokens of this share together.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Only tokens at least this share as likely as the best.")] = None,
    top_n_sigma: Annotated[float | None, typer.Option(help="Only tokens n deviations from the best score.")] = None,
    typical_p: Annotated[float | None, typer.Option(help="Only tokens about as surprising as expected.")] = None,
    epsilon_cutoff: Annotated[float | None, typer.Option(help="Only tokens of at least this probability.")] = None,
    eta_cutoff: Annotated[float | None, typer.Option(help="The same, less strict where much is possible.")] = None,
    xtc_probability: Annotated[float | None, typer.Option(help="How often the likeliest are passed over.")] = None,
    xtc_threshold: Annotated[float | None, typer.Option(help="Those of at least this probability.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: what was said gets less likely.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Score lost by what was written.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="Score lost each time it was written.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="No n tokens in a row come twice.")] = None,
    dry_multiplier: Annotated[float | None, typer.Option(help="Above 0: repetitions lose score as they grow.")] = None,
    bias: Annotated[list[str] | None, typer.Option(help="TEXT=SCORE: makes a text likelier; may be repeated.")] = None,
    ban: Annotated[list[str] | None, typer.Option(help="A word that must not come, or beg*; may be repeated.")] = None,
    require: Annotated[list[str] | None, typer.Option(help="A word that must come; may be repeated.")] = None,
    pattern: Annotated[str | None, typer.Option(help="A regular expression for the whole continuation.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.", min=0)] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any key of [decoding], as dry_base=2.")] = None,
    novelty: Annotated[bool, typer.Option(help="Say what is copied from the training text.")] = False,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="A JSON object a line, with all there is to know.")] = False,
) -> None:
    """Continue a prompt, as it is written."""
    from penwright.config import DecodingSettings, merge, parse_override, validate
    from penwright.workflows.api import load_generator

    given = [prompt] if prompts is None else lines_of(read_text(prompts))
    generator = load_generator(run, device, precision)
    flags = without_none(
        {
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": min_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "top_n_sigma": top_n_sigma,
            "typical_p": typical_p,
            "epsilon_cutoff": epsilon_cutoff,
            "eta_cutoff": eta_cutoff,
            "xtc_probability": xtc_probability,
            "xtc_threshold": xtc_threshold,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "no_repeat_ngram": no_repeat_ngram,
            "dry_multiplier": dry_multiplier,
            "logit_bias": _biases(bias),
            "banned_words": ban,
            "required_words": require,
            "pattern": pattern,
            "stop": stop,
            "seed": seed,
        }
    )
    table = merge(generator.defaults.model_dump(), flags, *(parse_override(text) for text in set_ or []))
    settings = validate(DecodingSettings, table, "the options")
    if not (json or jsonl or novelty or n > 1 or prompts is not None):
        _stream(generator, prompt, settings)
        return
    completions: Iterable[Completion] = generator.each([text for text in given for _ in range(n)], settings)
    measured: Sequence[Novelty] = ()
    closing: list[str] = []
    if novelty:
        from penwright.cli.novelty import in_words
        from penwright.workflows.api import novelty as novelty_of

        completions = list(completions)
        report = novelty_of(run, [completion.text for completion in completions])
        measured, closing = report.texts, list(in_words(report))
    if json:
        for completion in completions:
            print_json(asdict(completion))
    elif jsonl:
        for record in _records(generator, completions, settings.seed, measured):
            print_json(record)
    else:
        _print(completions)
        if closing:
            print("\n".join(["--- novelty", *closing]))


def _biases(given: "Sequence[str] | None") -> "dict[str, float] | None":
    biases = {}
    for text in given or []:
        what, separator, score = text.rpartition("=")
        try:
            biases[what] = float(score)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"'{text}' is no bias: write a text and a score, as in dragon=2.5")
    return biases or None


def _stream(generator: "Generator", prompt: str, settings: "DecodingSettings") -> None:
    pieces = generator.stream(prompt, settings)
    try:
        text = next(pieces, "")
        sys.stdout.write(prompt.lstrip("\n"))  # once it is known that the settings can be met
        while True:
            sys.stdout.write(text)
            sys.stdout.flush()
            text = next(pieces)
    except StopIteration as end:
        sys.stdout.write("\n")
        for warning in end.value.warnings if end.value else ():
            warn(warning)


def _print(completions: "Iterable[Completion]") -> None:
    for number, completion in enumerate(completions, start=1):
        print(f"--- {number}\n{(completion.prompt + completion.text).strip()}", flush=True)
        for warning in completion.warnings:
            warn(warning)


def _records(
    generator: "Generator", completions: "Iterable[Completion]", seed: int, measured: "Sequence[Novelty]"
) -> "Iterator[Table]":
    """All there is to know of each completion; the same prompt, number, seed and settings give it again."""
    times = Counter[str]()
    for place, completion in enumerate(completions):
        numbered = {"seed": seed, "number": times[completion.prompt]}
        sure = {"mean_log_prob": completion.mean_log_prob, "bits_per_byte": generator.bits_per_byte(completion)}
        new = {"novelty": asdict(measured[place])} if measured else {}
        yield {**asdict(completion), **numbered, **sure, **new}
        times[completion.prompt] += 1
