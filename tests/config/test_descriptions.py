"""Descriptions of settings: every key, with its default and the comment in the source."""

from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from penwright.config import Recipe, Settings
from penwright.config.descriptions import SettingDescription, describe, explain, field_comments, type_in_words
from penwright.serving.settings import ServingSettings


def descriptions_of(kind: type[BaseModel]) -> dict[tuple[str, str], SettingDescription]:
    """Return the descriptions by the variant of their table and their full name."""
    return {(table.variant, setting.name): setting for table in describe(kind) for setting in table.settings}


@pytest.mark.parametrize("kind", [Recipe, ServingSettings])
def test_every_setting_has_a_type_a_default_and_a_meaning(kind: type[BaseModel]) -> None:
    assert [each for each in descriptions_of(kind).values() if not (each.type and each.default and each.meaning)] == []


def test_inherited_fields_have_the_comments_of_their_base() -> None:
    found = descriptions_of(Recipe)
    assert found["cosine", "schedule.warmup_steps"].meaning == "steps of linear warm-up"
    assert found["inverse_sqrt", "schedule.warmup_steps"].default == "400"


def test_multi_line_fields_have_their_comments() -> None:
    assert "cooldown" in descriptions_of(Recipe)["", "training.cooldown_on_overfitting"].meaning


def test_nested_table_takes_defaults_of_its_parent() -> None:
    found = descriptions_of(Recipe)
    assert found["", "optimizer.adamw.learning_rate"].default == "0.003"
    assert found["adamw", "optimizer.learning_rate"].default == "0.001"


def test_only_default_variants_are_marked_as_default() -> None:
    defaults = {table.name: table.variant for table in describe(Recipe) if table.is_default}
    assert defaults == {"model.positions": "rotary", "optimizer": "adamw", "schedule": "constant"}


def test_explain_writes_defaults_as_toml() -> None:
    lines = explain(Recipe).splitlines()
    assert "[model.norm]  # LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)." in lines
    assert any(line.startswith('norm_position = "pre"  # ') for line in lines)
    assert any(line.startswith("zero_init_outputs = true  # ") for line in lines)
    assert any(line.startswith("train = required  # ") for line in lines)


class Sample(Settings):
    count: Annotated[int, Field(gt=0, le=2**31 - 1)] | None = None
    shares: tuple[Annotated[float, Field(ge=0, lt=0.5)], ...] = ()  # first,
    names: dict[str, str | int] = Field(
        default_factory=dict,  # second,
    )  # and third


def test_types_are_described_in_words_with_limits() -> None:
    types = {name: type_in_words(field) for name, field in Sample.model_fields.items()}
    assert types == {
        "count": "integer > 0, ≤ 2^31 - 1",
        "shares": "list of floats ≥ 0, < 0.5",
        "names": "table of strings or integers",
    }
    assert field_comments(Sample) == {"shares": "first,", "names": "second, and third"}
