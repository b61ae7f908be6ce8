"""Import of transformers models from config.json and safetensors, without transformers and without unpickling."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from penwright.config import ModelSettings, Table, Task, merge, validate
from penwright.errors import PenwrightError
from penwright.formats.architectures import ARCHITECTURES, VALUE_NAMES, Architecture, Config, Tensors
from penwright.model import Model, make_model

# Suffixes of tensors that some versions save although they are computed, or alias another parameter.
REDUNDANT = (
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
    ".position_ids",
    ".embed_positions.weight",
    ".embed_positions.weights",
    "coder.embed_tokens.weight",
    "lm_head.weight",
)


class Outline(NamedTuple):
    """The arguments of make_model for the model of a config.json."""

    task: Task
    vocab_size: int
    settings: ModelSettings
    n_labels: int = 0


class TensorSource(NamedTuple):
    """A tensor of a checkpoint, and our parameters that it holds, concatenated along the first dimension."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    transposed: bool


def settings_from_huggingface(config: Config) -> Outline:
    """Translate a config.json into our settings; raise PenwrightError that names what is not supported."""
    architecture = _architecture(config)
    config = {**architecture.defaults, **_flat(config)}
    for key, values in architecture.supported.items():
        if config.get(key, values[0]) not in values:
            raise PenwrightError(f"config.json: {key} = {config[key]!r} is not supported, only {_listed(values)}")
    settings = validate(ModelSettings, _translate(architecture, config), "config.json")
    vocab_size, labels = _required(config, "vocab_size"), config.get("id2label", {0: "no", 1: "yes"})
    if not isinstance(vocab_size, int) or not isinstance(labels, Mapping):
        raise PenwrightError(f"config.json: vocab_size = {vocab_size!r} or id2label = {labels!r} has the wrong type")
    return Outline(architecture.task, vocab_size, settings, len(labels) if architecture.task == "classify" else 0)


def model_from_huggingface(config: Config, tensors: Mapping[str, Tensor]) -> Model:
    """Build the model of a config.json with these weights, in evaluation mode."""
    architecture = _architecture(config)
    model = make_model(*settings_from_huggingface(config))
    theirs = architecture.prepare(dict(tensors))
    sources = list(tensor_sources(architecture, model))
    names = {source.name for source in sources}
    missing = sorted(names - theirs.keys())
    superfluous = sorted(name for name in theirs.keys() - names if not name.endswith(REDUNDANT))
    if missing or superfluous:
        found = [("missing", missing), ("superfluous", superfluous)]
        raise PenwrightError("; ".join(f"{kind} tensors: {_listed(names)}" for kind, names in found if names))
    for source in sources:
        _fill(source, theirs[source.name])
    return model.eval()


def load_huggingface(folder: Path) -> Model:
    """Load the model in a folder that save_pretrained of transformers wrote, or that comes from the hub."""
    try:
        return model_from_huggingface(_read_config(folder), _read_tensors(folder))
    except PenwrightError as error:
        raise PenwrightError(f"{folder}: {error}") from None


def _architecture(config: Config) -> Architecture:
    names = config.get("architectures") or ()
    for name in names if isinstance(names, list | tuple) else ():
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise PenwrightError(f"architectures = {names!r} is not supported, only {_listed(ARCHITECTURES)}")


def _flat(config: Config) -> Config:
    """Return the config with the keys of rotary positions where the tables expect them.

    Versions of transformers keep them in different places.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return config
    moved: dict[str, object] = {"rope_type": rope.get("rope_type", rope.get("type", "default"))}
    if "rope_theta" in rope:
        moved["rope_theta"] = rope["rope_theta"]
    return {**config, **moved}


def _translate(architecture: Architecture, config: Config) -> Table:
    """Return our settings as nested tables; a value that is None in config.json keeps our default."""
    found: dict[str, tuple[str, object]] = {}  # our key: (their key, the value)
    for theirs, ours in architecture.keys:
        value = _required(config, theirs)
        if ours in VALUE_NAMES:
            if value not in VALUE_NAMES[ours]:
                raise PenwrightError(
                    f"config.json: {theirs} = {value!r} is not supported, only {_listed(VALUE_NAMES[ours])}"
                )
            value = VALUE_NAMES[ours][value]
        other, agreed = found.setdefault(ours, (theirs, value))
        if value != agreed:
            raise PenwrightError(f"config.json: {other} = {agreed!r} and {theirs} = {value!r} must be equal")
    table = architecture.block
    for ours, (_, value) in found.items():
        if value is not None:
            *outer, key = ours.split(".")
            table = merge(table, {outer[0]: {key: value}} if outer else {key: value})
    return table


def _required(config: Config, key: str) -> object:
    if key not in config:
        raise PenwrightError(f"config.json has no {key}")
    return config[key]


def tensor_sources(architecture: Architecture, model: Model) -> Iterator[TensorSource]:
    """Yield the tensor that each parameter comes from; a shared parameter is listed under its first name only."""
    parameters = dict(model.named_parameters())
    n_layers = max(model.settings.n_layers, model.settings.n_decoder_layers or 0)
    for rename in architecture.modules:
        for layer in range(n_layers) if "{i}" in rename.theirs else (0,):
            theirs, ours = rename.theirs.format(i=layer), [name.format(i=layer) for name in rename.ours]
            for kind in ("weight", "bias"):
                if all(f"{name}.{kind}" in parameters for name in ours):
                    held = tuple(parameters.pop(f"{name}.{kind}") for name in ours)
                    yield TensorSource(f"{theirs}.{kind}", held, rename.transposed and kind == "weight")
    assert not parameters, f"the tables have no name for {_listed(parameters)}"


@torch.no_grad()
def _fill(source: TensorSource, tensor: Tensor) -> None:
    tensor = tensor.T if source.transposed else tensor
    rows = [len(parameter) for parameter in source.parameters]
    expected = (sum(rows), *source.parameters[0].shape[1:])
    if tensor.shape != expected:
        raise PenwrightError(f"{source.name} has shape {tuple(tensor.shape)}, but config.json implies {expected}")
    for parameter, part in zip(source.parameters, tensor.split(rows), strict=True):
        parameter.copy_(part)


def _read_config(folder: Path) -> Config:
    try:
        return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise PenwrightError(f"config.json cannot be read: {error}") from None


def _read_tensors(folder: Path) -> Tensors:
    """Read model.safetensors, or the shards that its index lists."""
    index = folder / "model.safetensors.index.json"
    try:
        parts = ["model.safetensors"]
        if index.is_file():
            parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return {name: tensor for part in parts for name, tensor in load_file(folder / part).items()}
    except FileNotFoundError:
        raise PenwrightError(
            f"there is no {parts[0]}. Other formats are not read, because opening them can run code"
        ) from None
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise PenwrightError(f"the safetensors cannot be read: {error}") from None


def _listed(names: Iterable[object]) -> str:
    words = [str(name) for name in names]
    shown = ", ".join(words[:8])
    return shown if len(words) <= 8 else f"{shown} and {len(words) - 8} more"
