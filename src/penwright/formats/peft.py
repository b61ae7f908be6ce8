"""LoRA adapters in PEFT's format: adapter_config.json and adapter_model.safetensors."""

import json
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import BaseModel, PositiveFloat, PositiveInt, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from penwright.config import LoraSettings, Task, validate
from penwright.errors import PenwrightError
from penwright.formats.huggingface_export import architecture_for
from penwright.model import Model
from penwright.model.lora import A, B, adapted_layers
from penwright.run.checkpoints import first_problem
from penwright.storage import MOST_IN_SMALL, let_others_read, read_json, require_plain
from penwright.tokenizers import Tokenizer

CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
BASE = "base_sha256"  # metadata key under which the checksum of the base weights is stored
TASK_TYPES: Mapping[Task, str] = {
    "generate": "CAUSAL_LM",
    "chat": "CAUSAL_LM",
    "translate": "SEQ_2_SEQ_LM",
    "classify": "SEQ_CLS",
    "encode": "FEATURE_EXTRACTION",
}


class Adapter(NamedTuple):
    """A LoRA adapter whose tensors have our names."""

    settings: LoraSettings
    tensors: dict[str, Tensor]
    base_sha256: str | None = None  # checksum of the base weights; None if not recorded


class AdapterConfig(BaseModel):
    """The keys of adapter_config.json that Penwright reads."""

    peft_type: str
    r: PositiveInt
    lora_alpha: PositiveFloat
    bias: str = "none"
    use_dora: bool = False
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None

    @property
    def unsupported(self) -> list[str]:
        """The keys whose values Penwright does not support."""
        wanted = {"peft_type": self.peft_type == "LORA", "bias": self.bias == "none", "use_dora": not self.use_dora}
        patterns = {"rank_pattern": not self.rank_pattern, "alpha_pattern": not self.alpha_pattern}
        return [name for name, is_fine in {**wanted, **patterns}.items() if not is_fine]


def save_adapter(adapter: Adapter, base: str, task: Task, model: Model, tokenizer: Tokenizer, folder: Path) -> None:
    """Write an adapter of this model into an empty folder.

    If a class of transformers can represent the model, layers get its names. Otherwise, they keep our names.
    """
    theirs = _their_names(model, tokenizer)
    layers = {name.rpartition(".")[0] for name in adapter.tensors if name.endswith((A, B))}
    names = theirs if layers <= theirs.keys() else {}
    tensors = {}
    for name, tensor in adapter.tensors.items():
        layer, _, last = name.rpartition(".")
        suffix = f"{last}.weight" if last in (A, B) else last
        tensors[f"{PREFIX}{names.get(layer, layer)}.{suffix}"] = tensor.contiguous()
    settings = adapter.settings
    config = {
        "peft_type": "LORA",
        "task_type": TASK_TYPES[task],
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.scale * settings.rank,
        "lora_dropout": 0.0,
        "target_modules": sorted({names.get(layer, layer).rpartition(".")[2] for layer in layers}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / ADAPTER, metadata={"format": "pt", BASE: adapter.base_sha256 or ""})
    let_others_read(folder / ADAPTER)


def load_adapter(folder: Path, model: Model, tokenizer: Tokenizer, base_sha256: str) -> Adapter:
    """Read an adapter of this model; `base_sha256` is the checksum of the model's weights.

    Raises PenwrightError if the adapter is damaged, of an unsupported type, or made for different weights.
    """
    config = _read_config(folder)
    metadata, tensors = _read_tensors(folder / ADAPTER)
    recorded = metadata.get(BASE) or None
    if recorded not in (None, base_sha256):
        raise PenwrightError(
            f"{folder} was trained on a different base model, whose weights have a checksum that begins with "
            f"{recorded[:12]}. Choose that model"
        )
    ours = {name: layer for layer, name in _their_names(model, tokenizer).items()}
    found = {}
    for name, tensor in tensors.items():
        layer, _, last = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        is_factor = last in (A, B)
        whole = name.removeprefix(PREFIX)
        found[f"{ours.get(layer, layer)}.{last}" if is_factor else whole] = tensor.float()
    targets = sorted({name.split(".")[-2] for name in found if name.endswith((A, B))})
    alpha = config.lora_alpha * (sqrt(config.r) if config.use_rslora else 1.0)
    settings = validate(LoraSettings, {"rank": config.r, "alpha": alpha, "targets": targets}, str(folder / CONFIG))
    return Adapter(settings, _completed(found, model, settings, folder), recorded)


def _their_names(model: Model, tokenizer: Tokenizer) -> dict[str, str]:
    """Return a map from our names to transformers' names, for layers whose weights have the same layout in both."""
    architecture = architecture_for(model, tokenizer)
    names = {}
    for rename in architecture.modules if architecture else ():
        if len(rename.ours) == 1 and not rename.transposed:
            for layer in range(model.settings.n_layers):
                names[rename.ours[0].format(i=layer)] = rename.theirs.format(i=layer)
    return names


def _completed(tensors: dict[str, Tensor], model: Model, settings: LoraSettings, folder: Path) -> dict[str, Tensor]:
    """Return the tensors, with zeros for layers without an adapter; raise PenwrightError if a tensor does not fit."""
    rank, layers = settings.rank, adapted_layers(model, settings)
    shapes: dict[str, tuple[int, ...]] = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    zeros = {f"{name}.{A}": torch.zeros(rank, layer.in_features) for name, layer in layers.items()}
    zeros |= {f"{name}.{B}": torch.zeros(layer.out_features, rank) for name, layer in layers.items()}
    shapes |= {name: tuple(tensor.shape) for name, tensor in zeros.items()}
    for name, tensor in tensors.items():
        if shapes.get(name) != tensor.shape:
            raise PenwrightError(
                f"{folder / ADAPTER} does not fit the model, which has no {name} of shape {tuple(tensor.shape)}. "
                "Choose the base model that the adapter was trained on"
            )
    return zeros | tensors


def _read_config(folder: Path) -> AdapterConfig:
    path = folder / CONFIG
    try:
        config = AdapterConfig.model_validate(read_json(path, MOST_IN_SMALL))
    except ValidationError as error:
        raise PenwrightError(f"{path} is not a PEFT adapter: {first_problem(error)}") from None
    except (OSError, ValueError) as error:
        raise PenwrightError(f"{path} cannot be read: {error}") from None
    if config.unsupported:
        raise PenwrightError(f"{path} has unsupported settings: {', '.join(config.unsupported)}")
    return config


def _read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    require_plain(path)
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (OSError, SafetensorError) as error:
        raise PenwrightError(f"{path} cannot be read: {error}") from None
