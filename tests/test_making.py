from pathlib import Path

import pytest

from penwright.config import Recipe, validate
from penwright.making import new_run_folder, read_recipe


@pytest.mark.parametrize(
    ("above", "training"),
    [({}, {"minutes": 5, "keep": 1}), ({"training": {"steps": 9}}, {"keep": 1})],
)
def test_a_budget_laid_over_a_recipe_replaces_its_own(
    tmp_path: Path, above: dict[str, dict[str, int]], training: dict[str, int]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nminutes = 5\nkeep = 1\n", encoding="utf-8")
    assert read_recipe(path, above) == {"training": training}


def test_a_new_run_is_named_after_its_text_and_never_one_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = {"task": "generate", "data": {"train": ["books/novel.txt.gz"]}, "model": {}, "training": {"steps": 1}}
    recipe = validate(Recipe, table, "here")
    assert new_run_folder(recipe) == Path("runs/novel")
    (tmp_path / "runs" / "novel").mkdir(parents=True)
    assert new_run_folder(recipe) == Path("runs/novel-2")
