"""Import of language models from llama.cpp's GGUF files, and the reader of these files."""

import re
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penwright.config import ModelSettings, RotaryScaling, Table, merge, validate
from penwright.errors import PenwrightError, import_extra
from penwright.formats.gguf import (
    GGUF_NAMES,
    KEYS,
    LAYER_NORM_EPS,
    ROPE_FACTORS,
    VARIANTS,
    their_name,
    usual_attention_factor,
)
from penwright.formats.gguf_tokenizer import CHAT_TEMPLATE, is_guessed, read_tokenizer, special_piece
from penwright.formats.pretrained import (
    Outline,
    Pretrained,
    Tensors,
    fit_vocabulary,
    listed,
    outlined,
    read_chat,
    require_all,
)
from penwright.model import Model
from penwright.model.embedding import rotary_frequencies, scaled
from penwright.tokenizers.checks import MOST_PIECES

MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_KEYS, MOST_TENSORS, MOST_DIMENSIONS, LONGEST = 1 << 16, 1 << 20, 4, 1 << 24
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
NEUTRAL: dict[str, tuple[object, ...]] = {  # other keys that change the vectors, and their supported values
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_attn_factor": (1.0, -1.0),
    "expert_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "pooling_type": (0, 1),  # none and mean
}
SPLIT = re.compile(r"attn_[qkv]\.")  # separate tensors for Q, K and V, which GPT-2 combines in attn_qkv


class StoredTensor(NamedTuple):
    """The shape, type number and offset of a tensor in a file."""

    shape: tuple[int, ...]
    type: int
    offset: int


