"""Model settings: defaults, named sizes, and validation."""

import pytest

from penwright.config import SIZES, ModelSettings, RotaryPositions, SinusoidalPositions, validate
from penwright.config.settings import Table
from penwright.errors import UsageError


def settings_of(**table: object) -> ModelSettings:
    return validate(ModelSettings, table, "a recipe")


def test_defaults_are_a_modern_block() -> None:
    settings = settings_of()
    assert isinstance(settings.positions, RotaryPositions)
    assert (settings.norm.type, settings.norm_position, settings.feed_forward) == ("rms", "pre", "swiglu")


def test_head_width_is_derived_from_d_model() -> None:
    settings = settings_of(d_model=96, n_heads=6)
    assert (settings.d_head, settings.n_kv_heads) == (16, 6)


@pytest.mark.parametrize(("kind", "d_ff"), [("relu", 384), ("gelu", 384), ("swiglu", 256), ("geglu", 256)])
def test_gated_feed_forward_is_narrower_at_equal_cost(kind: str, d_ff: int) -> None:
    assert settings_of(d_model=96, n_heads=4, feed_forward=kind).d_ff == d_ff


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_valid(size: str) -> None:
    settings = settings_of(size=size)
    assert settings.d_model == SIZES[size]["d_model"]
    assert settings.d_head * settings.n_heads == settings.d_model


def test_explicit_keys_override_the_size() -> None:
    settings = settings_of(size="nano", d_model=96, n_heads=3)
    assert (settings.d_model, settings.n_heads, settings.n_layers) == (96, 3, 4)


def test_explicit_variant_replaces_the_one_of_the_size() -> None:
    settings = settings_of(size="gpt2", positions={"type": "sinusoidal"})
    assert settings.positions == SinusoidalPositions()


def test_settings_of_a_size_round_trip() -> None:
    settings = settings_of(size="transformer-base")
    assert ModelSettings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"d_model": 100, "n_heads": 3}, r"d_model \(100\) must be a multiple of n_heads \(3\)"),
        ({"n_heads": 4, "n_kv_heads": 3}, r"n_heads \(4\) must be a multiple of n_kv_heads \(3\)"),
        ({"d_model": 12, "n_heads": 4}, "even d_head, not 3"),
        ({"d_model": 9, "n_heads": 3, "positions": {"type": "sinusoidal"}}, "even d_model, not 9"),
        ({"size": "huge"}, "no size 'huge'; the sizes are nano"),
        ({"d_model": "wide"}, "d_model"),
        ({"d_model": 0}, "d_model"),
        ({"n_heads": 0}, "n_heads"),
        ({"dropout": 1.0}, "dropout"),
        ({"positions": {"type": "absolute"}}, "positions"),
        ({"positions": {"type": "rotary", "base": float("inf")}}, "base"),
        ({"size": 7}, "size"),
        ({"norm": "rms"}, "norm"),
    ],
)
def test_invalid_settings_are_refused_by_name(table: Table, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings_of(**table)
