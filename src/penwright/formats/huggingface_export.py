"""Export to the transformers library, by applying the tables in architectures/ in reverse."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from penwright.config import ModelSettings, Precision, Task
from penwright.errors import PenwrightError
from penwright.formats.architectures import VALUE_NAMES, Architecture, generation_of
from penwright.formats.architectures.rope import rope_parameters
from penwright.formats.export import NO_METADATA, ModelMetadata, cpu_copy, write_table
from penwright.formats.huggingface import (
    ARCHITECTURES,
    TensorSource,
    settings_from_huggingface,
    tensor_sources,
)
from penwright.formats.huggingface_tokenizer import TWO_ENDS
from penwright.formats.huggingface_tokenizer_export import save_tokenizer
from penwright.formats.sentence_transformers import MODULES, POOLING
from penwright.model import Model
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from penwright.storage import let_others_read
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import template_of

# Settings that do not change what a trained model computes.
IGNORED_SETTINGS = {
    "size",
    "ngrams",
    "balanced",
    "text_pairs",  # decided by the tokenizer in transformers
    "zero_init_outputs",
    "dropout",
    "attention_dropout",
    "feed_forward_dropout",
    "token_dropout",
}
FARTHEST = 16  # largest mean score, in standard deviations, for bfloat16: its rounding error is mean / 512
HEAD = {"pooling", "pooler", "pooler_activation"}
UNUSED: dict[Task, set[str]] = {  # settings that have no effect, by task
    "generate": {*HEAD, "n_decoder_layers"},
    "translate": HEAD,
    "classify": {"tie_embeddings", "n_decoder_layers"},
}


class _Candidate(NamedTuple):
    """A candidate for export: a class of transformers, its config.json, and the settings that would be lost."""

    architecture: Architecture
    config: dict[str, object]
    lost: list[str]
    is_invalid: bool  # whether the values of some settings cannot be written in config.json


def save_huggingface(
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    precision: Precision = "float32",
    metadata: ModelMetadata = NO_METADATA,
) -> None:
    """Write a model for the Auto classes of transformers into an empty folder.

    Raises PenwrightError if no known class of transformers can represent the model. The message lists the settings that
    the closest class lacks.
    """
    if precision == "int8":
        raise PenwrightError("huggingface supports only float32 and bfloat16. For int8, export to ctranslate2 or gguf")
    candidates = [_candidate(name, model, tokenizer, metadata.labels) for name in _classes_for(model, metadata.labels)]
    best = min(candidates, key=lambda each: (each.is_invalid, len(each.lost), _differs_in_pairs(each, tokenizer)))
    if best.lost:
        hints = {EncoderDecoder: ". Export the translator to ctranslate2", EncoderOnly: ". Export the model to onnx"}
        hint = hints.get(type(model), "")
        raise PenwrightError(
            f"transformers has no class for this model, because none supports {', '.join(best.lost)}{hint}"
        )
    dtype, parameters = getattr(torch, precision), dict(model.named_parameters())
    mean, deviation = parameters["scale"].tolist() if "scale" in parameters else (0.0, 1.0)
    if precision == "bfloat16" and abs(mean) > FARTHEST * deviation:
        raise PenwrightError(
            f"bfloat16 would round the scores of this model, which are about {mean:.5g} and differ by {deviation:.2g}. "
            "Export in float32"
        )
    sources, weights = tensor_sources(best.architecture, model), folded(parameters)
    tensors = {source.name: _concatenated(source, weights) for source in sources}
    tensors = {name: tensor.to(dtype) for name, tensor in best.architecture.restore(tensors).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    let_others_read(folder / "model.safetensors")
    write_table(folder / "config.json", {**best.config, "dtype": precision})
    if isinstance(model, EncoderOnly) and not metadata.labels and not model.settings.pooler:
        _save_pooling(model.settings, folder)
    if not isinstance(model, EncoderOnly):
        write_table(folder / "generation_config.json", _generation_config(model, tokenizer, metadata))
    save_tokenizer(tokenizer, folder, model, metadata.chat, best.architecture.model_type)


def _differs_in_pairs(candidate: _Candidate, tokenizer: Tokenizer) -> bool:
    """Return whether the exported model, imported again, would have another number of end tokens within a pair."""
    return (candidate.architecture.model_type in TWO_ENDS) != (tokenizer.pair_ends == 2)


def _save_pooling(settings: ModelSettings, folder: Path) -> None:
    """Write the modules of an encoder for sentence-transformers, which has none for a pooler."""
    places = {"Transformer": "", "Pooling": Path(POOLING).parent.name, "Normalize": "2_Normalize"}
    types = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in places.items()]
    write_table(folder / MODULES, [{"idx": number, "name": str(number), **each} for number, each in enumerate(types)])
    (folder / POOLING).parent.mkdir()
    modes = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean"}
    chosen = {mode: settings.pooling == pooling for mode, pooling in modes.items()}
    write_table(folder / POOLING, {"word_embedding_dimension": settings.d_model, **chosen})


def _task_of(model: Model) -> Task:
    return (
        "generate" if isinstance(model, DecoderOnly) else "classify" if isinstance(model, EncoderOnly) else "translate"
    )


def architecture_for(model: Model, tokenizer: Tokenizer, labels: tuple[str, ...] = ()) -> Architecture | None:
    """Return the class of the transformers library that can represent a model, or None."""
    candidates = [_candidate(name, model, tokenizer, labels) for name in _classes_for(model, labels)]
    return next((each.architecture for each in candidates if not each.lost), None)


def _classes_for(model: Model, labels: tuple[str, ...]) -> list[str]:
    task = _task_of(model)
    named = [(name, each) for name, each in ARCHITECTURES.items() if each.task == task]
    return [name for name, each in named if task != "classify" or each.has_head == bool(labels)]


def _candidate(name: str, model: Model, tokenizer: Tokenizer, labels: tuple[str, ...]) -> _Candidate:
    architecture, task = ARCHITECTURES[name], _task_of(model)
    wanted = model.settings.model_dump()
    if task == "generate" and wanted["tie_embeddings"] == "all":
        wanted["tie_embeddings"] = "output"  # a language model has one embedding, so "all" and "output" are equivalent
    if wanted["qkv_bias"] == wanted["bias"]:
        wanted["qkv_bias"] = None
    if task == "translate":
        wanted["n_decoder_layers"] = wanted["n_decoder_layers"] or wanted["n_layers"]
    config: dict[str, object] = {key: values[0] for key, values in architecture.supported.items()}
    config |= {theirs: _their_value(ours, wanted) for theirs, ours in architecture.keys}
    if "max_position_embeddings" in config:
        config["max_position_embeddings"] = model.settings.context_length + architecture.offset
    if "rope_theta" in config:
        config["rope_parameters"] = rope_parameters(config)
    config |= {"architectures": [name], "model_type": architecture.model_type, "vocab_size": tokenizer.vocab_size}
    config |= _special_tokens(tokenizer, task)
    if labels:
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
        if model.settings.problem_type != "single_label_classification":  # the default of transformers
            config["problem_type"] = model.settings.problem_type
    unused = UNUSED[task] if labels or task != "classify" else UNUSED[task] | HEAD
    try:
        return _Candidate(architecture, config, _lost_settings(wanted, config, unused), is_invalid=False)
    except PenwrightError as error:  # transformers has no equivalent of one of our values
        return _Candidate(architecture, config, [str(error)], is_invalid=True)


def _special_tokens(tokenizer: Tokenizer, task: Task) -> dict[str, object]:
    ids: dict[str, object] = {"eos_token_id": _one_or_all(tokenizer.end_ids), "pad_token_id": tokenizer.pad_id}
    if task != "translate":
        return {"bos_token_id": tokenizer.start_id, **ids}
    return {**ids, "decoder_start_token_id": tokenizer.start_id, "forced_eos_token_id": tokenizer.end_id}


def _generation_config(model: Model, tokenizer: Tokenizer, metadata: ModelMetadata) -> dict[str, object]:
    task = _task_of(model)
    config = _special_tokens(tokenizer, task) | generation_of(metadata.decoding, task)
    if task == "generate":
        ends = (*tokenizer.end_ids, template_of(metadata.chat).end_of_answer(tokenizer))
        return {**config, "eos_token_id": _one_or_all(ends)}
    if tokenizer.pad_id != tokenizer.end_id:
        config["bad_words_ids"] = [[tokenizer.pad_id]]  # Marian gives padding the logit 0, which may be the highest
    if tokenizer.target_prefix:
        config["forced_bos_token_id"] = tokenizer.target_prefix[0]
    return config


def _one_or_all(ends: Iterable[int]) -> int | list[int]:
    distinct = list(dict.fromkeys(ends))
    return distinct if len(distinct) > 1 else distinct[0]


def _lost_settings(wanted: dict[str, object], config: dict[str, object], unused: set[str]) -> list[str]:
    """Return the settings that an import of this config.json would not restore."""
    exported = settings_from_huggingface(config).settings.model_dump()
    return [
        f"model.{key} = {value!r}"
        for key, value in wanted.items()
        if key not in IGNORED_SETTINGS | unused and exported[key] != value
    ]


def _their_value(key: str, wanted: dict[str, object]) -> object:
    """Return the value of one of our settings in the form that transformers uses."""
    value: object = wanted
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    words = {ours: theirs for theirs, ours in reversed(VALUE_NAMES.get(key, {}).items())}
    return words.get(value, value) if words else value


def folded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with the label prior or the scale of scores folded into the output layer.

    The exported classifier gives the same probabilities as this model; its logits differ by a constant per text.
    """
    kept = dict(weights)
    if (prior := kept.pop("log_prior", None)) is not None:
        kept["output.bias"] = kept["output.bias"] - prior
    if (scale := kept.pop("scale", None)) is not None:
        mean, deviation = scale
        kept["output.weight"] = kept["output.weight"] * deviation
        kept["output.bias"] = kept["output.bias"] * deviation + mean
    return kept


def _concatenated(source: TensorSource, weights: Mapping[str, Tensor]) -> Tensor:
    tensor = torch.cat([cpu_copy(weights[name]) for name in source.parameters])
    return tensor.T.contiguous() if source.transposed else tensor
