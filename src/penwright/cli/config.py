"""penwright config: every setting of a recipe, with its meaning."""

from pathlib import Path
from typing import Annotated

import typer

from penwright.cli.options import AnySetting, Json, print_json

NAME = "config"


def command(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe or a run; without one, all keys.")] = None,
    set_: AnySetting = None,
    json: Json = False,
) -> None:
    """Check a recipe and print it whole, or explain every key.

    Whole means with all defaults; without a recipe, every key is explained.
    """
    from penwright.config import Recipe, explain, merge, parse_override, read_toml, validate, write_toml

    if recipe is None:
        print("# Every key, to read: a recipe itself is what `penwright config RECIPE` prints, or --dry-run of `train`")
        print(explain(Recipe))
        return
    path = recipe / "recipe.toml" if recipe.is_dir() else recipe
    blank = {"data": {"train": ["YOUR_TEXT"]}, "model": {}}
    table = merge(blank, read_toml(path), *(parse_override(text) for text in set_ or []))
    if "training" not in table:
        table["training"] = {"minutes": 10}
    settings = validate(Recipe, table, str(path))
    if json:
        print_json(settings.model_dump(mode="json"))
    else:
        print(write_toml(settings), end="")
