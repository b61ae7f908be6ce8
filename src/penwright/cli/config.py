"""The `penwright config` command: print a recipe in full, or explain every setting."""

from pathlib import Path
from typing import Annotated

import typer

from penwright.cli.options import AnySetting, Json, print_json

NAME = "config"


def command(
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe file or run folder. Default: explain every setting.")
    ] = None,
    set_: AnySetting = None,
    json: Json = False,
) -> None:
    """Print a recipe in full, or explain every setting.

    With a recipe or a run: check it, fill in the defaults and print it. Without one: print every key with its default
    and its meaning.
    """
    from penwright.config import Recipe, merge, parse_override, read_toml, validate, write_toml
    from penwright.config.descriptions import explain

    if recipe is None:
        print(
            "# Every key, its default and its meaning. None: not set. "
            "To print a recipe: penwright config RECIPE, or penwright train --dry-run"
        )
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
