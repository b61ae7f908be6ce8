"""penwright translate: one line in, one line out; or a whole document."""

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
    beam_size: Annotated[int | None, typer.Option("--beam", help="1 is greedy.", min=1)] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 1: longer translations.", min=-10, max=10)] = None,
    n_best: Annotated[int, typer.Option(help="Print the n best translations of each text.", min=1)] = 1,
    glossary: Annotated[Path | None, typer.Option(help="Lines of a term, a tab, and its words (forms by |).")] = None,
    bias: Annotated[
        float | None, typer.Option(help="Only make the glossary's words likelier, by so many nats a token.", min=0)
    ] = None,
    protect: Annotated[list[str] | None, typer.Option(help="A pattern of what stays as it is; repeatable.")] = None,
    prefix: Annotated[str, typer.Option(help="What each translation begins with.")] = "",
    alternatives: Annotated[int | None, typer.Option(help="So many next words after --prefix.", min=1)] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw translations by chance, --n-best of them.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Of --sample; below 1: less chance.", min=0)] = None,
    seed: Annotated[int | None, typer.Option(help="Of --sample.", min=0)] = None,
    diverse: Annotated[
        float | None, typer.Option(help="Make --n-best translations unlike each other: nats for a shared token.", min=0)
    ] = None,
    document: Annotated[Path | None, typer.Option(help="A text file: paragraphs stay, sentences are found.")] = None,
    align: Annotated[bool, typer.Option("--align", help="Add which words stand for each other, as i-j.")] = False,
    language: Annotated[
        str | None, typer.Option(help="Of the source, to find the ends of sentences; else as the run knows it.")
    ] = None,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Translate texts, or the lines of standard input.

    As many lines come out as go in.
    """
    from penwright.config import DecodingSettings, validate
    from penwright.translation.alignment import pharaoh
    from penwright.translation.constraints.glossary import Glossary
    from penwright.translation.constraints.protection import Protection
    from penwright.translation.constraints.requirements import Constraints
    from penwright.workflows.api import load_aligner, load_translator

    demands = Constraints(
        Glossary.read(glossary) if glossary else Glossary(), inf if bias is None else bias, Protection(protect or ())
    )
    translator = load_translator(run, device, precision)
    translator.source_language = language or translator.source_language
    translator.share_out()
    if document is not None:
        if translator.source_language is None:
            warn("the language of the source is not known, so sentences end as in English: say it, as --language de")
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
            demands=demands,
            prefixes=prefix,
        )
    links = None
    if align:
        pairs = [(each.source, candidate.text) for each in translations for candidate in each.candidates]
        links = [pharaoh(found) for found in load_aligner(run, device).align(pairs)]
    _print(translations, links, json=json)


def _print(translations: "Sequence[Translation]", links: Sequence[str] | None, *, json: bool) -> None:
    rest = iter(links or ())
    for translation in translations:
        mine = ["" if links is None else next(rest) for _ in translation.candidates]
        if json:
            record = asdict(translation)
            for candidate, link in zip(record["candidates"], mine, strict=True):
                candidate.update({} if links is None else {"alignment": link})
                candidate["pieces"] = [piece._asdict() for piece in candidate["pieces"]]
                candidate["outcomes"] = [outcome._asdict() for outcome in candidate["outcomes"]]
            print_json(record)
            continue
        for warning in translation.warnings:
            warn(warning)
        for candidate, link in zip(translation.candidates, mine, strict=True):
            print(candidate.text if links is None else f"{candidate.text}\t{link}")


def _print_alternatives(
    translator: "Translator", sources: Sequence[str], prefix: str, n: int, demands: "Constraints"
) -> None:
    if len(sources) != 1:
        raise UsageError("--alternatives are for one sentence")
    for word, log_prob, text, _ in translator.alternatives(sources[0], prefix, n, demands):
        print(f"{word}\t{log_prob:.3f}\t{text}")
