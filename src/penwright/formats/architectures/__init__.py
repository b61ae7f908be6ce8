"""Tables that map the architectures of the transformers library to our settings and names, for import and export."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from penwright.config import DecodingSettings, Table, Task
from penwright.errors import PenwrightError

Config = Mapping[str, object]  # the content of a config.json
Tensors = dict[str, Tensor]


class Rename(NamedTuple):
    """A module of a transformers model class, and our names for it; {i} represents the layer number."""

    theirs: str
    ours: tuple[str, ...]  # several if one module of transformers combines several modules of Penwright
    transposed: bool = False


def _unchanged(tensors: Tensors) -> Tensors:
    return tensors


@dataclass(frozen=True)
class Architecture:
    """A model class of the transformers library: the supported configurations, and our names for its parts."""

    task: Task
    model_type: str  # model_type in config.json
    keys: tuple[tuple[str, str], ...]  # (config.json key, our setting); keys of the same setting must have equal values
    modules: tuple[Rename, ...]
    block: Table  # our model settings that reproduce the blocks of this class
    supported: Mapping[str, tuple[object, ...]]  # supported values of other config.json keys, the default first
    defaults: Config = field(default_factory=dict)  # defaults of optional config.json keys; None stands for our default
    prepare: Callable[[Tensors], Tensors] = _unchanged  # function applied to the tensors on import, before renaming
    restore: Callable[[Tensors], Tensors] = _unchanged  # inverse of `prepare`, used on export
    offset: int = 0  # number of unused learned positions included in max_position_embeddings
    has_head: bool = True  # whether an encoder has a classification head
    ignored: tuple[str, ...] = ()  # name prefixes of tensors that are not imported


VALUE_NAMES: dict[str, dict[object, object]] = {  # for each of our settings: {value in transformers: our value}
    "feed_forward": {
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    },
    "tie_embeddings": {True: "output", False: "none"},
}


SAMPLING = {
    name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
}
USUAL_SAMPLING: Table = {"temperature": 1.0, "top_k": 50}  # the values of transformers if a file does not set them
REPETITION = {"repetition_penalty": "repetition_penalty", "no_repeat_ngram_size": "no_repeat_ngram"}
BEAMS = {"num_beams": "beam_size", "length_penalty": "length_penalty"}
MINIMUM = {"min_new_tokens": "min_new_tokens"}
RESTRICTIONS = (  # keys that restrict the output of transformers; some of them are settings of Penwright, too
    *(*REPETITION, *MINIMUM, "min_length", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "forced_bos_token_id"),
)


def decoding_in(generation: Config, task: Task) -> Table:
    """Return the [decoding] settings in a generation_config.json. `do_sample = false` turns sampling settings off.

    `do_sample = true` adds the usual values of transformers.
    """
    if generation.get("do_sample") is True:
        generation = USUAL_SAMPLING | {key: value for key, value in generation.items() if value is not None}
    sampling = {} if generation.get("do_sample") is False else SAMPLING
    keys = BEAMS | MINIMUM if task == "translate" else sampling | REPETITION | MINIMUM if task == "generate" else {}
    return {ours: generation[theirs] for theirs, ours in keys.items() if generation.get(theirs) is not None}


def unused_restrictions(generation: Config, task: Task, pad: int) -> list[str]:
    """Return the restrictions of the output in a generation_config.json that Penwright does not apply."""
    used = {*MINIMUM, *(REPETITION if task == "generate" else ())}
    neutral: tuple[object, ...] = (
        None,
        0,
        1,
        [],
        {},
        [pad],
        [[pad]],
    )  # padding is never written, and 1 is a penalty without effect
    found = {key: generation[key] for key in RESTRICTIONS if key not in used and generation.get(key) not in neutral}
    return [f"{key} = {value}" for key, value in found.items()] if task != "classify" else []


def generation_of(decoding: DecodingSettings, task: Task) -> dict[str, object]:
    """Return the keys of a generation_config.json for the settings that differ from Penwright's defaults.

    If a setting of sampling differs, `top_k` is written, too: without it, transformers sets it to 50.
    """
    chosen, defaults = decoding.model_dump(), DecodingSettings().model_dump()
    keys = (BEAMS if task == "translate" else SAMPLING | REPETITION) | MINIMUM
    changed = {theirs: chosen[ours] for theirs, ours in keys.items() if chosen[ours] != defaults[ours]}
    if changed.keys().isdisjoint(SAMPLING) or decoding.temperature == 0:
        return changed
    return {**changed, "do_sample": True, "temperature": decoding.temperature, "top_k": decoding.top_k or 0}


def required(config: Config, key: str) -> object:
    """Return the value of a key of config.json. Raise PenwrightError if it is missing."""
    if key not in config:
        raise PenwrightError(f"config.json has no {key}")
    return config[key]


def first_of(*names: str) -> Callable[[Tensors], Tensors]:
    """Return a `prepare` function that renames a shared tensor to the first of these names.

    A file may store the tensor under any of the names.
    """

    def prepare(tensors: Tensors) -> Tensors:
        present = next((name for name in names if name in tensors), None)
        return tensors if present is None else {**tensors, names[0]: tensors[present]}

    return prepare


def rename(theirs: str, *ours: str, transposed: bool = False) -> Rename:
    """Return the table entry that maps the name of a module in transformers to our names."""
    return Rename(theirs, ours, transposed)


def layer_modules(theirs: str, ours: str, *modules: Rename) -> tuple[Rename, ...]:
    """Prefix the names of a layer's modules with the name of the layer, in transformers and in Penwright."""
    return tuple(
        Rename(f"{theirs}.{module.theirs}", tuple(f"{ours}.{name}" for name in module.ours), module.transposed)
        for module in modules
    )
