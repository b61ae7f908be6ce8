"""The `penwright inspect` command: show what a model computes for a text."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import Device, Json, RunFolder, print_json, read_text, refuse_unused, warn
from penwright.errors import PenwrightError, UsageError

if TYPE_CHECKING:
    from penwright.cli.questions import Question, Questions
    from penwright.inspection import Inspector

ENDINGS = (".html", ".svg", ".png")


TargetText = Annotated[
    str | None, typer.Option(help="Translation or label to explain. Default: the model's own prediction.")
]
NTop = Annotated[
    int | None, typer.Option(help="Number of most likely tokens to show at each position.", metavar="N", min=1)
]
Statistic = Annotated[
    str | None,
    typer.Option(
        help="Sort all heads by a statistic: entropy, confidence, distance, "
        "previous, diagonal, first, last or induction."
    ),
]
HeadNames = Annotated[
    list[str] | None, typer.Option(help="Show the attention of a head. Repeatable.", metavar="[PART.]LAYER.HEAD")
]
ArithmeticHead = Annotated[
    str | None, typer.Option(help="Show how a head computes its output.", metavar="[PART.]LAYER.HEAD")
]
ShowAlignment = Annotated[bool, typer.Option("--alignment", help="Show a translator's attention to the source.")]
NBeams = Annotated[
    int | None, typer.Option(help="Show the hypotheses of a beam search with N beams.", metavar="N", min=1)
]
ShowRollout = Annotated[
    bool, typer.Option("--rollout", help="Show attention rollout: attention combined over all layers.")
]
ShowLens = Annotated[bool, typer.Option("--lens", help="Show the prediction after each layer (logit lens).")]
ShowAttribution = Annotated[
    bool, typer.Option("--attribute", help="Show how much each token contributes to the next token or the label.")
]
TokenPosition = Annotated[
    int | None,
    typer.Option(
        help="Position, counted from 0. --attribute, --parts, --paths, --patch and --whole explain the token after it. "
        "Default: the last for a language model, the first for a translator."
    ),
]
ShowParts = Annotated[
    bool,
    typer.Option(
        "--parts",
        help="Show what each head and feed-forward network adds directly to the logit of the next token or label.",
    ),
]
ShowPaths = Annotated[
    bool,
    typer.Option("--paths", help="Show the strongest paths through the model to the next token or label."),
]
PatchedText = Annotated[
    str | None,
    typer.Option(
        "--patch",
        help="Show which activations restore the prediction when copied into a forward pass "
        "over this text, which must have as many tokens as the inspected one.",
    ),
]
PatchedKind = Annotated[
    str | None,
    typer.Option(
        help="Activations that --patch copies: residual, attention, feed_forward or heads. Default: residual."
    ),
]
ShowWhole = Annotated[
    bool, typer.Option("--whole", help="Show the whole forward pass; with -o PAGE.html, an interactive picture of it.")
]
AblatedHeads = Annotated[
    str | None,
    typer.Option(help="Remove heads, such as 0.1,2.3, and show what changes; `each` removes every head in turn."),
]
Words = Annotated[
    list[str] | None, typer.Option(help="Show the tokens nearest to a word. Needs no text. Repeatable.", metavar="WORD")
]
OtherText = Annotated[
    str | None,
    typer.Option(help="Compare the surprisal of each token and the statistics of the heads with those for this text."),
]
OtherRun = Annotated[
    Path | None, typer.Option(help="Compare with this run, or with a checkpoint such as RUN/checkpoints/first.")
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to a file: a page (.html) or a picture (.svg, .png).")
]


def command(
    run: RunFolder,
    text: Annotated[
        str | None, typer.Argument(help="Text to inspect. Default: standard input.", metavar="TEXT")
    ] = None,
    target: TargetText = None,
    top: NTop = None,
    sort: Statistic = None,
    head: HeadNames = None,
    arithmetic: ArithmeticHead = None,
    alignment: ShowAlignment = False,
    beams: NBeams = None,
    rollout: ShowRollout = False,
    lens: ShowLens = False,
    attribute: ShowAttribution = False,
    position: TokenPosition = None,
    parts: ShowParts = False,
    paths: ShowPaths = False,
    patch: PatchedText = None,
    patch_kind: PatchedKind = None,
    whole: ShowWhole = False,
    ablate: AblatedHeads = None,
    neighbours: Words = None,
    other_text: OtherText = None,
    other_run: OtherRun = None,
    output: OutputFile = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Look inside a model: token probabilities, heads and layers.

    Without options: the surprisal of each token, and the heads that attend most to the previous token. With only -o
    PAGE.html: a page with all views that apply to the model.
    Attention weights show which tokens a head attends to, not what it contributes; --ablate measures that.
    """
    if output is not None and output.suffix.lower() not in ENDINGS:
        raise UsageError(f"{output} has no known file type. -o writes {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not (attribute or parts or paths or patch is not None or whole):
        refuse_unused({"--position": position}, "without --attribute, --parts, --paths, --patch or --whole")
    if patch is None:
        refuse_unused({"--patch-kind": patch_kind}, "without --patch")
    options = {"top": top, "sort": sort, "head": head, "arithmetic": arithmetic, "alignment": alignment, "beams": beams}
    options |= {"rollout": rollout, "lens": lens, "attribute": attribute, "ablate": ablate}
    options |= {"parts": parts, "paths": paths, "patch": patch, "whole": whole}
    needs_text = not neighbours or any((*options.values(), other_text, other_run))
    about = _questions(run, text, target, device, needs_text=needs_text)
    chosen = [about.neighbours(word) for word in neighbours or []] + about.asked(options, position, patch_kind)
    chosen += _comparison(about, (run, other_run), other_text, device)
    if output is not None:
        _write(about, chosen, output, f"Penwright: {run.resolve().name}", json)
    else:
        _answer(chosen or about.default_questions(), json)


def _questions(run: Path, text: str | None, target: str | None, device: str, *, needs_text: bool) -> "Questions":
    """Load the model and return its `Questions` about the text, which is read from standard input if needed."""
    from penwright.classification.classifier import Classifier
    from penwright.cli.questions import Questions
    from penwright.inspection import Inspector
    from penwright.workflows.load import load

    application = load(run, device, "float32")
    inspector = Inspector(application)
    if text is None and needs_text:
        text = _read_standard_input()
    if isinstance(application, Classifier) and application.linear is not None:
        warn("this shows only the Transformer. The classifier's prediction also depends on n-grams, so it can differ")
    if text is not None:
        _warn_about(inspector, text, target)
    return Questions(inspector, text or "", target)


def _warn_about(inspector: "Inspector", text: str, target: str | None) -> None:
    for warning in inspector.warnings(text, target):
        warn(warning)


def _comparison(
    about: "Questions", runs: "tuple[Path, Path | None]", other_text: str | None, device: str
) -> "list[Question]":
    """Return the questions that compare two texts or runs. The list is empty without a second text or run."""
    from penwright.cli.questions import Questions
    from penwright.inspection import Inspector
    from penwright.workflows.load import load

    run, other = runs
    if other is None:
        if other_text is None:
            return []
        _warn_about(about.inspector, other_text, None)
        return about.beside(Questions(about.inspector, other_text, None), ("the text", "the other text"))
    other_inspector = Inspector(load(other, device, "float32"))
    if other_inspector.kind != about.inspector.kind:
        raise UsageError(
            f"{other} is a {other_inspector.kind}, but {run} is a {about.inspector.kind}: they cannot be compared"
        )
    text = about.text if other_text is None else other_text
    _warn_about(other_inspector, text, about.target)
    return about.beside(Questions(other_inspector, text, about.target), (run.name, other.name))


def _write(about: "Questions", chosen: "Sequence[Question]", output: Path, title: str, json: bool) -> None:
    """Write the answers as a page, or a single answer as a picture, and print the file size.

    If no questions are given, the page has all views that apply to the model.
    """
    from penwright.inspection import overview
    from penwright.tokenizers.tokenizer import well_formed
    from penwright.views import html

    if output.suffix.lower() != ".html" and len(chosen) != 1:
        raise UsageError(
            f"a {output.suffix} file holds one picture. Select a single view, such as --lens, or write a page (.html)"
        )
    views = [view for question in chosen for view in question.views(question.find())]
    views = views or list(overview(about.inspector, about.text, about.target))
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
    """Print the answers as drawings or as JSON."""
    from penwright.inspection import as_record
    from penwright.training.progress import SafeConsole

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
