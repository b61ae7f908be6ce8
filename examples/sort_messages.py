"""Train a classifier on messages that this script makes up, and let it sort new ones.

    python examples/sort_messages.py

A message is a question, a complaint or praise. The new messages use the same words in other combinations. Where the
model is not sure, a person should look.
"""

import argparse
import csv
import random
from pathlib import Path

import penwright

THINGS = ("kettle", "lamp", "blanket", "garden chair", "radio", "coat", "bicycle", "umbrella", "clock", "suitcase")
MESSAGES = {
    "question": (
        "How do I clean the {}?",
        "Can I still return my {} after two weeks?",
        "When will my {} arrive?",
        "Does the {} come with a manual?",
        "Which {} do you recommend for children?",
    ),
    "complaint": (
        "The {} arrived broken.",
        "My {} stopped working after a week, and nobody answers my letters.",
        "I am disappointed: the {} is much smaller than in the picture.",
        "Your {} is noisy and smells of plastic.",
        "I waited a month for the {}, and it is the wrong colour.",
    ),
    "praise": (
        "The {} is wonderful, thank you!",
        "I love my new {}.",
        "The best {} that I ever had, and it came the next day.",
        "My whole family is happy with the {}.",
        "Many thanks for repairing the {} so quickly.",
    ),
}
GREETINGS = ("", "Hello, ", "Good morning. ", "Dear team, ")
NEW = (
    "Hello, when will the suitcase arrive?",
    "My radio arrived broken, and it smells of plastic.",
    "Thank you, the clock is wonderful!",
    "Does the noisy kettle come with a smaller picture?",
)
N_MESSAGES = 1200
SURE = 0.9  # probability from which no person needs to look


def message(chance: random.Random) -> tuple[str, str]:
    """Make up a message and its label."""
    label = chance.choice(list(MESSAGES))
    return chance.choice(GREETINGS) + chance.choice(MESSAGES[label]).format(chance.choice(THINGS)), label


def train(folder: Path, run: Path, steps: int) -> None:
    """Write the messages to a table, and train a classifier on it."""
    chance = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "messages.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("message", "label"), *(message(chance) for _ in range(N_MESSAGES))])
    settings = {
        "tokenizer": {"type": "bpe", "vocab_size": 400},
        "model": {"size": "nano", "n_layers": 2, "context_length": 64},
        "training": {"steps": steps, "batch_tokens": 1024, "evaluate_every": max(1, steps // 4), "compile": "off"},
    }
    penwright.train(table, run=run, settings=settings)


def main() -> None:
    """Train, sort new messages, and evaluate."""
    options = argparse.ArgumentParser(description="Train a classifier of messages.")
    options.add_argument("--folder", type=Path, default=Path("runs/examples"), help="Folder for the table and the run.")
    options.add_argument("--steps", type=int, default=120, help="Training steps.")
    given = options.parse_args()
    run = given.folder / "messages"
    if not run.exists():
        train(given.folder, run, given.steps)
    classifier = penwright.load(run)
    assert classifier.kind == "classifier"

    print("\nNew messages, sorted:")
    sorted_messages = sorted(zip(classifier.classify(NEW), NEW, strict=True), key=lambda each: str(each[0].label))
    for found, text in sorted_messages:
        probability = found.scores[str(found.label)]
        remark = "" if probability >= SURE else "  (not sure: please look)"
        print(f"  {found.label:10} {probability:4.0%}  {text}{remark}")

    print("\nOn messages that it has not read:")
    for score in penwright.evaluate(run, quiet=True):
        print(f"  {score.name}: {score.value:.2f}")


if __name__ == "__main__":
    main()
