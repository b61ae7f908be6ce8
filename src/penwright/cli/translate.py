"""penwright translate: one line in, one line out."""

from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from penwright.cli.options import Device, Json, RunFolder, Texts, given_texts, print_json, warn

NAME = "translate"


def command(
    run: RunFolder,
    texts: Texts = None,
    beam_size: Annotated[int | None, typer.Option("--beam", help="1 is greedy.", min=1)] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 1: longer translations.")] = None,
    n_best: Annotated[int, typer.Option(help="Print the n best translations of each text.", min=1)] = 1,
    glossary: Annotated[
        Path | None, typer.Option(help="Wished words: a term, a tab, its words (a|b), a line each.")
    ] = None,
    bias: Annotated[
        float | None, typer.Option(help="Only make the glossary's words likelier, by so many nats a token.", min=0)
    ] = None,
    protect: Annotated[
        list[str] | None, typer.Option(help="A regular expression for what stays as it is; may be repeated.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="What each translation begins with.")] = "",
    language: Annotated[str, typer.Option(help="Of the source, for finding the ends of sentences.")] = "en",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Translate texts, or the lines of standard input: as many lines come out as go in."""
    from penwright.api import load_translator
    from penwright.decoding import Demands, Glossary, Protection

    demands = Demands(
        Glossary.read(glossary) if glossary else Glossary(),
        inf if bias is None else bias,
        Protection(protect or ()),
    )
    sources = given_texts(texts)
    translator = load_translator(run, device)
    translator.source_language = language
    translations = translator.translate(
        sources,
        beam_size=beam_size,
        length_penalty=length_penalty,
        n_best=n_best,
        demands=demands,
        prefixes=prefix,
    )
    for translation in translations:
        if json:
            print_json(asdict(translation))
            continue
        for warning in translation.warnings:
            warn(warning)
        for candidate in translation.candidates:
            print(candidate.text)
