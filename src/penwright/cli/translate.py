"""penwright translate: one line in, one line out."""

from dataclasses import asdict
from typing import Annotated

import typer

from penwright.cli.options import Device, InPrecision, Json, RunFolder, Texts, given_texts, print_json, warn

NAME = "translate"


def command(
    run: RunFolder,
    texts: Texts = None,
    beam_size: Annotated[int | None, typer.Option("--beam", help="1 is greedy.", min=1)] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 1: longer translations.")] = None,
    n_best: Annotated[int, typer.Option(help="Print the n best translations of each text.", min=1)] = 1,
    language: Annotated[str, typer.Option(help="Of the source, for finding the ends of sentences.")] = "en",
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Translate texts, or the lines of standard input: as many lines come out as go in."""
    from penwright.api import load_translator

    sources = given_texts(texts)
    translator = load_translator(run, device, precision)
    translator.source_language = language
    translations = translator.translate(sources, beam_size=beam_size, length_penalty=length_penalty, n_best=n_best)
    for translation in translations:
        if json:
            print_json(asdict(translation))
            continue
        for warning in translation.warnings:
            warn(warning)
        for candidate in translation.candidates:
            print(candidate.text)
