"""Every recipe is valid and complete, and its model has the documented size."""

from pathlib import Path

import pytest

from penwright.config import Recipe, merge, read_toml, validate
from penwright.model.size import size_of

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


def recipe_of(path: Path) -> Recipe:
    return validate(Recipe, merge({"model": {}, "data": {"train": ["nowhere"]}}, read_toml(path)), path.name)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_valid_and_shows_how_to_run_it(path: Path) -> None:
    recipe = recipe_of(path)
    assert size_of(recipe.task, recipe.tokenizer.vocab_size or 256, recipe.model).parameters > 0
    assert f"--recipe recipes/{path.name}" in path.read_text(encoding="utf-8")


def test_transformer_base_has_the_size_of_the_paper() -> None:
    recipe = recipe_of(next(path for path in RECIPES if path.stem == "transformer-base"))
    assert size_of("translate", 37_000, recipe.model).parameters == pytest.approx(65e6, rel=0.05)  # table 3


def test_shakespeare_char_s2_has_the_articles_settings() -> None:
    recipe = recipe_of(next(path for path in RECIPES if path.stem == "shakespeare-char-s2"))
    model, training = recipe.model, recipe.training
    assert (model.d_model, model.n_layers, model.n_heads, model.context_length) == (64, 4, 4, 32)
    assert training.batch_tokens == 16 * 32 and training.steps == 5000 and recipe.data.held_out == 0.2
    fast = recipe_of(next(path for path in RECIPES if path.stem == "shakespeare-char-s2-fast"))
    assert (fast.model, fast.tokenizer, fast.data) == (model, recipe.tokenizer, recipe.data)


def test_wmt14_de_en_bert_has_the_articles_size_and_tokenizer() -> None:
    recipe = recipe_of(next(path for path in RECIPES if path.stem == "wmt14-de-en-bert"))
    assert recipe.tokenizer.from_ == "hub:bert-base-cased"
    assert size_of("translate", 28_996, recipe.model).parameters == pytest.approx(75e6, rel=0.03)
