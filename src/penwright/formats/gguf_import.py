"""Import of models that write text from llama.cpp's GGUF files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penwright.config import ModelSettings, RotaryScaling, Table, merge, validate
from penwright.errors import PenwrightError
from penwright.formats.chat import read_chat
from penwright.formats.gguf import KEYS, NAMES, ROPE_FACTORS, VARIANTS, their_name
from penwright.formats.gguf_file import GGUFFile
from penwright.formats.gguf_tokenizer import CHAT_TEMPLATE, read_tokenizer, special_piece
from penwright.formats.pretrained import Outline, Pretrained, Tensors, fit_vocabulary, outlined, require_all
from penwright.model import Model
from penwright.model.positions import rotary_frequencies, scaled


def read_gguf(path: Path) -> Pretrained:
    """Read a GGUF file. Raises PenwrightError, naming the key or tensor, if the file cannot be used."""
    try:
        return _read(path)
    except PenwrightError as error:
        raise PenwrightError(f"{path}: {error}") from None


def _read(path: Path) -> Pretrained:
    file = GGUFFile(path)
    name = str(file.metadata.get("general.architecture"))
    tokenizer = read_tokenizer(file.metadata)
    outline = Outline("generate", _vocab_size(file), _settings(file, name))
    weights = _weights(file, outlined(outline, len(file.stored)))
    outline = fit_vocabulary(outline, weights, tokenizer)
    licence, notes = file.metadata.get("general.license"), list[str]()
    bos, eos = (special_piece(file.metadata, role) for role in ("bos", "eos"))
    return Pretrained(
        outline=outline,
        weights=weights,
        tokenizer=tokenizer,
        files=[path],
        architecture=name,
        licence=None if licence is None else str(licence),
        chat=read_chat(file.metadata.get(CHAT_TEMPLATE), bos, eos, tokenizer, notes),
        notes=notes,
    )


def _vocab_size(file: GGUFFile) -> int:
    if f"{NAMES['embedding.tokens']}.weight" not in file.stored:
        raise PenwrightError(f"the tensor {NAMES['embedding.tokens']}.weight is missing")
    return file.stored[f"{NAMES['embedding.tokens']}.weight"].shape[0]


def _settings(file: GGUFFile, name: str) -> ModelSettings:
    """Translate the metadata into our settings."""
    if name not in VARIANTS:
        raise PenwrightError(
            f"general.architecture = {name!r} is not supported. Supported architectures: {', '.join(VARIANTS)}"
        )
    own = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items()}
    table: Table = {"feed_forward": "swiglu", "positions": {"type": "rotary"}, **VARIANTS[name]}
    table["tie_embeddings"] = "none" if f"{NAMES['output']}.weight" in file.stored else "output"
    for ours, theirs in KEYS.items():
        if theirs in own:
            value = float(str(np.float32(own[theirs]))) if isinstance(own[theirs], float) else own[theirs]
            *outer, key = ours.split(".")
            table = merge(table, {outer[0]: {key: value}} if outer else {key: value})
        elif ours in ("d_model", "n_layers", "n_heads", "d_ff", "context_length"):
            raise PenwrightError(f"the key {name}.{theirs} is missing")
    settings = validate(ModelSettings, table, "its metadata")
    if own.get("rope.dimension_count", settings.d_head) != settings.d_head:
        raise PenwrightError(
            f"{name}.rope.dimension_count = {own['rope.dimension_count']} differs from the size of a head"
        )
    scaling = _scaling(file, own, settings)
    positions = settings.positions.model_copy(update={"scaling": scaling})
    return settings.model_copy(update={"positions": positions})


def _scaling(file: GGUFFile, own: Mapping[str, Any], settings: ModelSettings) -> RotaryScaling | None:
    """Return the RoPE scaling. For Llama 3, derive its parameters from the file's tensor of frequency factors."""
    kind = own.get("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise PenwrightError(f"rope.scaling.type = {kind!r} is not supported, only 'none' and 'linear' are")
    if kind == "linear":
        return RotaryScaling(factor=own["rope.scaling.factor"])
    if ROPE_FACTORS not in file.stored:
        return None
    assert settings.positions.type == "rotary"
    factors, largest = file.tensor(ROPE_FACTORS).float(), file.tensor(ROPE_FACTORS).float().max()
    is_linear = bool((factors == largest).all())
    scaling = RotaryScaling(factor=round(float(largest), 3), original_context=None if is_linear else 8192)
    frequencies = rotary_frequencies(settings.d_head, settings.positions.base)
    expected = frequencies / scaled(frequencies, scaling)
    if factors.shape != frequencies.shape or not torch.allclose(expected, factors, rtol=1e-3):
        raise PenwrightError(
            f"the tensor {ROPE_FACTORS} differs from that of Llama 3, and no other scaling is supported"
        )
    return scaling


def _weights(file: GGUFFile, model: Model) -> Tensors:
    """Return the weights under our names."""
    theirs = {their_name(name): (name, parameter) for name, parameter in model.named_parameters()}
    require_all(file.stored, theirs, [ROPE_FACTORS], "")
    is_llama = file.metadata["general.architecture"] == "llama"
    weights = {}
    for stored, (name, parameter) in theirs.items():
        if file.stored[stored].shape != parameter.shape:
            shapes = f"{file.stored[stored].shape}, but the metadata implies {tuple(parameter.shape)}"
            raise PenwrightError(f"the tensor {stored} has shape {shapes}")
        tensor = file.tensor(stored)
        if is_llama and name.rpartition(".")[0].endswith(("attention.query", "attention.key")):
            tensor = _halves(tensor, model.settings.d_head)
        weights[name] = tensor
    return weights


def _halves(rows: Tensor, d_head: int) -> Tensor:
    """Undo the reordering of gguf._interleaved(), because our models rotate pairs that are half a head apart."""
    return rows.unflatten(0, (-1, d_head // 2, 2)).transpose(1, 2).flatten(0, 2).contiguous()
