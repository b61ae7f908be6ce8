"""The scaling of RoPE in a config.json, for import and export."""

from collections.abc import Mapping
from math import log

from penwright.config import Table
from penwright.errors import PenwrightError
from penwright.formats.architectures import Config, required

ORIGINAL = "original_max_position_embeddings"
ROPE_KEYS = {  # for each type of RoPE scaling: {transformers key: our key}
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        ORIGINAL: "original_context",
    },
    "yarn": {
        "factor": "factor",
        "beta_slow": "low_freq_factor",
        "beta_fast": "high_freq_factor",
        ORIGINAL: "original_context",
        "attention_factor": "attention_factor",
    },
}


def with_flat_rope(config: Config) -> Config:
    """Return the config with the RoPE keys at the top level, where the tables expect them.

    Different versions of transformers store these keys in different places. The scaling is converted to our settings.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters")  # this is the precedence in transformers
    if not rope:
        return config
    if not isinstance(rope, Mapping) or any(isinstance(value, Mapping) for value in rope.values()):
        raise PenwrightError(
            f"config.json: the RoPE settings {rope!r} are not supported. They must be a single flat table"
        )
    if config.get(ORIGINAL) is not None:  # this key, too, has precedence in transformers
        rope = {**rope, ORIGINAL: config[ORIGINAL]}
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    moved: dict[str, object] = {"rope_type": kind, "rope_scaling": None}
    if kind == "yarn":
        rope = _with_yarn_defaults(rope, config)
    if kind in ROPE_KEYS:
        scaling = {ours: required(rope, theirs) for theirs, ours in ROPE_KEYS[kind].items()}
        moved["rope_scaling"] = {**scaling, "yarn": kind == "yarn"}
    if "rope_theta" in rope:
        moved["rope_theta"] = rope["rope_theta"]
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise PenwrightError(f"config.json: partial_rotary_factor = {rope['partial_rotary_factor']} is not supported")
    return {**config, **moved}


def _with_yarn_defaults(rope: Config, config: Config) -> Config:
    """Return the keys of YaRN with the defaults of transformers for those that are missing or null."""
    factor = required(rope, "factor")
    if not isinstance(factor, int | float) or factor < 1 or rope.get("truncate", True) is not True:
        raise PenwrightError(f"config.json: rope_scaling = {dict(rope)} is not supported")

    def attention_scale(weight: float) -> float:
        return 0.1 * weight * log(factor) + 1.0

    match rope.get("mscale"), rope.get("mscale_all_dim"):
        case (int() | float() as scale, int() | float() as of_all) if scale and of_all:
            attention = attention_scale(scale) / attention_scale(of_all)
        case _:
            attention = attention_scale(1.0)
    original = config.get("max_position_embeddings")
    defaults = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": attention, ORIGINAL: original}
    return {**defaults, **{key: value for key, value in rope.items() if value is not None}}


def rope_parameters(config: dict[str, object]) -> Table:
    """Return the `rope_parameters` entry of config.json. Remove from `config` the keys that this entry replaces."""
    scaling = config.pop("rope_scaling")
    table = {"rope_theta": config["rope_theta"]}
    config.pop("rope_type")
    if not isinstance(scaling, dict):
        return {"rope_type": "default", **table}
    kind = "yarn" if scaling["yarn"] else "linear" if scaling["original_context"] is None else "llama3"
    return {"rope_type": kind, **table, **{theirs: scaling[ours] for theirs, ours in ROPE_KEYS[kind].items()}}