class GGUFFile:
    """An open GGUF file: its `metadata`, and its tensors (`stored`), which are read on demand."""

    def __init__(self, path: Path):
        """Read the header. Raise PenwrightError if the file is damaged or has implausible sizes."""
        try:
            self._content = np.memmap(path, mode="r")
            self._at = 0
            self.metadata, self.stored = self._read_header()
        except (OSError, ValueError, struct.error, UnicodeDecodeError) as error:
            raise PenwrightError(f"the file cannot be read as GGUF: {error}. Download it again") from None

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in float16 or bfloat16 if it is stored in that type, otherwise dequantized to float32."""
        gguf, stored = import_extra("gguf", "gguf", "GGUF files"), self.stored[name]
        try:
            kind = gguf.GGMLQuantizationType(stored.type)
        except ValueError:
            raise PenwrightError(
                f"the tensor {name} is of type {stored.type}, which the gguf package does not know"
            ) from None
        block, size = gguf.GGML_QUANT_SIZES[kind]
        *rows, width = stored.shape
        shape = (*rows, width // block * size)
        end = stored.offset + prod(shape)
        if width % block or end > len(self._content):
            raise PenwrightError(f"the tensor {name} is incomplete or damaged. Download the file again")
        content = np.array(self._content[stored.offset : end])
        if kind.name in ("F16", "BF16"):
            dtype = torch.float16 if kind.name == "F16" else torch.bfloat16
            return torch.from_numpy(content).view(dtype).reshape(stored.shape)
        try:
            return torch.from_numpy(gguf.quants.dequantize(content.reshape(shape), kind)).reshape(stored.shape)
        except NotImplementedError:
            raise PenwrightError(
                f"the tensor {name} is of type {kind.name}, which the gguf package cannot dequantize"
            ) from None

    def _read_header(self) -> tuple[Mapping[str, Any], Mapping[str, StoredTensor]]:
        version, n_tensors, n_keys = self._start()
        if version not in VERSIONS or n_keys > MOST_KEYS or n_tensors > MOST_TENSORS:
            raise ValueError(f"version {version} with {n_keys:,} keys and {n_tensors:,} tensors")
        metadata = {self._string(): self._value(self._number("I")) for _ in range(n_keys)}
        tensors = {self._string(): self._tensor_info() for _ in range(n_tensors)}
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= LONGEST:
            raise ValueError(f"general.alignment = {alignment!r}")
        begin = -(-self._at // alignment) * alignment
        return metadata, {name: stored._replace(offset=begin + stored.offset) for name, stored in tensors.items()}

    def _start(self) -> tuple[int, int, int]:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        return self._number("I"), self._number("Q"), self._number("Q")

    def _take(self, n_bytes: int) -> bytes:
        if n_bytes > len(self._content) - self._at:
            raise ValueError("it is incomplete")
        self._at += n_bytes
        return self._content[self._at - n_bytes : self._at].tobytes()

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(form)))[0]

    def _string(self) -> str:
        length = self._number("Q")
        if length > LONGEST:
            raise ValueError(f"it has a string of {length:,} bytes")
        return self._take(length).decode()

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, length = self._number("I"), self._number("Q")
            if length > MOST_PIECES or inner == ARRAY:
                raise ValueError(f"it has an array of {length:,} values")
            if inner == STRING:
                return [self._string() for _ in range(length)]
            form = self._form(inner)
            return list(struct.unpack(f"<{length}{form}", self._take(length * struct.calcsize(form))))
        return self._number(self._form(kind))

    def _form(self, kind: int) -> str:
        if kind not in SCALARS:
            raise ValueError(f"it has a value of type {kind}")
        return SCALARS[kind]

    def _tensor_info(self) -> StoredTensor:
        n_dimensions = self._number("I")
        if not 0 < n_dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"it has a tensor of {n_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dimensions))[::-1]
        return StoredTensor(shape, self._number("I"), self._number("Q"))


def read_gguf(path: Path) -> Pretrained:
    """Read a GGUF file. Raises PenwrightError, naming the key or tensor, if the file cannot be used."""
    try:
        return _read(path)
    except PenwrightError as error:
        raise PenwrightError(f"{path}: {error}") from None


def _read(path: Path) -> Pretrained:
    file = GGUFFile(path)
    n_files = file.metadata.get("split.count", 0)
    if n_files not in (0, 1):  # llama.cpp writes 0 into merged files
        raise PenwrightError(
            f"the model is split into {n_files} files. Merge them with llama.cpp: "
            "llama-gguf-split --merge FIRST_FILE NEW_FILE"
        )
    name = str(file.metadata.get("general.architecture"))
    tokenizer = read_tokenizer(file.metadata)
    outline = Outline("generate", _vocab_size(file), _settings(file, name))
    weights = _weights(file, outlined(outline, len(file.stored)))
    outline = fit_vocabulary(outline, weights, tokenizer)
    licence, notes = file.metadata.get("general.license"), list[str]()
    if is_guessed(file.metadata):
        notes.append(
            "the file does not state the rule that splits words (tokenizer.ggml.pre). Penwright uses that of GPT-2, "
            "so the tokens may differ"
        )
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # with their names in GGUF
    special = {role: special_piece(file.metadata, name) for role, name in roles.items()}
    chat, marked = read_chat(file.metadata.get(CHAT_TEMPLATE), special, tokenizer, notes)
    return Pretrained(
        outline=outline,
        weights=weights,
        tokenizer=marked,
        files=[path],
        architecture=name,
        licence=None if licence is None else str(licence),
        chat=chat,
        notes=notes,
    )


def _vocab_size(file: GGUFFile) -> int:
    if f"{GGUF_NAMES['embedding.tokens']}.weight" not in file.stored:
        raise PenwrightError(f"the tensor {GGUF_NAMES['embedding.tokens']}.weight is missing")
    return file.stored[f"{GGUF_NAMES['embedding.tokens']}.weight"].shape[0]


def _settings(file: GGUFFile, name: str) -> ModelSettings:
    """Convert the metadata of the file to our settings."""
    if name not in VARIANTS:
        raise PenwrightError(
            f"general.architecture = {name!r} is not supported. Supported architectures: {', '.join(VARIANTS)}"
        )
    own = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items()}
    own |= {KEYS["norm.eps"]: own[LAYER_NORM_EPS]} if LAYER_NORM_EPS in own else {}
    for key, values in NEUTRAL.items():
        if own.get(key, values[0]) not in values:
            raise PenwrightError(f"{name}.{key} = {own[key]!r} is not supported, only {listed(values)}")
    tied = "none" if f"{GGUF_NAMES['output']}.weight" in file.stored else "output"
    table: Table = {**VARIANTS[name], "tie_embeddings": tied}
    for ours, theirs in KEYS.items():
        if theirs in own:
            value = float(str(np.float32(own[theirs]))) if isinstance(own[theirs], float) else own[theirs]
            *outer, key = ours.split(".")
            table = merge(table, {outer[0]: {key: value}} if outer else {key: value})
        elif ours in ("d_model", "n_layers", "n_heads", "d_ff", "context_length"):
            raise PenwrightError(f"the key {name}.{theirs} is missing")
    settings = validate(ModelSettings, table, "its metadata")
    if settings.positions.type != "rotary":
        return settings
    if own.get("rope.dimension_count", settings.d_head) != settings.d_head:
        raise PenwrightError(
            f"{name}.rope.dimension_count = {own['rope.dimension_count']} differs from the size of a head"
        )
    scaling = _scaling(file, own, settings)
    positions = settings.positions.model_copy(update={"scaling": scaling})
    return settings.model_copy(update={"positions": positions})


def _scaling(file: GGUFFile, own: Mapping[str, Any], settings: ModelSettings) -> RotaryScaling | None:
    """Return the RoPE scaling. For Llama 3, derive its parameters from the file's tensor of frequency factors."""
    kind = own.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise PenwrightError(f"rope.scaling.type = {kind!r} is not supported, only 'none', 'linear' and 'yarn' are")
    # As in llama.cpp, a missing factor and 0 mean no scaling. Old files have rope.scale_linear.
    factor = own.get("rope.scaling.factor") or own.get("rope.scale_linear") or 1.0
    attention = own.get("rope.scaling.attn_factor", 1.0)
    if kind == "yarn":
        table: Table = {"yarn": True, "factor": factor, "attention_factor": attention}
        table["original_context"] = own.get("rope.scaling.original_context_length", settings.context_length)
        table["low_freq_factor"] = own.get("rope.scaling.yarn_beta_slow", 1.0)
        table["high_freq_factor"] = own.get("rope.scaling.yarn_beta_fast", 32.0)
        scaling = validate(RotaryScaling, table, "the metadata rope.scaling")
        attention = scaling.attention_factor * usual_attention_factor(scaling.factor)
        return scaling.model_copy(update={"attention_factor": attention})
    if attention != 1.0:
        raise PenwrightError(f"rope.scaling.attn_factor = {attention!r} is supported only for YaRN")
    if kind == "linear" and factor != 1.0:
        return validate(RotaryScaling, {"factor": factor}, "the metadata rope.scaling")
    if ROPE_FACTORS not in file.stored:
        return None
    assert settings.positions.type == "rotary"
    factors, largest = file.tensor(ROPE_FACTORS).float(), file.tensor(ROPE_FACTORS).float().max()
    is_linear = bool((factors == largest).all())
    scaling = RotaryScaling(factor=round(float(largest), 3), original_context=None if is_linear else 8192)
    base = settings.positions.base
    frequencies = rotary_frequencies(settings.d_head, base)
    expected = frequencies / scaled(frequencies, scaling, base)
    if factors.shape != frequencies.shape or not torch.allclose(expected, factors, rtol=1e-3):
        raise PenwrightError(f"the tensor {ROPE_FACTORS} differs from that of Llama 3. No other scaling is supported")
    return scaling


