"""Import of a model in the layout of the Hugging Face Hub."""

from pathlib import Path
from typing import Any

from penwright.errors import PenwrightError
from penwright.formats.chat import read_chat
from penwright.formats.huggingface import (
    architecture_of,
    labels_in,
    settings_from_huggingface,
    weights_from_huggingface,
)
from penwright.formats.huggingface_files import (
    licence_of,
    read_config,
    read_optional,
    read_tensors,
    shards_of,
)
from penwright.formats.huggingface_tokenizer import FILES, read_template, read_tokenizer, special_names
from penwright.formats.pretrained import Outline, Pretrained, Tensors, fit_vocabulary
from penwright.languages import Languages

POOLING = "1_Pooling/config.json"  # file with the pooling settings of sentence-transformers


def read_huggingface(folder: Path, languages: Languages | None = None) -> Pretrained:
    """Read the model in a folder. Raises PenwrightError, naming the file or key, if the model cannot be used."""
    try:
        return _read(folder, languages)
    except PenwrightError as error:
        raise PenwrightError(f"{folder}: {error}") from None


def _read(folder: Path, languages: Languages | None) -> Pretrained:
    config = read_config(folder)
    architecture = architecture_of(config)
    settings_from_huggingface(config)  # check the settings before reading large files
    generation = read_optional(folder, "generation_config.json")
    tokenizer = read_tokenizer(folder, {**generation, **config}, architecture.task, languages)
    outline, weights = weights_from_huggingface(config, read_tensors(folder))
    if architecture.task == "classify" and not architecture.has_head:
        outline = _pooled(outline, weights, folder)
    outline = fit_vocabulary(outline, weights, tokenizer)
    names = [name for name in ("config.json", *FILES) if (folder / name).is_file()]
    special, notes = special_names(folder), list[str]()
    template = read_template(folder) if architecture.task == "generate" else None
    return Pretrained(
        outline=outline,
        weights=weights,
        tokenizer=tokenizer,
        files=[*(folder / name for name in names), *shards_of(folder)],
        architecture=_name_of(config),
        licence=licence_of(folder),
        labels=labels_in(config) if outline.n_labels else (),
        languages=languages,
        chat=read_chat(template, special.get("bos", ""), tokenizer.pieces[tokenizer.end_id], tokenizer, notes),
        notes=notes,
    )


def _name_of(config: dict[str, Any]) -> str:
    return str(config["architectures"][0])


def _pooled(outline: Outline, weights: Tensors, folder: Path) -> Outline:
    """Return the arguments for building an encoder, with the folder's sentence-transformers pooling, if any."""
    place = folder / POOLING
    pooling = read_optional(place.parent, place.name) if place.is_file() else {}
    modes = [name for name, used in pooling.items() if name.startswith("pooling_mode_") and used is True]
    if not modes:
        return outline
    kinds = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    if len(modes) > 1 or modes[0] not in kinds:
        raise PenwrightError(f"{POOLING}: {', '.join(modes)} is not supported. Supported: one of {', '.join(kinds)}")
    for name in ("pooler.weight", "pooler.bias"):  # drop these weights, which were trained for next-sentence prediction
        weights.pop(name, None)
    changes = {"pooling": kinds[modes[0]], "pooler": False}
    return outline._replace(settings=outline.settings.model_copy(update=changes))
