"""penwright generate: write on from a prompt."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from penwright.cli.options import Device, InPrecision, Json, RunFolder, print_json, warn, without_none

NAME = "generate"


def command(
    run: RunFolder,
    prompt: Annotated[str, typer.Argument(help="What to continue.")] = "\n",
    n: Annotated[int, typer.Option(help="How many continuations.", min=1)] = 1,
    max_new_tokens: Annotated[int | None, typer.Option(help="At most so many tokens.", min=1)] = None,
    temperature: Annotated[float | None, typer.Option(help="0: always the likeliest token.", min=0)] = None,
    top_k: Annotated[int | None, typer.Option(help="Only the k likeliest tokens.", min=1)] = None,
    top_p: Annotated[float | None, typer.Option(help="Only the likeliest tokens of this share together.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Only tokens at least this share as likely as the best.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: what was said gets less likely.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.", min=0)] = None,
    precision: InPrecision = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Continue a prompt, as it is written."""
    from penwright.api import load_generator
    from penwright.config import DecodingSettings, validate

    generator = load_generator(run, device, precision)
    flags = without_none(
        {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "stop": stop,
            "seed": seed,
        }
    )
    settings = validate(DecodingSettings, {**generator.defaults.model_dump(), **flags}, "the options")
    if json or n > 1:
        for number, completion in enumerate(generator.generate([prompt] * n, settings), start=1):
            if json:
                print_json(asdict(completion))
            else:
                print(f"--- {number}\n{(prompt + completion.text).strip()}")
        return
    sys.stdout.write(prompt.lstrip("\n"))
    pieces = generator.stream(prompt, settings)
    try:
        while True:
            sys.stdout.write(next(pieces))
            sys.stdout.flush()
    except StopIteration as end:
        sys.stdout.write("\n")
        for warning in end.value.warnings:
            warn(warning)
