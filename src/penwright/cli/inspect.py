"""penwright inspect: what happens in a model over a text."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import Device, Json, RunFolder, print_json, read_text, warn
from penwright.errors import PenwrightError, UsageError

if TYPE_CHECKING:
    from penwright.cli.questions import Question, Questions
    from penwright.views import View

NAME = "inspect"
ENDINGS = (".html", ".svg", ".png")


def command(
    run: RunFolder,
    text: Annotated[str | None, typer.Argument(help="To be read; without one, standard input.")] = None,
    target: Annotated[str | None, typer.Option(help="A translation or a label, instead of the model's own.")] = None,
    top: Annotated[int | None, typer.Option(help="The k likeliest tokens at each place.", min=1)] = None,
    sort: Annotated[str | None, typer.Option(help="All heads by a statistic: previous, induction, entropy ...")] = None,
    head: Annotated[list[str] | None, typer.Option(help="Where a head looks: LAYER.HEAD or PART.LAYER.HEAD.")] = None,
    arithmetic: Annotated[str | None, typer.Option(help="A head step by step, with its numbers.")] = None,
    alignment: Annotated[bool, typer.Option("--alignment", help="Where a translator looks for each token.")] = False,
    beams: Annotated[int | None, typer.Option(help="What a search with so many beams tried.", min=1)] = None,
    rollout: Annotated[bool, typer.Option("--rollout", help="Attention followed through all layers.")] = False,
    lens: Annotated[bool, typer.Option("--lens", help="What the model would say after each layer.")] = False,
    attribute: Annotated[
        bool, typer.Option("--attribute", help="On which tokens the next one, or a label, depends.")
    ] = False,
    position: Annotated[int | None, typer.Option(help="The token whose next one --attribute is about, from 0.")] = None,
    ablate: Annotated[str | None, typer.Option(help="What changes without heads 0.1,2.3, or without each.")] = None,
    neighbours: Annotated[list[str] | None, typer.Option(help="The words nearest to this one; needs no text.")] = None,
    other_text: Annotated[
        str | None, typer.Option(help="Beside this text: how their surprise and heads differ.")
    ] = None,
    other_run: Annotated[
        Path | None,
        typer.Option(help="Compare with this run, or with a checkpoint: RUN/checkpoints/first."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="To a file: a page (.html) or a picture (.svg, .png).")
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Look into a model: likely tokens, and where heads look.

    Without options, the text with its surprise, and the heads that look most at the previous token; with only -o
    PAGE.html, all that fits on a page.
    Attention shows where a head looks, not what for: ask --ablate.
    """
    from penwright.cli import questions as ask
    from penwright.inspection import Inspector, overview
    from penwright.workflows.api import load

    if output is not None and output.suffix.lower() not in ENDINGS:
        raise UsageError(f"{output}: -o writes {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, by the ending of the name")
    inspector = Inspector(load(run, device))
    chosen = [ask.neighbours(inspector, word) for word in neighbours or []]
    if text is not None or not chosen:
        text = _standard_input() if text is None else text
        for warning in inspector.warnings(text, target):
            warn(warning)
        about = ask.Questions(inspector, text, target)
        wanted = [
            [about.likeliest(top)] if top else [],
            [about.heads(sort)] if sort else [],
            [about.head(name) for name in head or []],
            [about.arithmetic(arithmetic)] if arithmetic else [],
            [about.alignment()] if alignment else [],
            [about.beams(beams)] if beams else [],
            [about.rollout()] if rollout else [],
            [about.lens()] if lens else [],
            [about.attribution(position)] if attribute else [],
            [about.ablation(ablate)] if ablate else [],
            _beside(about, (run, other_run), other_text, device),
        ]
        chosen += [question for some in wanted for question in some]
        if not chosen and output is None:
            chosen = about.usual()
    if output is None:
        _answer(chosen, json)
        return
    if output.suffix.lower() != ".html" and len(chosen) != 1:
        raise UsageError(
            f"a {output.suffix} is one picture: ask for one thing, such as --lens; a page (.html) has room for all"
        )
    views = [view for question in chosen for view in question.views(question.find())]
    _write(output, views or list(overview(inspector, text or "", target)), f"Penwright: {run.resolve().name}", json)


def _beside(
    about: "Questions", runs: "tuple[Path, Path | None]", other_text: str | None, device: str
) -> "list[Question]":
    """The questions about two at once; none where there is no other one."""
    from penwright.cli.questions import Questions
    from penwright.inspection import Inspector
    from penwright.workflows.api import load

    run, other = runs
    if other is None:
        if other_text is None:
            return []
        return about.beside(Questions(about.inspector, other_text, None), ("the text", "the other text"))
    look = Inspector(load(other, device))
    if look.shape != about.inspector.shape:
        raise UsageError(f"{other} holds a {look.shape} and {run} a {about.inspector.shape}: they cannot be compared")
    text = about.text if other_text is None else other_text
    return about.beside(Questions(look, text, about.target), (run.name, other.name))


def _write(output: Path, views: "Sequence[View]", title: str, json: bool) -> None:
    from penwright.tokenizers.tokenizer import well_formed
    from penwright.views import html

    try:
        if output.suffix.lower() == ".html":
            output.write_text(html(views, well_formed(title)), encoding="utf-8")
        else:
            views[-1].save(output)
        size = output.stat().st_size
    except OSError as error:
        raise PenwrightError(f"{output} cannot be written: {error.strerror}") from None
    if json:
        print_json({"path": str(output), "bytes": size})
    else:
        print(f"{output} ({size:,} bytes)")


def _answer(questions: "list[Question]", json: bool) -> None:
    from penwright.cli.console import SafeConsole
    from penwright.inspection import as_record

    answers = [(question, question.find()) for question in questions]
    if json:
        print_json({question.name: as_record(found) for question, found in answers})
        return
    console = SafeConsole(sys.stdout)
    for place, (question, found) in enumerate(answers):
        if place:
            console.print()
        for drawn in question.draw(found, console):
            console.print(drawn, soft_wrap=True)


def _standard_input() -> str:
    """All of it, as one text, without the line break that ends it."""
    if sys.stdin.isatty():
        raise PenwrightError("nothing to read: give a text, or pipe one in")
    return read_text("-").removesuffix("\n").removesuffix("\r")
