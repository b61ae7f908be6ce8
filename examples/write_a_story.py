"""Train a writer on small stories that this script makes up, and let it write new ones.

    python examples/write_a_story.py

The stories follow a plan: a child wants something, asks somebody, and gets it. The model does not know the plan. From
the text it must learn which pronoun goes with which name, and that the wish of the beginning comes true at the end.
"""

import argparse
import random
from pathlib import Path

import penwright

CHILDREN = {"Anna": "she", "Bruno": "he", "Clara": "she", "David": "he", "Emma": "she", "Felix": "he"}
WISHES = ("a red kite", "a wooden boat", "a warm coat", "a silver bell", "a small drum", "an old map")
PEOPLE = ("baker", "captain", "gardener", "miller", "painter", "teacher")
PLACES = ("bridge", "forest", "harbour", "market", "mill", "school")
N_STORIES = 1500


def story(chance: random.Random) -> str:
    """Make up a story."""
    name, wish = chance.choice(list(CHILDREN)), chance.choice(WISHES)
    person, place = chance.choice(PEOPLE), chance.choice(PLACES)
    pronoun = CHILDREN[name]
    return (
        f"{name} wanted {wish}. So {pronoun} went to the {place} and asked the {person}. "
        f'"Come back tomorrow," said the {person}. The next day {name} was at the {place} again. '
        f"There {pronoun} got {wish}, and {pronoun} was happy.\n"
    )


def train(folder: Path, run: Path, steps: int) -> None:
    """Write the stories to a file, and train a writer on them."""
    chance = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "stories.txt"
    text.write_text("".join(story(chance) for _ in range(N_STORIES)), encoding="utf-8")
    settings = {
        "task": "generate",  # otherwise the endings of the lines, which are all alike, would be taken for labels
        "tokenizer": {"type": "bpe", "vocab_size": 400},
        "model": {"size": "nano", "n_layers": 2, "context_length": 128},
        "training": {"steps": steps, "batch_tokens": 1024, "evaluate_every": max(1, steps // 4), "compile": "off"},
    }
    penwright.train(text, run=run, settings=settings)


def main() -> None:
    """Train, write and evaluate."""
    options = argparse.ArgumentParser(description="Train a writer of small stories.")
    options.add_argument("--folder", type=Path, default=Path("runs/examples"), help="Folder for the text and the run.")
    options.add_argument("--steps", type=int, default=200, help="Training steps.")
    given = options.parse_args()
    run = given.folder / "story"
    if not run.exists():
        train(given.folder, run, given.steps)
    writer = penwright.load(run)
    assert writer.kind == "writer"

    print("\nThree stories about Anna:")
    for completion in writer.generate("Anna wanted", n=3, temperature=0.8, max_new_tokens=100, stop=["\n"], seed=1):
        print(f"  {completion.prompt}{completion.text}")

    print("\nA story in which Bruno asks the captain at the market:")
    pattern = r" wanted [^.]+\. So he went to the market and asked the captain\. [^\n]+\n"
    (completion,) = writer.generate("Bruno", max_new_tokens=100, pattern=pattern, seed=1)
    print(f"  {completion.prompt}{completion.text.rstrip()}")

    print("\nOn stories that it has not read:")
    for score in penwright.evaluate(run, quiet=True):
        print(f"  {score.name}: {score.value:.3f}")


if __name__ == "__main__":
    main()
