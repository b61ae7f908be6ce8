"""The commands `penwright embed` and `penwright search`: vectors of texts, and search by meaning."""

from pathlib import Path
from typing import Annotated

import typer

from penwright.cli.options import Device, Json, RunFolder, Texts, given_texts, lines_of, print_json, read_text
from penwright.errors import PenwrightError


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

    embedder, sources = load_embedder(run, device), given_texts(texts)
    vectors = embedder.embed(sources).numpy()
    if output is None:
        for source, vector in zip(sources, vectors, strict=True):
            print_json({"text": source, "embedding": vector.tolist()})
        return
    import numpy as np

    try:
        with output.open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
    except OSError as error:
        raise PenwrightError(f"{output} could not be written: {error.strerror}") from None


def search(
    run: RunFolder,
    corpus: Annotated[str, typer.Argument(help="Text file to search; each line is a passage.")],
    query: Annotated[str, typer.Argument(help="Text to search for.")],
    top: Annotated[int, typer.Option(help="Print the K most similar lines.", metavar="K", min=1)] = 10,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Find the lines of a text file that are most similar to a query.

    Prints the cosine similarity, the line number and the line, separated by tabs. The vectors of the lines are cached,
    so the next search in the same file is fast.
    """
    from penwright.streams import print_message
    from penwright.workflows.search import SearchIndex

    for hit in SearchIndex(run, lines_of(read_text(corpus)), device, print_message).search(query, top):
        if json:
            print_json(hit._asdict())
        else:
            print(f"{hit.similarity:.3f}\t{hit.line}\t{hit.text}")
