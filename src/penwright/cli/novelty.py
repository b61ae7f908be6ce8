"""The `penwright novelty` command: measure how much of a text is copied from the training text."""

import json as json_format
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import Json, RunFolder, counted, print_json, read_text
from penwright.errors import PenwrightError

if TYPE_CHECKING:
    from penwright.evaluation.novelty import Novelty, NoveltyReport

SHOWN = 200  # maximum number of characters of a passage to print


def command(
    run: RunFolder,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Text files, or output of `generate --jsonl`. Default: standard input.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Measure how much of a text is copied from the training text.

    Reports the longest copied passage of each text, and the share of its word n-grams that are new.
    """
    from penwright.workflows import api

    texts = [text for path in files or ["-"] for text in _texts(read_text(path))]
    if not any(text.strip() for text in texts):
        raise PenwrightError(
            "there is no text to measure. Name a file that contains text, or pipe text to standard input"
        )
    report = api.novelty(run, texts)
    if json:
        print_json(asdict(report))
        return
    for line in in_words(report):
        print(line)


def _texts(content: str) -> list[str]:
    """Return the "text" field of each line if every line is a JSON object with this field, else the whole content."""
    try:
        return [json_format.loads(line)["text"] for line in content.split("\n") if line.strip()]
    except (ValueError, TypeError, KeyError):
        return [content]


def in_words(report: "NoveltyReport") -> "Iterator[str]":
    """Yield the lines of the report: the longest passage copied in each text, and a comparison with held-out text."""
    held_out_longest = max((_length(novelty) for novelty in report.held_out), default=0)
    for number, novelty in enumerate(report.texts, start=1):
        run = novelty.longest
        if run is None:
            yield f"{number}: no passage of 8 bytes or more is copied"
            continue
        passage = run.text if len(run.text) <= SHOWN else f"{run.text[:SHOWN]}..."
        remark = ", longer than any passage copied in held-out text" if _length(novelty) > held_out_longest else ""
        yield (
            f"{number}: copies {len(run.text)} characters ({counted(run.n_words, 'word')}) in a row "
            f"from {run.document}, line {run.line}{remark}: {json_format.dumps(passage, ensure_ascii=False)}"
        )
    lengths = sorted({n for novelty in report.texts for n in novelty.new})
    rows = [
        ("these texts", report.texts),
        (f"held-out text ({counted(len(report.held_out), 'passage')})", report.held_out),
    ]
    width = max(len(name) for name, _ in rows)
    header = "".join(f"{f'n={n}':>6}" for n in lengths)
    yield f"{'new word n-grams, %':{width}}  {header}    longest copied passage, characters"
    for name, measured in rows:
        shares = "".join(f"{_share(measured, n):>6}" for n in lengths)
        copied = [_length(novelty) for novelty in measured]
        yield f"{name:{width}}  {shares}    median {median(copied or [0]):.0f}, maximum {max(copied, default=0)}"


def _length(novelty: "Novelty") -> int:
    return len(novelty.longest.text) if novelty.longest else 0


def _share(measured: "Sequence[Novelty]", n: int) -> str:
    values = [novelty.new[n] for novelty in measured if n in novelty.new]
    return f"{100 * mean(values):.0f}" if values else "-"
