"""Train the small models of the guide, each in seconds: `python docs/guide/make_run.py FOLDER`.

Existing runs are kept. A reader's own run can replace one of them; see `on_your_run.py`.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import penwright

CORPORA = Path(__file__).parents[2] / "demo" / "corpora.py"
EXAMPLES = 4_000  # labelled lines, half of each language
BEGINNING = 5_000  # characters, few enough to memorize

Settings = dict[str, Any]


def main() -> None:
    """Train one run for each shape of model, and one that overfits."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--steps", type=int, help="Number of steps, on a short text, instead of the usual time.")
    given = asked.parse_args()
    folder: Path = given.folder
    texts = folder / "texts"
    if not texts.is_dir():
        subprocess.run([sys.executable, str(CORPORA), str(texts)], check=True)
        if given.steps:
            _shorten(texts)
        _write_labelled(texts)
        _write_beginning(texts)
    for name, text, seconds, settings in (
        ("writer", "python-topics.txt", 24, WRITER),
        ("translator", "german-english.tsv", 26, TRANSLATOR),
        ("classifier", "languages.csv", 3, CLASSIFIER),
        ("crammer", "beginning.txt", 6, CRAMMER),
    ):
        run = folder / name
        if not (run / "recipe.toml").is_file():
            print(f"{run}: training for {f'{given.steps} steps' if given.steps else f'{seconds} seconds'}")
            penwright.train(texts / text, run=run, settings=_budgeted(settings, seconds, given.steps), quiet=True)


def _budgeted(settings: Settings, seconds: int, steps: int | None) -> Settings:
    budget: Settings = {"steps": steps} if steps else {"minutes": seconds / 60}
    return {**settings, "training": {**settings["training"], **budget}}


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
    "model": {"d_model": 96, "n_layers": 3, "n_heads": 4, "context_length": 96},
    "training": {"evaluate_every": 20, "batch_tokens": 1_024},
}
TRANSLATOR: Settings = {
    "data": {"held_out": 0.02},
    "tokenizer": {"type": "bpe", "vocab_size": 1_000},
    "model": {"d_model": 96, "n_layers": 2, "n_heads": 4, "context_length": 64},
    "training": {"batch_tokens": 1_024, "prompts": ["am Freitag, dem 17. Mai 1991", "einundzwanzig"]},
}
CLASSIFIER: Settings = {
    "tokenizer": {"type": "bpe", "vocab_size": 600},
    "model": {"d_model": 64, "n_layers": 2, "n_heads": 4, "context_length": 64},
    "training": {"batch_tokens": 1_024, "prompts": ["the third of May"]},
}
CRAMMER: Settings = {
    "tokenizer": {"type": "characters"},
    "model": {"d_model": 96, "n_layers": 2, "n_heads": 4, "context_length": 96, "dropout": 0.0},
    "optimizer": {"weight_decay": 0.0},
    "training": {"evaluate_every": 15, "batch_tokens": 2_048, "cooldown_on_overfitting": False},
}

if __name__ == "__main__":
    main()
