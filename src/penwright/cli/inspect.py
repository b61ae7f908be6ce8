"""The `penwright inspect` command: what happens inside a model on a text."""

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
    text: Annotated[str | None, typer.Argument(help="Text to inspect. Default: standard input.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Translation or label to explain. Default: the model's own.")
    ] = None,
    top: Annotated[int | None, typer.Option(help="Show this many most likely tokens at each position.", min=1)] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="Sort all heads by a statistic: entropy, confidence, distance, "
            "previous, diagonal, first, last or induction."
        ),
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option(help="Show the attention of a head: LAYER.HEAD or PART.LAYER.HEAD. Repeatable.")
    ] = None,
    arithmetic: Annotated[
        str | None, typer.Option(help="Show how a head (LAYER.HEAD or PART.LAYER.HEAD) computes its output.")
    ] = None,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Show a translator's attention to the source.")
    ] = False,
    beams: Annotated[
        int | None, typer.Option(help="Show the hypotheses of a beam search with this many beams.", min=1)
    ] = None,
    rollout: Annotated[
        bool, typer.Option("--rollout", help="Show attention rollout: attention combined over all layers.")
    ] = False,
    lens: Annotated[bool, typer.Option("--lens", help="Show the prediction after each layer (logit lens).")] = False,
    attribute: Annotated[
        bool, typer.Option("--attribute", help="Show how much each token contributes to the next token or the label.")
    ] = False,
    position: Annotated[
        int | None,
        typer.Option(
            help="Position, from 0; --attribute explains the token after it. "
            "Default: a writer's last, a translator's first."
        ),
    ] = None,
    ablate: Annotated[
        str | None,
        typer.Option(help="Remove heads, such as 0.1,2.3, and show what changes; `each` removes every head in turn."),
    ] = None,
    neighbours: Annotated[
        list[str] | None, typer.Option(help="Show the tokens nearest to a word. Needs no text. Repeatable.")
    ] = None,
    other_text: Annotated[
        str | None, typer.Option(help="Compare with this text: surprise by token, and heads.")
    ] = None,
    other_run: Annotated[
        Path | None,
        typer.Option(help="Compare with this run, or with a checkpoint such as RUN/checkpoints/first."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a file: a page (.html) or a picture (.svg, .png).")
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Look inside a model: token probabilities, heads and layers.

    Without options: the surprise of each token, and the heads that attend most to the previous token. With only -o
    PAGE.html: a page of all views that suit the model.
    Attention weights show which tokens a head attends to, not what it contributes; --ablate measures that.
    """
    from penwright.cli import questions as ask
    from penwright.inspection import Inspector, overview
    from penwright.workflows.load import load

    if output is not None and output.suffix.lower() not in ENDINGS:
        raise UsageError(f"{output} has no known file type. -o writes {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    inspector = Inspector(load(run, device))
    chosen = [ask.neighbours(inspector, word) for word in neighbours or []]
    if text is not None or not chosen:
        text = _read_standard_input() if text is None else text
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
            _comparison(about, (run, other_run), other_text, device),
        ]
        chosen += [question for group in wanted for question in group]
        if not chosen and output is None:
            chosen = about.default_questions()
    if output is None:
        _answer(chosen, json)
        return
    if output.suffix.lower() != ".html" and len(chosen) != 1:
        raise UsageError(
            f"a {output.suffix} file holds one picture. Ask for one thing, such as --lens, or write a page (.html)"
        )
    views = [view for question in chosen for view in question.views(question.find())]
    _write(output, views or list(overview(inspector, text or "", target)), f"Penwright: {run.resolve().name}", json)


def _comparison(
    about: "Questions", runs: "tuple[Path, Path | None]", other_text: str | None, device: str
) -> "list[Question]":
    """Return the questions that compare with another text or run, if one is given."""
    from penwright.cli.questions import Questions
    from penwright.inspection import Inspector
    from penwright.workflows.load import load

    run, other = runs
    if other is None:
        if other_text is None:
            return []
        return about.beside(Questions(about.inspector, other_text, None), ("the text", "the other text"))
    other_inspector = Inspector(load(other, device))
    if other_inspector.shape != about.inspector.shape:
        raise UsageError(
            f"{other} holds a {other_inspector.shape} and {run} a {about.inspector.shape}; they cannot be compared"
        )
    text = about.text if other_text is None else other_text
    return about.beside(Questions(other_inspector, text, about.target), (run.name, other.name))


def _write(output: Path, views: "Sequence[View]", title: str, json: bool) -> None:
    """Write the views as a page, or the last one as a picture, and print the size of the file."""
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
    """Print the answers, drawn or as JSON."""
    from penwright.cli.console import SafeConsole
    from penwright.inspection import as_record

    answers = [(question, question.find()) for question in questions]
    if json:
        print_json({question.name: as_record(result) for question, result in answers})
        return
    console = SafeConsole(sys.stdout)
    for place, (question, result) in enumerate(answers):
        if place:
            console.print()
        for drawn in question.draw(result, console):
            console.print(drawn, soft_wrap=True)


def _read_standard_input() -> str:
    """Return all of standard input as one text, without the final line break."""
    if sys.stdin.isatty():
        raise PenwrightError("there is no input. Give a text as an argument, or pipe one to standard input")
    return read_text("-").removesuffix("\n").removesuffix("\r")
