"""The `penwright translate` command: translate lines, or a whole document."""

from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import (
    Device,
    InPrecision,
    Json,
    RunFolder,
    Texts,
    given_texts,
    print_json,
    read_text,
    warn,
    without_none,
)
from penwright.errors import UsageError

if TYPE_CHECKING:
    from penwright.translation.constraints.requirements import Constraints
    from penwright.translation.results import Translation
    from penwright.translation.translator import Translator

NAME = "translate"


def command(
    run: RunFolder,
    texts: Texts = None,
    beam_size: Annotated[
        int | None, typer.Option("--beam", help="Beam size; 1 is greedy search. Default: the run's setting.", min=1)
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            help="Length penalty; higher values favor longer translations. Default: the run's setting.", min=-10, max=10
        ),
    ] = None,
    n_best: Annotated[int, typer.Option(help="Number of translations to print for each text, best first.", min=1)] = 1,
    glossary: Annotated[
        Path | None,
        typer.Option(help="Glossary file. Each line: a term, a tab, its translation (with | between forms)."),
    ] = None,
    bias: Annotated[
        float | None,
        typer.Option(
            help="Make glossary terms more likely, by this many nats per token, instead of requiring them.", min=0
        ),
    ] = None,
    protect: Annotated[
        list[str] | None, typer.Option(help="Regular expression for text to copy unchanged. Repeatable.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Begin each translation with this text.")] = "",
    alternatives: Annotated[
        int | None,
        typer.Option(help="Print this many alternatives for the next word after --prefix. Takes one sentence.", min=1),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample --n-best translations instead of using beam search.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature for --sample. Default: the run's setting.", min=0)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed for --sample. Default: the run's setting.", min=0)
    ] = None,
    diverse: Annotated[
        float | None,
        typer.Option(
            help="Make the --n-best translations differ: "
            "penalty in nats for each token that an earlier one has at the same position.",
            min=0,
        ),
    ] = None,
    document: Annotated[
        Path | None, typer.Option(help="Text file to translate as a whole, with its paragraphs and layout.")
    ] = None,
    align: Annotated[
        bool, typer.Option("--align", help="Add the word alignment to each translation, as i-j pairs.")
    ] = False,
    language: Annotated[
        str | None,
        typer.Option(help="Source language, such as de, for sentence splitting. Default: the run's, if known."),
    ] = None,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Translate texts, or the lines of standard input.

    Prints one line for each input line, unless an option asks for more.
    """
    from penwright.config import DecodingSettings, validate
    from penwright.translation.alignment import pharaoh
    from penwright.translation.constraints.glossary import Glossary
    from penwright.translation.constraints.protection import Protection
    from penwright.translation.constraints.requirements import Constraints
    from penwright.workflows.load import load_translator

    demands = Constraints(
        Glossary.read(glossary) if glossary else Glossary(), inf if bias is None else bias, Protection(protect or ())
    )
    translator = load_translator(run, device, precision)
    translator.source_language = language or translator.source_language
    if document is not None:
        if translator.source_language is None:
            warn(
                "the source language is not known, so sentences are split as in English. Name it, such as --language de"
            )
        print(translator.translate_document(read_text(str(document)).replace("\r\n", "\n"), demands), end="")
        return
    sources = given_texts(texts)
    if alternatives is not None:
        _print_alternatives(translator, sources, prefix, alternatives, demands)
        return
    if sample:
        flags = without_none({"temperature": temperature, "seed": seed})
        settings = validate(DecodingSettings, {**translator.defaults.model_dump(), **flags}, "the options")
        translations = translator.sample(sources, n_best, settings, demands)
    elif diverse is not None:
        translations = translator.diverse(sources, n_best, diverse, demands)
    else:
        translations = translator.translate(
            sources,
            beam_size=beam_size,
            length_penalty=length_penalty,
            n_best=n_best,
            constraints=demands,
            prefixes=prefix,
        )
    links = None
    if align:
        pairs = [(result.source, candidate.text) for result in translations for candidate in result.candidates]
        from penwright.workflows.optimize import load_aligner

        links = [pharaoh(alignment) for alignment in load_aligner(run, device).align(pairs)]
    _print(translations, links, json=json)


def _print(translations: "Sequence[Translation]", links: Sequence[str] | None, *, json: bool) -> None:
    """Print the translations, each with its alignment if there are `links`, as text or as JSON."""
    remaining = iter(links or ())
    for translation in translations:
        own_links = ["" if links is None else next(remaining) for _ in translation.candidates]
        if json:
            record = asdict(translation)
            for candidate, link in zip(record["candidates"], own_links, strict=True):
                candidate.update({} if links is None else {"alignment": link})
                candidate["pieces"] = [piece._asdict() for piece in candidate["pieces"]]
                candidate["outcomes"] = [outcome._asdict() for outcome in candidate["outcomes"]]
            print_json(record)
            continue
        for warning in translation.warnings:
            warn(warning)
        for candidate, link in zip(translation.candidates, own_links, strict=True):
            print(candidate.text if links is None else f"{candidate.text}\t{link}")


def _print_alternatives(
    translator: "Translator", sources: Sequence[str], prefix: str, n: int, demands: "Constraints"
) -> None:
    """Print alternatives for the next word: the word, its log-probability and the best translation with it."""
    if len(sources) != 1:
        raise UsageError("--alternatives works on one sentence. Give a single text")
    for word, log_prob, text, _ in translator.alternatives(sources[0], prefix, n, demands):
        print(f"{word}\t{log_prob:.3f}\t{text}")
