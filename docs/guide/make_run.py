"""Train the small models of the guide: `python docs/guide/make_run.py FOLDER`.

Every run has a fixed number of steps and the seed of the recipe. Number format, threads and compilation are fixed too,
so that neither the clock nor the processor decides what the models learn. Runs that were finished with the same
settings are kept.
"""

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import penwright

CORPORA = Path(__file__).parents[2] / "demo" / "corpora.py"
EXAMPLES = 4_000  # labelled lines, half of each language
BEGINNING = 5_000  # characters, few enough to memorize
PROCESSES = 2  # at a time
THREADS = 1  # of each, so that the number of cores changes no sum

Settings = dict[str, Any]


def main() -> None:
    """Train one run for each shape of model, and one that overfits."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--steps", type=int, help="Train each model for this many steps on a short text, for tests.")
    given = asked.parse_args()
    folder: Path = given.folder
    texts = folder / "texts"
    if not texts.is_dir():
        subprocess.run([sys.executable, str(CORPORA), str(texts)], check=True)
        if given.steps:
            _shorten(texts)
        _write_labelled(texts)
        _write_beginning(texts)
    tables = {name: settings_of(given.steps or usual, settings) for name, (_, usual, settings) in RUNS.items()}
    missing = [name for name, table in tables.items() if not _is_finished(folder / name, table)]
    if missing:
        with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
            for done in [pool.submit(_train, folder, name, tables[name]) for name in missing]:
                done.result()


def _note(run: Path) -> Path:
    """Return the file that says with which settings the run was finished."""
    return run.with_name(f"{run.name}.json")


def _is_finished(run: Path, table: Settings) -> bool:
    return _note(run).is_file() and bool(json.loads(_note(run).read_text("utf-8")) == table)


def _train(folder: Path, name: str, table: Settings) -> None:
    run = folder / name
    print(f"{run}: training for {table['training']['steps']} steps", flush=True)
    shutil.rmtree(run, ignore_errors=True)
    penwright.train(folder / "texts" / RUNS[name][0], run=run, settings=table, quiet=True)
    _note(run).write_text(json.dumps(table), encoding="utf-8")


def settings_of(steps: int, settings: Settings) -> Settings:
    """Return the settings of a run with everything that the clock or the processor would otherwise decide."""
    machine = {"device": "cpu", "precision": "float32", "compile": "off", "threads": THREADS}
    return {**settings, "training": {**settings["training"], **machine, "steps": steps}}


def _shorten(texts: Path, n_lines: int = 400) -> None:
    for path in texts.iterdir():
        lines = path.read_text("utf-8").split("\n")[:n_lines]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_labelled(texts: Path) -> None:
    """Write labelled lines of German and English for the classifier."""
    pairs = [line.split("\t") for line in (texts / "german-english.tsv").read_text("utf-8").splitlines()[1:]]
    chosen = pairs[:: max(1, 2 * len(pairs) // EXAMPLES)]
    lines = [f'"{text}",{name}\n' for pair in chosen for text, name in zip(pair, ("German", "English"), strict=True)]
    (texts / "languages.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")


def _write_beginning(texts: Path) -> None:
    whole = (texts / "python-topics.txt").read_text("utf-8")
    (texts / "beginning.txt").write_text(whole[:BEGINNING], encoding="utf-8")


WRITER: Settings = {
    "data": {"held_out": 0.03},  # small enough to evaluate often
    "tokenizer": {"type": "bpe", "vocab_size": 700},  # pieces of words are easier to follow than letters
    # one table for input and output, as the pages explain it, and no start from bigrams, which would hide how it learns
    "model": {"d_model": 96, "n_layers": 3, "n_heads": 4, "context_length": 96, "tie_embeddings": "output"},
    "training": {"evaluate_every": 100, "batch_tokens": 1_024},
}
TRANSLATOR: Settings = {
    "data": {"held_out": 0.02},
    "tokenizer": {"type": "bpe", "vocab_size": 1_000},
    "model": {"d_model": 96, "n_layers": 2, "n_heads": 4, "context_length": 64},
    "training": {"evaluate_every": 200, "batch_tokens": 1_024, "prompts": ["einundzwanzig"]},
}
CLASSIFIER: Settings = {
    "tokenizer": {"type": "bpe", "vocab_size": 600},
    "model": {"d_model": 64, "n_layers": 2, "n_heads": 4, "context_length": 64},
    "training": {"evaluate_every": 50, "batch_tokens": 1_024, "prompts": ["the third of May"]},
}
CRAMMER: Settings = {
    "tokenizer": {"type": "characters"},
    "model": {"d_model": 96, "n_layers": 2, "n_heads": 4, "context_length": 96, "dropout": 0.0},
    "optimizer": {"weight_decay": 0.0},
    "training": {"evaluate_every": 15, "batch_tokens": 2_048},
}
RUNS = {  # text, steps, settings
    "writer": ("python-topics.txt", 700, WRITER),
    "translator": ("german-english.tsv", 600, TRANSLATOR),
    "classifier": ("languages.csv", 100, CLASSIFIER),
    "crammer": ("beginning.txt", 300, CRAMMER),
}

if __name__ == "__main__":
    main()
