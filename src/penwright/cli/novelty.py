"""penwright novelty: how much of a text is copied from what a writer learned from."""

import json as json_format
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import Json, RunFolder, print_json, read_text
from penwright.errors import PenwrightError

if TYPE_CHECKING:
    from penwright.evaluation.novelty import Novelty, NoveltyReport

NAME = "novelty"
SHOWN = 200  # characters of a passage


def command(
    run: RunFolder,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, or lines of generate --jsonl; without any: standard input.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Find what texts copy from the training text.

    The longest run of each text, and the share of its word n-grams that are new.
    """
    from penwright.workflows import api

    texts = [text for path in files or ["-"] for text in _texts(read_text(path))]
    if not any(text.strip() for text in texts):
        raise PenwrightError("there is no text to measure: name a file with text in it, or pipe one in")
    report = api.novelty(run, texts)
    if json:
        print_json(asdict(report))
        return
    for line in in_words(report):
        print(line)


def _texts(content: str) -> list[str]:
    """The text of each line where all lines are JSON objects with one; else the whole is a text."""
    try:
        return [json_format.loads(line)["text"] for line in content.split("\n") if line.strip()]
    except (ValueError, TypeError, KeyError):
        return [content]


def in_words(report: "NoveltyReport") -> "Iterator[str]":
    """For people: what each text copies, and all of them beside held-out text."""
    usual = max((_length(novelty) for novelty in report.held_out), default=0)
    for number, novelty in enumerate(report.texts, start=1):
        run = novelty.longest
        if run is None:
            yield f"{number}: no run of 8 bytes is copied"
            continue
        passage = run.text if len(run.text) <= SHOWN else f"{run.text[:SHOWN]}..."
        more = ", more than any held-out passage does" if _length(novelty) > usual else ""
        yield (
            f"{number}: {len(run.text)} characters ({run.n_words} words) in a row are those of {run.document}, "
            f"line {run.line}{more}: {json_format.dumps(passage, ensure_ascii=False)}"
        )
    lengths = sorted({n for novelty in report.texts for n in novelty.new})
    rows = [("these texts", report.texts), (f"held-out text ({len(report.held_out)} passages)", report.held_out)]
    width = max(len(name) for name, _ in rows)
    heads = "".join(f"{f'n={n}':>6}" for n in lengths)
    yield f"{'new word n-grams, %':{width}}  {heads}    longest run, characters"
    for name, measured in rows:
        shares = "".join(f"{_share(measured, n):>6}" for n in lengths)
        copied = [_length(novelty) for novelty in measured]
        yield f"{name:{width}}  {shares}    median {median(copied or [0]):.0f}, most {max(copied, default=0)}"


def _length(novelty: "Novelty") -> int:
    return len(novelty.longest.text) if novelty.longest else 0


def _share(measured: "Sequence[Novelty]", n: int) -> str:
    found = [novelty.new[n] for novelty in measured if n in novelty.new]
    return f"{100 * mean(found):.0f}" if found else "-"
