"""LoRA adapters in PEFT's format: adapter_config.json and adapter_model.safetensors."""

import json
import re
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Annotated, NamedTuple
from warnings import warn

import torch
from pydantic import BaseModel, Field, PositiveFloat, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from penwright.config import LoraSettings, Task, validate
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.formats.architectures import Architecture
from penwright.formats.export import NO_METADATA, ModelMetadata
from penwright.formats.huggingface import tensor_sources
from penwright.formats.huggingface_export import architecture_for, folded
from penwright.formats.huggingface_files import ADAPTER_CONFIG
from penwright.formats.huggingface_tokenizer import TEMPLATE
from penwright.formats.pretrained import LEAST_NAMED, listed, require_memory
from penwright.model import HEAD, Model
from penwright.model.lora import A, B, adapted_layers
from penwright.model.weights import FITTED, VOCABULARY
from penwright.run.checkpoints import first_problem
from penwright.storage import MOST_IN_SMALL, let_others_read, read_json, require_plain
from penwright.tokenizers import Tokenizer

CONFIG, ADAPTER = ADAPTER_CONFIG, "adapter_model.safetensors"
PREFIX = "base_model.model."
KEEP_BASE = (True, False, "gaussian", "orthogonal", "eva")  # values of init_lora_weights that do not change the base
BASE = "base_sha256"  # metadata key under which the checksum of the base weights is stored
TASK_TYPES: Mapping[Task, str] = {
    "generate": "CAUSAL_LM",
    "chat": "CAUSAL_LM",
    "translate": "SEQ_2_SEQ_LM",
    "classify": "SEQ_CLS",
    "encode": "FEATURE_EXTRACTION",
}
Labels = tuple[str, ...]


class Adapter(NamedTuple):
    """A LoRA adapter whose tensors have our names."""

    settings: LoraSettings
    tensors: dict[str, Tensor]
    base_sha256: str | None = None  # checksum of the base weights; None if not recorded


class AdapterConfig(BaseModel):
    """The keys of adapter_config.json that Penwright reads."""

    peft_type: str
    r: Annotated[int, Field(gt=0, le=4096)]
    lora_alpha: PositiveFloat
    bias: str = "none"
    use_dora: bool = False
    use_rslora: bool = False
    lora_bias: bool = False
    init_lora_weights: bool | str = True
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    alora_invocation_tokens: list[int] | None = None
    layer_replication: list[tuple[int, int]] | None = None
    base_model_name_or_path: str | None = None

    @property
    def unsupported(self) -> list[str]:
        """The keys whose values Penwright does not support."""
        wanted = {"peft_type": self.peft_type == "LORA", "bias": self.bias == "none", "use_dora": not self.use_dora}
        wanted |= {"lora_bias": not self.lora_bias, "init_lora_weights": self.init_lora_weights in KEEP_BASE}
        others = ("rank_pattern", "alpha_pattern", "alora_invocation_tokens", "layer_replication")
        wanted |= {name: not getattr(self, name) for name in others}
        return [name for name, is_fine in wanted.items() if not is_fine]


