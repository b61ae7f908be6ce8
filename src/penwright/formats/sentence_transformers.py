"""The settings of sentence-transformers in a folder: modules, pooling, limits and prompts of a model of embeddings."""

import json
from collections.abc import Mapping
from pathlib import Path

from penwright.errors import PenwrightError
from penwright.formats.huggingface_files import read_content, read_optional
from penwright.formats.pretrained import Outline, Tensors
from penwright.storage import MOST_IN_SMALL
from penwright.tokenizers import Tokenizer

LIMITS, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
CROSS_ENCODER = ("sentence_transformers", "sbert_ce_default_activation_function")  # config.json keys of cross-encoders
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
POOLINGS = {"mean": "mean", "cls": "first"}  # pooling modes of sentence-transformers, and our names for them


def with_pooling(outline: Outline, weights: Tensors, folder: Path) -> Outline:
    """Return the model's arguments with the pooling of sentence-transformers, if the folder has settings for it.

    Raises PenwrightError if sentence-transformers would compute different vectors from Penwright's.
    """
    place = _pooling_file(folder)
    if place is None:
        return outline
    mode = _mode(read_optional(folder, place))
    if outline.task == "generate":
        if mode != "mean":
            raise PenwrightError(
                f"{place}: the pooling mode {mode!r} is not supported for language models, only mean, so the vectors "
                f"would differ. To import the model without its modules, delete {MODULES} and {place}"
            )
        return outline
    if mode not in POOLINGS:
        raise PenwrightError(f"{place}: the pooling mode {mode!r} is not supported, only one of {', '.join(POOLINGS)}")
    for name in ("pooler.weight", "pooler.bias"):  # these weights were trained for next-sentence prediction
        weights.pop(name, None)
    changes = {"pooling": POOLINGS[mode], "pooler": False}
    return outline._replace(settings=outline.settings.model_copy(update=changes))


def differences(outline: Outline, tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Return notes about texts that sentence-transformers changes before it embeds them, and Penwright does not.

    Raises PenwrightError if it would have to lower-case them.
    """
    limits, prompts, notes = read_optional(folder, LIMITS), read_optional(folder, PROMPTS), []
    if limits.get("do_lower_case") is True and tokenizer.encode("THE") != tokenizer.encode("the"):
        raise PenwrightError(
            f"{LIMITS}: do_lower_case = true is not supported. Set it to false, and lower-case your texts yourself"
        )
    most, room = limits.get("max_seq_length"), outline.settings.context_length
    if isinstance(most, int) and most < room:
        notes.append(
            f"sentence-transformers reads only the first {most} tokens of a text with this model. Penwright reads "
            f"whole texts, {room} tokens at a time, so the vectors of longer texts differ"
        )
    name, texts = prompts.get("default_prompt_name"), prompts.get("prompts")
    if not isinstance(texts, Mapping):
        return notes
    if isinstance(name, str) and texts.get(name):
        notes.append(
            f"sentence-transformers puts {texts[name]!r} before each text with this model. Penwright does not: "
            "put it before your texts"
        )
    elif any(texts.values()):
        shown = ", ".join(f"{role}: {text!r}" for role, text in texts.items() if text)
        notes.append(f"the model was trained with prompts ({shown}). Put them before your texts yourself")
    return notes


def activation_notes(config: Mapping[str, object]) -> list[str]:
    """Return a note if sentence-transformers applies a sigmoid to the scores of a cross-encoder with one output."""
    if config.keys().isdisjoint(CROSS_ENCODER):
        return []
    own = config.get(CROSS_ENCODER[0])
    stated = own.get("activation_fn") if isinstance(own, Mapping) else None
    if not str(stated or config.get(CROSS_ENCODER[1]) or "Sigmoid").endswith("Sigmoid"):
        return []
    return ["the scores are logits: those of sentence-transformers are their sigmoid, 1 / (1 + exp(-score))"]


def _pooling_file(folder: Path) -> str | None:
    """Return the file with the pooling settings, if any. Raises PenwrightError if the model has unsupported modules."""
    content = read_content(folder, MODULES, MOST_IN_SMALL) or b"[]"
    try:
        modules = [(str(each["type"]), str(each["path"])) for each in json.loads(content)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PenwrightError(f"{MODULES} cannot be read: {error}") from None
    place = POOLING if (folder / POOLING).is_file() else None
    for kind, path in modules:
        match kind.rpartition(".")[2]:
            case "Transformer" | "Normalize":
                continue
            case "Pooling":
                place = f"{path}/config.json"
            case name:
                raise PenwrightError(
                    f"{MODULES}: the module {name} is not supported, only Transformer, Pooling and Normalize, "
                    f"so the vectors would differ. To import the encoder without its modules, delete {MODULES}"
                )
    return place


def _mode(pooling: dict[str, object]) -> str:
    """Return the pooling mode from settings of any sentence-transformers version; join several modes with "+"."""
    used = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    names = [key.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens") for key in used]
    modes = pooling.get("pooling_mode") or names
    return "+".join(map(str, modes)) if isinstance(modes, list) else str(modes)
