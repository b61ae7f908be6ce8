"""Train a translator on sentences that this script makes up, and let it translate a text file.

    python examples/translate_a_file.py

The sentences are German, with their English translations. Word order and the clock differ between the languages:
`Um halb acht trinkt Anna Tee.` is `At half past seven Anna drinks tea.`
"""

import argparse
import random
from pathlib import Path

import penwright

HOURS = {
    "eins": "one",
    "zwei": "two",
    "drei": "three",
    "vier": "four",
    "fünf": "five",
    "sechs": "six",
    "sieben": "seven",
    "acht": "eight",
    "neun": "nine",
    "zehn": "ten",
    "elf": "eleven",
    "zwölf": "twelve",
}
NAMES = ("Anna", "Bruno", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
ACTIONS = {
    ("trinkt", "Tee"): "drinks tea",
    ("liest", "die Zeitung"): "reads the newspaper",
    ("kocht", "eine Suppe"): "cooks a soup",
    ("spielt", "Klavier"): "plays the piano",
    ("öffnet", "das Fenster"): "opens the window",
    ("schreibt", "einen Brief"): "writes a letter",
    ("backt", "ein Brot"): "bakes bread",
    ("füttert", "die Katze"): "feeds the cat",
}
DIARY = """Um sieben Uhr öffnet Bruno das Fenster.

  Um halb acht trinkt Greta Tee. Um neun Uhr liest Hugo die Zeitung.
  Clara spielt um zwölf Uhr Klavier.

Um halb fünf öffnet Felix das Fenster.
"""
N_PAIRS = 2500


def pair(chance: random.Random) -> tuple[str, str]:
    """Make up a German sentence and its English translation."""
    hours = list(HOURS)
    hour, name = chance.randrange(12), chance.choice(NAMES)
    (verb, object_), english = chance.choice(list(ACTIONS.items()))
    if chance.random() < 0.5:  # halb acht, "half eight", is half past seven
        when, at = f"halb {hours[hour]}", f"half past {HOURS[hours[hour - 1]]}"
    else:
        when, at = f"{hours[hour].replace('eins', 'ein')} Uhr", f"{HOURS[hours[hour]]} o'clock"
    if chance.random() < 0.5:
        return f"Um {when} {verb} {name} {object_}.", f"At {at} {name} {english}."
    return f"{name} {verb} um {when} {object_}.", f"{name} {english} at {at}."


def train(folder: Path, run: Path, steps: int) -> None:
    """Write the pairs to a file, and train a translator on them."""
    chance = random.Random(1)
    pairs = {pair(chance) for _ in range(N_PAIRS)}
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "clock.tsv"
    lines = [f"{german}\t{english}\n" for german, english in sorted(pairs)]
    table.write_text("de\ten\n" + "".join(lines), encoding="utf-8")
    settings = {
        "tokenizer": {"type": "bpe", "vocab_size": 400},
        "model": {"size": "nano", "n_layers": 2, "context_length": 64},
        "training": {"steps": steps, "batch_tokens": 1024, "evaluate_every": max(1, steps // 4), "compile": "off"},
    }
    penwright.train(table, run=run, settings=settings)


def main() -> None:
    """Train, translate a file, and evaluate."""
    options = argparse.ArgumentParser(description="Train a translator of sentences about the clock.")
    options.add_argument("--folder", type=Path, default=Path("runs/examples"), help="Folder for the texts and the run.")
    options.add_argument("--steps", type=int, default=120, help="Training steps.")
    given = options.parse_args()
    run = given.folder / "clock"
    if not run.exists():
        train(given.folder, run, given.steps)
    translator = penwright.load(run)
    assert translator.kind == "translator"

    print("\nSentence by sentence, with the two best translations:")
    for translation in translator.translate(["Um halb eins backt Emma ein Brot."], n_best=2):
        for candidate in translation.candidates:
            print(f"  {candidate.log_prob:6.2f}  {candidate.text}")

    source, target = given.folder / "diary.de.txt", given.folder / "diary.en.txt"
    source.write_text(DIARY, encoding="utf-8")
    target.write_text(translator.translate_document(source.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"\n{target}, with the blank lines and the indentation of {source.name}:\n")
    print(target.read_text(encoding="utf-8"))

    print("On sentences that it has not read:")
    for score in penwright.evaluate(run, beam_size=1, quiet=True):
        print(f"  {score.name}: {score.value:.2f}")


if __name__ == "__main__":
    main()
