"""Validation of combinations of settings in a recipe."""

import pytest

from penwright.config import Recipe, Table, merge, validate
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
def test_prefix_space_needs_a_classifier_with_subword_tokens(task: str, kind: str, complaint: str | None) -> None:
    settings = {**WHOLE, "task": task, "tokenizer": {"type": kind, "prefix_space": True}}
    if complaint is None:
        assert validate(Recipe, settings, "the settings").tokenizer.prefix_space
        return
    with pytest.raises(PenwrightError, match=complaint):
        validate(Recipe, settings, "the settings")


@pytest.mark.parametrize(
    ("task", "changes", "complaint"),
    [
        ("classify", {"training": {"consistency": 0.7}}, "consistency is only for models that generate, chat or"),
        ("translate", {"training": {"consistency": 0.7}, "distillation": {"teachers": ["a"]}}, "both provide soft"),
        ("translate", {"model": {"token_dropout": 0.1}}, "token_dropout is for classifiers only"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(task: str, changes: Table, complaint: str) -> None:
    with pytest.raises(PenwrightError, match=complaint):
        validate(Recipe, merge({**WHOLE, "task": task}, changes), "the settings")
