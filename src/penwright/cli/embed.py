"""The commands `penwright embed` and `penwright search`: vectors of texts, and search by meaning."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import Device, Json, RunFolder, Texts, given_texts, lines_of, print_json, read_text, warn
from penwright.errors import UsageError
from penwright.text import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penwright.workflows.search import Hit

TABLES = {".csv": ",", ".tsv": r"\t"}  # suffixes of tables, and their delimiters
# a program that prints a column of a table, one text per line
COLUMN = 'import csv, sys; [print(*row["text"].split()) for row in csv.DictReader(sys.stdin, delimiter="%s")]'
Similarity = Annotated[
    float | None,
    typer.Option(help="Minimum similarity of near-duplicates (default: 0.9).", metavar="S", min=0.0, max=1.0),
]


def embed(
    run: RunFolder,
    texts: Texts = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write a NumPy array (.npy) with one row per text instead of JSON lines."),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Turn texts or lines of standard input into vectors.

    Prints one line of JSON per text. All vectors have length 1: the dot product of two vectors is the cosine similarity
    of their texts. Works with encoders, classifiers and language models, but not with translators.
    """
    from penwright.workflows.load import load_embedder

    if output is not None and not output.parent.is_dir():
        raise UsageError(f"{output} cannot be written: there is no folder {output.parent}")
    embedder, sources = load_embedder(run, device), given_texts(texts)
    vectors = embedder.embed(sources).numpy()
    if output is None:
        for source, vector in zip(sources, vectors, strict=True):
            print_json({"text": source, "embedding": vector.tolist()})
        return
    from io import BytesIO

    import numpy as np

    from penwright.storage import write_output

    content = BytesIO()
    np.save(content, vectors, allow_pickle=False)
    write_output(output, content.getvalue())


def search(
    run: RunFolder,
    corpus: Annotated[str, typer.Argument(help="Text file to search; each line is a passage.", metavar="FILE")],
    query: Annotated[str | None, typer.Argument(help="Text to search for.", metavar="QUERY")] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Find the lines that are nearly the same as an earlier line.")
    ] = False,
    similarity: Similarity = None,
    clusters: Annotated[
        str | None,
        typer.Option(help="Divide the lines into N clusters by topic; `auto` chooses the number.", metavar="N"),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            help="Print the K most similar lines (default: 10), the first K near-duplicates (all), or the K most "
            "central lines of each cluster (3).",
            metavar="K",
            min=1,
        ),
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Find lines that are similar to a query, or to each other.

    Prints the cosine similarity, the line number and the line, separated by tabs. The vectors of the lines are cached,
    so the next search in the same file is fast. If some lines change, only those are embedded again.

    --duplicates prints the similarity, then the number and the text of a line, then those of the earlier line.
    --clusters prints the typical words and the most central lines of each cluster.
    """
    from penwright.classification.clusters import SIMILAR
    from penwright.streams import print_message
    from penwright.workflows.search import SearchIndex

    if [query is not None, duplicates, clusters is not None].count(True) != 1:
        raise UsageError("search needs exactly one of these: a query, --duplicates, or --clusters")
    if similarity is not None and not duplicates:
        raise UsageError("--similarity has no effect without --duplicates")
    if query is not None and not query.strip():
        raise UsageError("the query is blank. Give a text to search for")
    if (mark := TABLES.get(Path(corpus).suffix.lower())) is not None:
        warn(
            f"{corpus} looks like a table, but every line is searched as it is, the header and all columns included. "
            f"To search one column, such as text: python -c {quote(COLUMN % mark)} < {quote(corpus)} > texts.txt"
        )
    if query is not None and Path(query).is_file() and not Path(corpus).exists():
        raise UsageError(f"there is no file {corpus}. The file comes before the query: {query} '{corpus}'")
    n_clusters = _number_of_clusters(clusters)
    index = SearchIndex(run, corpus, lines_of(read_text(corpus)), device, print_message)
    if query is not None:
        for hit in index.search(query, top or 10):
            _print(hit._asdict(), _row(hit), json)
    elif duplicates:
        pairs = index.near_duplicates(SIMILAR if similarity is None else similarity)
        _print_pairs(pairs[:top], json)
        print_message(f"{count(len(pairs), 'near-duplicate')} in {count(len(index.lines), 'line')}")
    else:
        _print_clusters(index.clusters(n_clusters), top or 3, json)


def _print_pairs(pairs: "Sequence[tuple[Hit, Hit]]", json: bool) -> None:
    """Print pairs of near-duplicates, the later line of each pair first."""
    for hit, earlier in pairs:
        record = {**hit._asdict(), "earlier_line": earlier.line, "earlier_text": earlier.text}
        _print(record, f"{_row(hit)}\t{earlier.line}\t{earlier.text}", json)


def _print_clusters(clusters: "Sequence[tuple[tuple[str, ...], list[Hit]]]", top: int, json: bool) -> None:
    """Print the typical words of each cluster, and its `top` most central lines (as JSON: all its lines)."""
    for number, (words, hits) in enumerate(clusters, 1):
        if json:
            print_json({"cluster": number, "words": words, "lines": [hit._asdict() for hit in hits]})
        else:
            print(f"cluster {number}, {count(len(hits), 'line')}: {', '.join(words)}")
            print("\n".join(map(_row, hits[:top])), end="\n\n")


def _print(record: dict[str, object], line: str, json: bool) -> None:
    if json:
        print_json(record)
    else:
        print(line)


def _row(hit: "Hit") -> str:
    return f"{hit.similarity:.3f}\t{hit.line}\t{hit.text}"


def _number_of_clusters(requested: str | None) -> int | None:
    if requested in (None, "auto"):
        return None
    if not requested.isdecimal():
        raise UsageError(f"--clusters {requested} is not a number. Use a number such as 8, or auto")
    return int(requested)
