"""Every old name on the migration page still works, with a warning that names the new one."""

import importlib
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main
from typer.testing import CliRunner

import penwright
from penwright.cli.main import app
from penwright.config import DecodingSettings, Recipe, flatten, parse_override, read_toml, validate
from penwright.config.settings import RENAMED
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.translation.translator import Translator

PAGE = (Path(__file__).parents[1] / "docs" / "migration.md").read_text("utf-8")
VALUES = {"decoding.outlook": 0.5, "training.average": 0.9, "training.mind_over_fitting": True}


def table_of(old: str) -> str:
    return old.partition(".")[0]


@pytest.mark.parametrize("old", RENAMED)
def test_old_setting_is_read_under_its_new_name(old: str, tmp_path: Path) -> None:
    new = f"{table_of(old)}.{RENAMED[old]}"
    assert f"`{old}`" in PAGE and f"`{new}`" in PAGE
    value = str(VALUES[old]).lower()
    with pytest.warns(PenwrightWarning, match=new):
        assert flatten(parse_override(f"{old}={value}")) == {new: VALUES[old]}
    line = f"[{table_of(old)}]\n{old.partition('.')[2]} = {value}\n"
    (tmp_path / "recipe.toml").write_text(line, encoding="utf-8")
    with pytest.warns(PenwrightWarning, match=new):
        assert flatten(read_toml(tmp_path / "recipe.toml")) == {new: VALUES[old]}


@pytest.mark.parametrize("old", RENAMED)
def test_old_setting_is_valid_in_a_recipe(old: str) -> None:
    table = {"task": "generate", "data": {"train": "novel.txt"}, "model": {}, "training": {"steps": 1}, "decoding": {}}
    table[table_of(old)] |= {old.partition(".")[2]: VALUES[old]}  # type: ignore[operator]
    with pytest.warns(PenwrightWarning):
        recipe = validate(Recipe, table, "the settings")
    assert flatten(recipe.model_dump())[f"{table_of(old)}.{RENAMED[old]}"] == VALUES[old]


def test_generate_names_an_old_decoding_setting_by_its_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SimpleNamespace(defaults=DecodingSettings())
    monkeypatch.setattr("penwright.workflows.load.load_generator", lambda *given: writer)
    with pytest.warns(PenwrightWarning, match=r"decoding\.beam_patience"):
        done = CliRunner().invoke(app, ["generate", "runs/novel", "It was", "--set", "outlook=0.5"])
    assert done.exit_code == 1 and "beam_patience has no effect" in str(done.exception)


def test_old_command_has_the_options_of_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "`penwright quicken`" in PAGE
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    old, new = ([each.name for each in commands[name].params] for name in ("quicken", "optimize"))
    assert old == new
    monkeypatch.setattr("penwright.workflows.optimize.optimize", lambda *given: {"float32": 1.0})
    done = CliRunner().invoke(app, ["quicken", "runs/novel", "--json"])
    assert done.exit_code == 0 and '{"float32": 1.0}' in done.output
    assert "penwright optimize" in done.stderr


def test_old_python_names_warn_with_the_new_ones(tmp_path: Path) -> None:
    assert "`penwright.quicken`" in PAGE and "`Translator.share_out`" in PAGE
    with pytest.warns(PenwrightWarning, match=r"penwright\.optimize"), pytest.raises(PenwrightError):
        penwright.quicken(tmp_path / "nowhere", quiet=True)
    translator = Translator.__new__(Translator)
    for name in ("share_out", "use_processes"):
        assert f"`Translator.{name}`" in PAGE
        with pytest.warns(PenwrightWarning, match="no effect"):
            getattr(translator, name)(2)


def rows(section: str) -> list[list[str]]:
    """Return the cells in backquotes of each row of a table."""
    text = PAGE.partition(f"### {section}\n")[2].partition("\n#")[0]
    found = [re.findall(r"`([\w.]+)`", line) for line in text.splitlines()]
    return [row for row in found if row]


def exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(f"penwright.{module}") is not None
    except ModuleNotFoundError:
        return False


def test_moved_modules_are_where_the_page_says() -> None:
    assert len(rows("Modules")) > 100
    assert [(old, new) for old, new in rows("Modules") if exists(old) or not exists(new)] == []


def test_renamed_classes_are_where_the_page_says() -> None:
    assert len(rows("Classes")) > 40
    missing = [row for row in rows("Classes") if not hasattr(importlib.import_module(f"penwright.{row[2]}"), row[1])]
    assert missing == []
