"""What fits together in a recipe, and what does not."""

import pytest

from penwright.config import Recipe, Table, validate
from penwright.errors import PenwrightError

WHOLE: Table = {"data": {"train": ["a.txt"]}, "model": {}, "training": {"steps": 1}}


@pytest.mark.parametrize(
    ("task", "kind", "complaint"),
    [
        ("classify", "bpe", None),
        ("classify", "unigram", None),
        ("classify", "bytes", "bpe or unigram"),
        ("generate", "bpe", "for classifiers"),
        ("translate", "bpe", "for classifiers"),
    ],
)
def test_a_space_before_each_text_is_for_classifiers_by_words(task: str, kind: str, complaint: str | None) -> None:
    given = {**WHOLE, "task": task, "tokenizer": {"type": kind, "prefix_space": True}}
    if complaint is None:
        assert validate(Recipe, given, "the settings").tokenizer.prefix_space
        return
    with pytest.raises(PenwrightError, match=complaint):
        validate(Recipe, given, "the settings")
