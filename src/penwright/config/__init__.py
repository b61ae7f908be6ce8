"""Settings: a TOML recipe and `a.b=c` overrides become frozen, validated objects. Imports no torch."""

from penwright.config.folders import CACHE_ADVICE, cache_folder, require_writable_cache
from penwright.config.model import (
    SIZES,
    LearnedPositions,
    ModelSettings,
    NoPositions,
    NormSettings,
    Positions,
    Precision,
    RotaryPositions,
    SinusoidalPositions,
)
from penwright.config.recipe import (
    DataSettings,
    DecodingSettings,
    DistillationSettings,
    Recipe,
    Task,
    TokenizerSettings,
    one_or_more,
)
from penwright.config.schedules import Constant, Cosine, InverseSquareRoot, Linear, Schedule, Turn, WarmupStableDecay
from penwright.config.settings import Settings, Table, explain, merge, parse_override, read_toml, validate, write_toml
from penwright.config.training import BUDGETS, AdamW, Muon, Optimizer, TrainingSettings

__all__ = [
    "BUDGETS",
    "CACHE_ADVICE",
    "SIZES",
    "AdamW",
    "Constant",
    "Cosine",
    "DataSettings",
    "DecodingSettings",
    "DistillationSettings",
    "InverseSquareRoot",
    "LearnedPositions",
    "Linear",
    "ModelSettings",
    "Muon",
    "NoPositions",
    "NormSettings",
    "Optimizer",
    "Positions",
    "Precision",
    "Recipe",
    "RotaryPositions",
    "Schedule",
    "Settings",
    "SinusoidalPositions",
    "Table",
    "Task",
    "TokenizerSettings",
    "TrainingSettings",
    "Turn",
    "WarmupStableDecay",
    "cache_folder",
    "explain",
    "merge",
    "one_or_more",
    "parse_override",
    "read_toml",
    "require_writable_cache",
    "validate",
    "write_toml",
]
