"""Tables and overrides become settings. Errors name the place and the nearest key."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.config import Recipe, RotaryPositions, merge, parse_override, parse_toml, read_toml, validate, write_toml
from penwright.config.settings import Table
from penwright.errors import PenwrightError, PenwrightWarning, UsageError

RECIPE: Table = {"task": "generate", "data": {"train": ["book.txt"]}, "model": {}, "training": {"steps": 10}}
FULL: Table = merge(
    RECIPE,
    {
        "task": "translate",
        "data": {"source": "en", "target": 2, "max_ratio": 4.5},
        "model": {"size": "transformer-base", "positions": {"type": "sinusoidal", "layout": "halves"}, "window": 9},
        "optimizer": {"type": "muon", "adamw": {"betas": [0.8, 0.9]}},
        "schedule": {"type": "wsd", "warmup_steps": 7},
        "training": {"prompts": ['He said "no"\n', "é ü 字"]},
    },
)


def recipe_of(*overrides: str) -> Recipe:
    return validate(Recipe, merge(RECIPE, *map(parse_override, overrides)), "recipe.toml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "schedule.warmup_step=3",
            r"recipe.toml: \[schedule\] has no key 'warmup_step'; did you mean 'warmup_steps'\?",
        ),
        ("model.d_modell=3", r"\[model\] has no key 'd_modell'; did you mean 'd_model'\?"),
        ("model.norm.epsilon=1", r"\[model.norm\] has no key 'epsilon'; did you mean 'eps'\?"),
        ("model.positions.bass=1", r"\[model.positions\] has no key 'bass'; did you mean 'base'\?"),
        ("modle.d_model=3", r"recipe.toml: there is no key 'modle'; did you mean 'model'\?"),
        ("model.d_model=abc", r"\[model\] d_model: 'abc' is not a whole number"),
        ("finetuning.keep_old=0.2", r"\[finetuning\] base: is not set: name the run to start from with --from RUN"),
        ("optimizer.zzz=3", r"\[optimizer\] has no key 'zzz'. Its keys are: .*learning_rate"),
        ("optimizer.type=sgd", r"\[optimizer\] type: must be one of 'adamw', 'muon'"),
        ("optimizer.betas=[0.9]", r"\[optimizer\] betas: has too few values"),
        ("data.label=1.5", r"\[data\] label: 1.5 is not a valid value$"),
        ("data.train=3", r"\[data\] train: must be a string"),
        ("data.deduplicate=never", r"\[data\] deduplicate: must be true or false"),
        ("training.prompts=[hello]", r"\[training\] prompts: must be a list such as .*quotes"),
        ("data.label_names={a=b}", r"\[data\] label_names: must be a table such as .*quotes"),
        ("dropout=0.1", r"there is no key 'dropout'; did you mean 'model.dropout'\?"),
        ("training.steps=1.5", r"\[training\] steps: must be a whole number"),
        ("decoding.logit_bias.word=much", r"\[decoding.logit_bias\] word: 'much' is not a number"),
    ],
)
def test_mistake_names_its_table_its_key_and_the_remedy(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe_of(override)


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        recipe_of("model.d_modell=3", "training.step=4", "seed=-1")
    assert len(str(raised.value).split("\n")) == 3


def test_list_of_wrong_values_is_not_called_empty() -> None:
    with pytest.raises(UsageError) as raised:
        recipe_of("lora.rank=2", "finetuning.base=runs/a", 'lora.targets=["q_proj", "v_proj"]')
    assert "'query', 'key'" in str(raised.value) and "empty" not in str(raised.value)
    with pytest.raises(UsageError, match=r"\[lora\] targets: must not be empty"):
        recipe_of("lora.rank=2", "finetuning.base=runs/a", "lora.targets=[]")


def test_wrong_value_is_named_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"\[training\] batch_tokens: "):
        recipe_of("training.batch_tokens=many")


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=3", 3), ("a=3.5", 3.5), ("a=true", True), ("a=[1, 2]", [1, 2]), ("a=two words", "two words"), ('a="3"', "3")],
)
def test_override_value_is_parsed_as_toml_or_else_text(text: str, value: object) -> None:
    assert parse_override(text) == {"a": value}


def test_override_sets_a_key_of_a_nested_table() -> None:
    assert recipe_of("model.norm.eps=1e-3", "task=classify").model.norm.eps == 1e-3


def test_table_without_a_type_sets_the_default_variant() -> None:
    recipe = recipe_of("optimizer.learning_rate=0.5", "model.positions.base=500")
    assert (recipe.optimizer.learning_rate, recipe.model.positions) == (0.5, RotaryPositions(base=500))


@pytest.mark.parametrize("text", ["model.d_model", "=3", ""])
def test_override_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write it as table\.key=value"):
        parse_override(text)


def test_tables_are_merged_key_by_key() -> None:
    assert merge({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}}) == {"a": {"x": 1, "y": 3}, "b": 1}
    with pytest.raises(UsageError, match="a: must be a table of settings"):
        merge({"a": {"x": 1}}, {"a": 3})


def test_merging_another_type_replaces_the_whole_variant() -> None:
    base = {"schedule": {"type": "wsd", "cooldown_fraction": 0.3}}
    assert merge(base, {"schedule": {"type": "linear"}}) == {"schedule": {"type": "linear"}}


def test_merging_the_same_type_keeps_other_keys() -> None:
    base = {"schedule": {"type": "wsd", "cooldown_fraction": 0.3}}
    merged = merge(base, {"schedule": {"type": "wsd", "warmup_steps": 5}})
    assert merged == {"schedule": {"type": "wsd", "cooldown_fraction": 0.3, "warmup_steps": 5}}


def test_type_keeps_the_keys_that_were_given_without_it() -> None:
    recipe = recipe_of("optimizer.learning_rate=0.005", "optimizer.type=muon")
    assert (recipe.optimizer.type, recipe.optimizer.learning_rate) == ("muon", 0.005)


def test_merging_does_not_modify_its_inputs() -> None:
    base = {"a": {"x": 1}}
    merge(base, {"a": {"x": 2}})["a"]["x"] = 3
    assert base == {"a": {"x": 1}}


@pytest.mark.parametrize("table", [RECIPE, FULL], ids=["short", "full"])
def test_recipe_round_trips_through_toml(table: Table, tmp_path: Path) -> None:
    recipe = validate(Recipe, table, "here")
    path = tmp_path / "recipe.toml"
    path.write_text(write_toml(recipe), encoding="utf-8")
    assert validate(Recipe, read_toml(path), str(path)) == recipe


@pytest.mark.parametrize("value", [0, None])
@pytest.mark.parametrize("name", ["data.max_ratio", "training.max_grad_norm"])
def test_limit_that_is_turned_off_stays_off_in_toml(name: str, value: int | None) -> None:
    table, key = name.split(".")
    recipe = validate(Recipe, merge(RECIPE, {table: {key: value}}), "here")
    again = validate(Recipe, parse_toml(write_toml(recipe).encode(), Path("there")), "there")
    assert again == recipe and not getattr(getattr(again, table), key)


@given(st.text(max_size=20), st.floats(1e-6, 1), st.integers(1, 10**6))
@settings(max_examples=50)
def test_any_text_and_number_round_trips_through_toml(prompt: str, rate: float, steps: int) -> None:
    import tomllib

    changes = {"optimizer": {"learning_rate": rate}, "training": {"prompts": [prompt], "steps": steps}}
    table = merge(RECIPE, {"optimizer": {"type": "adamw"}}, changes)
    recipe = validate(Recipe, table, "here")
    assert validate(Recipe, tomllib.loads(write_toml(recipe)), "there") == recipe


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no recipe"), (b"a = ", "is not valid TOML"), (b"\xff\xfe\x00", "cannot be read")],
)
def test_unreadable_recipe_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PenwrightError, match=message):
        read_toml(path)


def test_recipe_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 3\n")
    assert read_toml(path) == {"seed": 3}


def test_settings_are_immutable() -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError, match="frozen"):
        recipe_of().seed = 4


def test_settings_do_not_import_torch() -> None:
    code = "import sys, penwright.config; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("old", "key", "value"), [("decoding.outlook", "beam_patience", 2.0), ("training.average", "ema_decay", 0.5)]
)
def test_old_setting_name_is_read_with_a_warning(old: str, key: str, value: float) -> None:
    with pytest.warns(PenwrightWarning, match=key):
        override = parse_override(f"{old}={value}")
    assert override == {old.partition(".")[0]: {key: value}}
