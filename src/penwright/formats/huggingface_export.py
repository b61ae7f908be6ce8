"""Export of writers to transformers: the tables of architectures/, applied in reverse."""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from penwright.config import ModelSettings, Precision
from penwright.errors import PenwrightError
from penwright.formats.architectures import ARCHITECTURES, VALUE_NAMES, Architecture
from penwright.formats.huggingface import TensorSource, settings_from_huggingface, tensor_sources
from penwright.formats.outside import cpu_copy
from penwright.model import Model
from penwright.model.decoder_only import DecoderOnly
from penwright.run.folder import let_others_read
from penwright.tokenizers import Tokenizer

MODEL_TYPES = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3", "GPT2LMHeadModel": "gpt2"}
# Settings that do not change what a trained writer computes.
IGNORED_SETTINGS = {"size", "n_decoder_layers", "pooling", "pooler", "ngrams", "balanced", "zero_init_outputs"}
IGNORED_SETTINGS |= {"dropout", "attention_dropout", "feed_forward_dropout"}


class _Candidate(NamedTuple):
    """A transformers class for a model, its config.json, and the settings that it would lose."""

    architecture: Architecture
    config: dict[str, object]
    lost: list[str]


def save_huggingface(model: Model, tokenizer: Tokenizer, folder: Path, precision: Precision = "float32") -> None:
    """Write a model for AutoModelForCausalLM and AutoTokenizer into an empty folder.

    The tokenizer begins each prompt with <s>. Raises PenwrightError if neither Llama nor Qwen3 nor GPT-2 can hold the
    model, naming the settings that the closest of them lacks.
    """
    if not isinstance(model, DecoderOnly):
        raise PenwrightError("only a writer can be exported to huggingface. Export a translator to ctranslate2")
    if precision == "int8":
        raise PenwrightError("huggingface weights are float32 or bfloat16. For int8, export to ctranslate2 or gguf")
    candidates = [_candidate(name, model.settings, tokenizer) for name in MODEL_TYPES]
    best = min(candidates, key=lambda candidate: len(candidate.lost))
    if best.lost:
        raise PenwrightError(f"transformers has no class for this model: none supports {', '.join(best.lost)}")
    dtype = getattr(torch, precision)
    tensors = {source.name: _concatenated(source).to(dtype) for source in tensor_sources(best.architecture, model)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    let_others_read(folder / "model.safetensors")
    _write(folder / "config.json", {**best.config, "dtype": precision})
    _save_tokenizer(tokenizer, folder, model.settings.context_length)


def _candidate(name: str, settings: ModelSettings, tokenizer: Tokenizer) -> _Candidate:
    architecture = ARCHITECTURES[name]
    wanted = settings.model_dump()
    if wanted["tie_embeddings"] == "all":
        wanted["tie_embeddings"] = "output"  # the same for a writer, which has no source embedding
    config: dict[str, object] = {key: values[0] for key, values in architecture.supported.items()}
    config |= {theirs: _their_value(ours, wanted) for theirs, ours in architecture.keys}
    if "rope_theta" in config:
        config["rope_parameters"] = {"rope_type": config.pop("rope_type"), "rope_theta": config["rope_theta"]}
    config |= {"architectures": [name], "model_type": MODEL_TYPES[name], "vocab_size": tokenizer.vocab_size}
    config |= {
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": tokenizer.end_id,
        "pad_token_id": tokenizer.pad_id,
    }
    return _Candidate(architecture, config, _lost_settings(wanted, config))


def _lost_settings(wanted: dict[str, object], config: dict[str, object]) -> list[str]:
    """Return the settings that reading the config.json again would not restore."""
    try:
        found = settings_from_huggingface(config).settings.model_dump()
    except PenwrightError as error:  # a value that transformers has no name for
        return [str(error)]
    return [
        f"model.{key} = {value!r}"
        for key, value in wanted.items()
        if key not in IGNORED_SETTINGS and found[key] != value
    ]


def _their_value(key: str, wanted: dict[str, object]) -> object:
    """Return the value of one of our settings, under the name that transformers has for it."""
    value: object = wanted
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    words = {ours: theirs for theirs, ours in reversed(VALUE_NAMES.get(key, {}).items())}
    return words.get(value, value)


def _concatenated(source: TensorSource) -> Tensor:
    tensor = torch.cat([cpu_copy(parameter) for parameter in source.parameters])
    return tensor.T.contiguous() if source.transposed else tensor


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, context_length: int) -> None:
    path, start = folder / "tokenizer.json", tokenizer.pieces[tokenizer.start_id]
    tokenizer.save(path)
    library = LibraryTokenizer.from_file(str(path))
    library.post_processor = TemplateProcessing(single=f"{start} $A", special_tokens=[(start, tokenizer.start_id)])
    library.save(str(path))
    special = {
        "bos_token": start,
        "eos_token": tokenizer.pieces[tokenizer.end_id],
        "pad_token": tokenizer.pieces[tokenizer.pad_id],
    }
    if tokenizer.unknown_id is not None:
        special["unk_token"] = tokenizer.pieces[tokenizer.unknown_id]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context_length, **special}
    plain = {"clean_up_tokenization_spaces": False, "split_special_tokens": True}  # "</s>" in a text is text
    _write(folder / "tokenizer_config.json", {**settings, **plain})


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