def _weights(file: GGUFFile, model: Model) -> Tensors:
    """Return the weights, renamed for Penwright."""
    theirs = dict[str, dict[str, Tensor]]()  # for each GGUF tensor, the parameters that it holds
    for name, parameter in model.named_parameters():
        whole = SPLIT.sub("attn_qkv.", their_name(name))
        theirs.setdefault(whole if whole in file.stored else their_name(name), {})[name] = parameter
    require_all(file.stored, theirs, [ROPE_FACTORS], "")
    is_llama = file.metadata["general.architecture"] == "llama"
    weights = {}
    for stored, parameters in theirs.items():
        rows = [len(parameter) for parameter in parameters.values()]
        expected = (sum(rows), *next(iter(parameters.values())).shape[1:])
        if file.stored[stored].shape != expected:
            shapes = f"{file.stored[stored].shape}, but the metadata implies {expected}"
            raise PenwrightError(f"the tensor {stored} has shape {shapes}")
        for name, part in zip(parameters, file.tensor(stored).split(rows), strict=True):
            is_rotated = is_llama and name.rpartition(".")[0].endswith(("attention.query", "attention.key"))
            weights[name] = _halves(part, model.settings.d_head) if is_rotated else part.contiguous()
    return weights


def _halves(rows: Tensor, d_head: int) -> Tensor:
    """Undo the reordering of gguf._interleaved(): RoPE in our models rotates dimensions that are half a head apart."""
    return rows.unflatten(0, (-1, d_head // 2, 2)).transpose(1, 2).flatten(0, 2).contiguous()
