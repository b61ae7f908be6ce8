"""Quality of our models: train and evaluate the published results again, from raw text.

Each row is a process of `penwright train`, then of `penwright evaluate` on each named part, in the folder of its corpus
and with empty caches. With `pip install pyppmd`, the bits per byte of a writer stand beside those of PPMd, a file
compressor, at its best order, after it has read the training text.

Run: python -m benchmarks.quality DATA NAME[,NAME...] [ROUNDS]      (without names: list them)
"""

import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import sacrebleu

from benchmarks import ours
from benchmarks.report import Result, write_result
from penwright.data.corpus import Document
from penwright.workflows.evaluate import open_corpus_of
from penwright.workflows.load import open_run

NAME = "quality"
PPMD_ORDERS = (3, 4, 5, 6, 8, 12)
PPMD_BYTES = 1 << 28  # memory of PPMd
RECIPES = Path(__file__).parent.parent / "recipes"


class Row(NamedTuple):
    """The folder of a corpus, the training command, and the parts to evaluate: files, or the held-out set."""

    folder: str
    train: str
    parts: tuple[str, ...] = ("",)


def _multi30k(source: str, target: str, train: str) -> Row:
    return Row("multi30k", train, (f"test_2016_flickr.{source} test_2016_flickr.{target}",))


EN_DE = "train.en.gz train.de.gz --validation val.en --validation val.de --minutes"
SHAKESPEARE = "input.txt --set data.held_out=0.1 --set tokenizer.type=characters --minutes"
TWO = "train.phrases.tsv --validation dev.tsv --minutes 4.7 --ensemble 2 --set data.label=1 --set 'data.text=[2]'"
NEWS = 'test.csv --set data.label=1 --set "data.text=[2,3]" --set "data.label_names={{{}}}"'.format(
    ",".join(f"{number}='{name}'" for number, name in enumerate(("World", "Sports", "Business", "Sci/Tech"), 1))
)
ROWS = {
    "multi30k-de-en": _multi30k("de", "en", "--recipe multi30k-de-en.toml"),
    "multi30k-en-de": _multi30k("en", "de", "--recipe multi30k-en-de.toml"),
    "multi30k-en-de-2": _multi30k("en", "de", f"{EN_DE} 2"),
    "multi30k-en-de-10": _multi30k("en", "de", f"{EN_DE} 10"),
    "multi30k-en-de-40": _multi30k("en", "de", f"{EN_DE} 40"),
    "spanish-5": Row("spa-eng", "spa.txt.gz --minutes 5"),
    "polish-prose": Row(".", "polish-literature --recipe polish-prose.toml"),
    "shakespeare-5": Row("tinyshakespeare", f"{SHAKESPEARE} 5"),
    "shakespeare-10": Row("tinyshakespeare", f"{SHAKESPEARE} 10"),
    "shakespeare-60": Row("tinyshakespeare", f"{SHAKESPEARE} 60"),
    "sst2": Row("sst2", "train.phrases.tsv --recipe sst2.toml", ("", "test.tsv")),
    "sst2-two": Row("sst2", TWO, ("", "test.tsv")),
    "ag-news": Row("ag_news", "--recipe ag-news.toml", (NEWS,)),
}


def main(data: Path, names: Sequence[str] = (), rounds: int = 3) -> None:
    """Train and evaluate each model `rounds` times, with different seeds."""
    if not names:
        raise SystemExit("\n".join(f"{name}: penwright train {row.train}" for name, row in ROWS.items()))
    results = []
    for name in names:
        found: dict[str, list[float]] = {}
        for number in range(rounds):
            for what, value in _trained_and_measured(data / ROWS[name].folder, ROWS[name], number + 1).items():
                found.setdefault(what, []).append(value)
                print(f"{name}: {what} {value:.4f}", flush=True)
        results += [Result(f"{name}: {what}", {"figure": values}) for what, values in found.items()]
    command = f"python -m benchmarks.{NAME} DATA {','.join(names)} {rounds}"
    write_result("-".join([NAME, *names]), command, results, (__doc__ or "").split("\n\n")[1])


def _trained_and_measured(folder: Path, row: Row, seed: int) -> dict[str, float]:
    """Return the seconds of training and the scores of each part, named after its first file."""
    with TemporaryDirectory() as place:
        where = Path(place) / "run"
        options = [str(RECIPES / word) if (RECIPES / word).is_file() else word for word in shlex.split(row.train)]
        found = {"seconds": ours.train(where, [*options, "--seed", seed], folder).seconds}
        for part in row.parts:
            on = part.split()[0] if part else "held out"
            found |= {f"{name} ({on})": value for name, value in _scores(where, shlex.split(part), folder).items()}
        if "bits per byte (held out)" in found and find_spec("pyppmd"):
            found["bits per byte of PPMd (held out)"] = _bits_of_ppmd(where, folder)
    return found


def _bits_of_ppmd(run: Path, folder: Path) -> float:
    """Return the bits per byte in which PPMd stores the held-out set of a run, after its training set."""
    from pyppmd import Ppmd8Encoder

    with chdir(folder):
        corpus = open_corpus_of(open_run(run))
        training, held_out = _bytes_of(corpus.training), _bytes_of(corpus.held_out)

    def size(text: bytes, order: int) -> int:
        encoder = Ppmd8Encoder(order, PPMD_BYTES)
        return len(encoder.encode(text)) + len(encoder.flush())

    least = min(size(training + held_out, order) - size(training, order) for order in PPMD_ORDERS)
    return 8 * least / len(held_out)


def _bytes_of(examples: Iterable[object]) -> bytes:
    return "".join(chunk for each in examples if isinstance(each, Document) for chunk in each.chunks).encode()


def _scores(run: Path, files: Sequence[str], folder: Path) -> dict[str, float]:
    """Return the scores of `penwright evaluate`; for two files also lower-cased BLEU, as published for Multi30k."""
    if len(files) != 2:
        return ours.evaluate(run, *files, within=folder)
    written = run.with_suffix(".txt")
    scores = ours.evaluate(run, *files, "--output", written, within=folder)
    hypotheses, references = (
        path.read_text(encoding="utf-8").rstrip("\n").split("\n") for path in (written, folder / files[1])
    )
    return {**scores, "BLEU, lower-cased": sacrebleu.corpus_bleu(hypotheses, [references], lowercase=True).score}


if __name__ == "__main__":
    named = tuple(sys.argv[2].split(",")) if sys.argv[2:] else ()
    main(Path(sys.argv[1]).resolve(), named, *map(int, sys.argv[3:]))