def save_adapter(
    adapter: Adapter,
    base: str,
    task: Task,
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    metadata: ModelMetadata = NO_METADATA,
) -> None:
    """Write an adapter of this model, and its chat template if it has one, into an empty folder.

    If transformers has a class for the model, the modules are renamed as in that class. Otherwise, they keep their
    names, and only Penwright can read the adapter. Raises PenwrightError if the class combines modules that have
    separate adapters.
    """
    architecture = architecture_for(model, tokenizer, metadata.labels)
    if architecture is None:
        warn(f"transformers has no class for this model, so only Penwright can read {ADAPTER}", PenwrightWarning, 2)
    prefix = f"{architecture.model_type}." if architecture else ""
    names = _their_names(architecture, model, adapter)
    if task == "encode":  # in a class without a head, names have no prefix such as "bert."
        names = {ours: theirs.removeprefix(prefix) for ours, theirs in names.items()}
    tensors = {}
    for name, tensor in folded(adapter.tensors).items():
        module, _, last = name.rpartition(".")
        tensors[f"{names.get(module, module)}.{last}" if module else last] = tensor.contiguous()
    adapted = {name.rpartition(".")[0] for name in tensors if name.endswith((A, B))}
    whole = {name.removeprefix(prefix).split(".")[0] for name in tensors if not name.endswith((A, B))}
    config = _config(adapter.settings) | {
        "task_type": TASK_TYPES[task],
        "base_model_name_or_path": base,
        "target_modules": _endings(adapted, {*names.values()} - adapted),
        "modules_to_save": sorted(whole.difference(FITTED)) or None,  # only Penwright reads thresholds
        "fan_in_fan_out": architecture is not None and any(each.transposed for each in architecture.modules),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if metadata.chat is not None:
        (folder / TEMPLATE).write_text(metadata.chat.template, encoding="utf-8")
    named = {f"{PREFIX}{name}{'.weight' if name.endswith((A, B)) else ''}": each for name, each in tensors.items()}
    save_file(named, folder / ADAPTER, metadata={"format": "pt", BASE: adapter.base_sha256 or ""})
    let_others_read(folder / ADAPTER)


def _config(settings: LoraSettings) -> dict[str, object]:
    """Return the settings of an adapter under the keys of PEFT."""
    scaled = {"r": settings.rank, "lora_alpha": settings.scale * settings.rank, "lora_dropout": 0.0}
    return {"peft_type": "LORA", **scaled, "bias": "none", "inference_mode": True}


def _endings(layers: set[str], others: set[str]) -> list[str]:
    """Return the last component of each layer name, or the full names if it would also match other modules."""
    endings = {layer.rpartition(".")[2] for layer in layers}
    return sorted(layers if any(other.rpartition(".")[2] in endings for other in others) else endings)


def load_adapter(
    folder: Path,
    model: Model,
    tokenizer: Tokenizer,
    base_sha256: str,
    labels: Labels = (),
    imported_from: str | None = None,
) -> Adapter:
    """Read an adapter of this model; `base_sha256` is the checksum of the model's weights.

    `imported_from` is the source that the model was imported from. If the adapter names a different base, this is a
    warning, since a folder or file may have any name. Raises PenwrightError if the adapter is damaged, of an
    unsupported type, or made for different weights.
    """
    config = _read_config(folder)
    metadata, tensors = _read_tensors(folder / ADAPTER)
    recorded = metadata.get(BASE) or None
    if recorded is None and config.base_model_name_or_path and imported_from:
        _compare_names(folder, config.base_model_name_or_path, imported_from)
    elif recorded not in (None, base_sha256):
        raise PenwrightError(
            f"{folder} was trained on a different base model, whose weights have a checksum that begins with "
            f"{recorded[:12]}. Choose that model"
        )
    modules = _modules(architecture_for(model, tokenizer, labels), model)
    # in classes without a head, the names have no prefix
    modules |= {theirs.partition(".")[2]: ours for theirs, ours in modules.items() if "." in theirs}
    shapes = _shapes(model, config.r)
    renamed: dict[str, Tensor] = {}
    tables = {f"{theirs}.weight" for theirs, ours in modules.items() if ours[0] in (*VOCABULARY, "output")}
    for whole_name, tensor in tensors.items():
        name = whole_name.removeprefix(PREFIX)
        fitted = _fitted(tensor, tokenizer.vocab_size) if name in tables else tensor
        renamed |= _renamed(name, fitted, modules, shapes, folder)
    layers = {name.rpartition(".")[0] for name in renamed if name.endswith((A, B))}
    if not layers:
        raise PenwrightError(
            f"{folder / ADAPTER} adapts no layer of the model. Train it with linear layers as target_modules"
        )
    if missing := sorted({f"{layer}.{factor}" for layer in layers for factor in (A, B)} - renamed.keys()):
        raise PenwrightError(f"{folder / ADAPTER} is incomplete: it lacks {listed(missing)}. Download it again")
    targets = sorted({layer.rpartition(".")[2] for layer in layers})
    alpha = config.lora_alpha * (sqrt(config.r) if config.use_rslora else 1.0)
    settings = validate(LoraSettings, {"rank": config.r, "alpha": alpha, "targets": targets}, str(folder / CONFIG))
    adapted = [f"{name}.{factor}" for name in adapted_layers(model, settings) for factor in (A, B)]
    others = {name: torch.zeros(shapes[name]) for name in adapted}
    if "output.bias" in renamed:  # the prior of the labels, or the scale of scores, is folded into the adapter's head
        neutral = {"log_prior": torch.zeros_like(renamed["output.bias"]), "scale": torch.tensor([0.0, 1.0])}
        others |= {name: value for name, value in neutral.items() if name in shapes}
    return Adapter(settings, {**others, **renamed}, recorded)


def _compare_names(folder: Path, base: str, source: str) -> None:
    """Warn if the source of an imported model does not have the name of the adapter's base."""
    name, parts = base.rstrip("/").rpartition("/")[2].casefold(), re.split("/|--|@", source.casefold())
    is_gguf = parts[-1].startswith(name) and parts[-1].endswith(".gguf")  # the name goes on with the precision
    if name not in parts and not is_gguf:
        warn(
            f"{folder} was trained on {base}, and this model was imported from {source}. If these are different "
            "models, the adapter makes this one worse",
            PenwrightWarning,
            stacklevel=3,
        )


def _their_names(architecture: Architecture | None, model: Model, adapter: Adapter) -> dict[str, str]:
    """Return the name in transformers for each of our modules; raise PenwrightError if a name cannot be used."""
    modules = _modules(architecture, model)
    combined = {each: theirs for theirs, ours in modules.items() if len(ours) > 1 for each in ours}
    for name in adapter.tensors:
        if theirs := combined.get(name.rpartition(".")[0]):
            raise PenwrightError(
                f"PEFT has one adapter for {theirs}, and this run has one each for query, key and value. "
                "Export the merged model: --to huggingface"
            )
    return {ours[0]: theirs for theirs, ours in modules.items() if len(ours) == 1}


def _modules(architecture: Architecture | None, model: Model) -> dict[str, list[str]]:
    """Map each module name in transformers to our names; return {} if transformers has no class for the model."""
    sources = tensor_sources(architecture, model) if architecture else ()
    return {
        source.name.removesuffix(".weight"): [name.removesuffix(".weight") for name in source.parameters]
        for source in sources
        if source.name.endswith(".weight")
    }


def _shapes(model: Model, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that an adapter may have: low-rank factors, and whole parameters.

    The head, the token embeddings and the model's top-level parameters (no dot in the name) are stored whole.
    """
    in_full, shapes = (*HEAD, *VOCABULARY, ""), dict[str, tuple[int, ...]]()
    for name, tensor in model.named_parameters():
        if name.rpartition(".")[0] in in_full:
            shapes[name] = tuple(tensor.shape)
    for name, layer in adapted_layers(model, LoraSettings(rank=rank)).items():
        shapes |= {f"{name}.{A}": (rank, layer.in_features), f"{name}.{B}": (layer.out_features, rank)}
    return shapes


def _fitted(table: Tensor, n_tokens: int) -> Tensor:
    """Remove the embeddings that belong to no token, as importing the base model does."""
    return table[:n_tokens] if table.dim() and n_tokens >= LEAST_NAMED * len(table) else table


def _renamed(
    name: str, tensor: Tensor, modules: dict[str, list[str]], shapes: dict[str, tuple[int, ...]], folder: Path
) -> dict[str, Tensor]:
    """Return an adapter's tensor under our names, split if transformers fuses several of our modules into one."""
    module, _, last = name.rpartition(".")
    if module.endswith((f".{A}", f".{B}")) and last == "weight":
        module, _, last = module.rpartition(".")
    ours = [f"{each}.{last}" if each else last for each in modules.get(module, [module])]
    if not shapes.keys() >= set(ours):
        raise PenwrightError(
            f"{folder / ADAPTER} has {name}. The model has no such part, or it is not a linear layer of a block: "
            "Penwright adapts only these. Check the base model, and target_modules in the adapter's settings"
        )
    rows = [shapes[each][0] for each in ours]
    is_whole = tensor.dim() > 0 and sum(rows) == len(tensor)
    parts = [tensor] * len(ours) if last == A else tensor.split(rows) if is_whole else []
    if [tuple(part.shape) for part in parts] != [shapes[each] for each in ours]:
        raise PenwrightError(
            f"{folder / ADAPTER} does not fit the model: {name} has the shape {tuple(tensor.shape)}. "
            "Choose the base model that the adapter was trained on"
        )
    return {each: part.float() for each, part in zip(ours, parts, strict=True)}


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
    if not path.exists() and (pickle := path.with_suffix(".bin")).exists():
        raise PenwrightError(
            f"there is no {path}, only {pickle.name}. Only safetensors files are read, because opening other formats "
            "can run code. Load the adapter with peft, and save it again: model.save_pretrained(FOLDER)"
        )
    try:
        require_memory(path.stat().st_size)
        with safe_open(path, "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (OSError, SafetensorError) as error:
        raise PenwrightError(f"{path} cannot be read: {error}") from None
