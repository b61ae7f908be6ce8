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
        ("translate", {}, None),
        ("classify", {}, "not possible for the task classify: set training.consistency to 0"),
        ("translate", {"distillation": {"teachers": ["a"]}}, r"cannot be combined with \[distillation\]"),
    ],
)
def test_consistency_needs_a_vocabulary_and_no_teachers(task: str, changes: Table, complaint: str | None) -> None:
    consistent: Table = {"task": task, "training": {"consistency": 0.7}}
    settings = merge(WHOLE, merge(consistent, changes))
    if complaint is None:
        assert validate(Recipe, settings, "the settings").training.consistency == 0.7
        return
    with pytest.raises(PenwrightError, match=complaint):
        validate(Recipe, settings, "the settings")


def test_token_dropout_is_only_for_classifiers() -> None:
    with pytest.raises(PenwrightError, match="token_dropout is only for classifiers"):
        validate(Recipe, {**WHOLE, "task": "translate", "model": {"token_dropout": 0.5}}, "the settings")


@pytest.mark.parametrize("task", ["translate", "generate", "chat"])
def test_group_is_only_for_classifiers(task: str) -> None:
    settings = merge(WHOLE, {"task": task, "data": {"group": "author"}})
    with pytest.raises(PenwrightError, match=r"data\] group .* is only for classifiers"):
        validate(Recipe, settings, "the settings")
