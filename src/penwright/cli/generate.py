"""The `penwright generate` command: continue a prompt."""

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
    prompt: Annotated[str, typer.Argument(help="Text to continue. Default: start a new text.")] = "\n",
    prompts: Annotated[str | None, typer.Option(help="File of prompts, one per line; - reads standard input.")] = None,
    n: Annotated[int, typer.Option(help="Number of completions per prompt.", min=1)] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of new tokens. Default: the run's setting, else 400.", min=1)
    ] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option(help="Minimum number of new tokens before the text may end.", min=0)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 always takes the most likely token.", min=0)
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the K most likely tokens; 0 turns this off.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Nucleus sampling: sample from the smallest set of tokens whose probabilities add up to P."),
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Sample from tokens at least P times as likely as the most likely one.")
    ] = None,
    top_n_sigma: Annotated[
        float | None, typer.Option(help="Sample from tokens within N standard deviations of the highest logit.")
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option(
            help="Typical sampling: sample from the tokens whose surprise is closest to the entropy, "
            "with probability P in total."
        ),
    ] = None,
    epsilon_cutoff: Annotated[
        float | None, typer.Option(help="Sample from tokens of at least this probability.")
    ] = None,
    eta_cutoff: Annotated[
        float | None, typer.Option(help="Like --epsilon-cutoff, with a lower threshold at high entropy.")
    ] = None,
    xtc_probability: Annotated[
        float | None,
        typer.Option(help="XTC: probability of dropping all top choices but the least likely one."),
    ] = None,
    xtc_threshold: Annotated[
        float | None, typer.Option(help="XTC: top choices are tokens of at least this probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: tokens of the prompt and the text so far become less likely.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtract this from the logit of every token generated so far.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtract this from the logit of a token for each time it was generated.")
    ] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="Never repeat N tokens in a row.")] = None,
    dry_multiplier: Annotated[
        float | None, typer.Option(help="DRY: above 0, penalize repetitions, more strongly the longer they are.")
    ] = None,
    bias: Annotated[
        list[str] | None,
        typer.Option(help="TEXT=SCORE: raise the log-probability of a text by SCORE nats. Repeatable."),
    ] = None,
    ban: Annotated[
        list[str] | None, typer.Option(help="Ban a word; beg* bans all words that begin with beg. Repeatable.")
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="Require a word. Repeatable.")] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Regular expression that the whole completion must match.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the completion before this text. Repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same text.", min=0)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set any [decoding] key, such as dry_base=2. Repeatable.")
    ] = None,
    novelty: Annotated[bool, typer.Option(help="Report what is copied from the training text.")] = False,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print one JSON object per completion, with seed, scores and --novelty.")
    ] = False,
) -> None:
    """Continue a prompt, and print the text as it is generated.

    Sampling options default to the run's [decoding] settings, which `penwright config RUN` prints.
    """
    from penwright.config import DecodingSettings, merge, parse_override, validate, with_present_names
    from penwright.workflows.load import load_generator

    inputs = [prompt] if prompts is None else lines_of(read_text(prompts))
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
    overrides = (with_present_names(parse_override(text), "decoding.") for text in set_ or [])
    table = merge(generator.defaults.model_dump(), flags, *overrides)
    settings = validate(DecodingSettings, table, "the options")
    if not (json or jsonl or novelty or n > 1 or prompts is not None):
        _stream(generator, prompt, settings)
        return
    completions: Iterable[Completion] = generator.each([text for text in inputs for _ in range(n)], settings)
    measured: Sequence[Novelty] = ()
    summary: list[str] = []
    if novelty:
        from penwright.cli.novelty import in_words
        from penwright.workflows.evaluate import novelty as novelty_of

        completions = list(completions)
        report = novelty_of(run, [completion.text for completion in completions])
        measured, summary = report.texts, list(in_words(report))
    if json:
        for completion in completions:
            print_json(asdict(completion))
    elif jsonl:
        for record in _records(generator, completions, settings.seed, measured):
            print_json(record)
    else:
        _print(completions)
        if summary:
            print("\n".join(["--- novelty", *summary]))


def _biases(inputs: "Sequence[str] | None") -> "dict[str, float] | None":
    """Parse the TEXT=SCORE values of --bias."""
    biases = {}
    for text in inputs or []:
        phrase, separator, score = text.rpartition("=")
        try:
            biases[phrase] = float(score)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"--bias '{text}' is not of the form TEXT=SCORE. Write, for example, dragon=2.5")
    return biases or None


def _stream(generator: "Generator", prompt: str, settings: "DecodingSettings") -> None:
    """Print a completion while it is generated, then its warnings."""
    pieces = generator.stream(prompt, settings)
    try:
        text = next(pieces, "")
        sys.stdout.write(prompt.lstrip("\n"))  # only now, since settings that cannot be met raise an error above
        while True:
            sys.stdout.write(text)
            sys.stdout.flush()
            text = next(pieces)
    except StopIteration as end:
        sys.stdout.write("\n")
        for warning in end.value.warnings if end.value else ():
            warn(warning)


def _print(completions: "Iterable[Completion]") -> None:
    """Print numbered completions with their prompts; warnings go to standard error."""
    for number, completion in enumerate(completions, start=1):
        print(f"--- {number}\n{(completion.prompt + completion.text).strip()}", flush=True)
        for warning in completion.warnings:
            warn(warning)


def _records(
    generator: "Generator", completions: "Iterable[Completion]", seed: int, measured: "Sequence[Novelty]"
) -> "Iterator[Table]":
    """Yield a full record of each completion; its prompt, number, seed and settings reproduce it."""
    counts = Counter[str]()
    for index, completion in enumerate(completions):
        numbered = {"seed": seed, "number": counts[completion.prompt]}
        likelihood = {"mean_log_prob": completion.mean_log_prob, "bits_per_byte": generator.bits_per_byte(completion)}
        new = {"novelty": asdict(measured[index])} if measured else {}
        yield {**asdict(completion), **numbered, **likelihood, **new}
        counts[completion.prompt] += 1
