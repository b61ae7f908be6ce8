"""The files of sentence-transformers in an encoder's folder: the list of its modules, and its pooling settings."""

import json
from pathlib import Path

from penwright.errors import PenwrightError
from penwright.formats.huggingface_files import read_content, read_optional
from penwright.formats.pretrained import Outline, Tensors
from penwright.storage import MOST_IN_SMALL

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
POOLINGS = {"mean": "mean", "cls": "first"}  # pooling modes of sentence-transformers, and our names for them


def with_pooling(outline: Outline, weights: Tensors, folder: Path) -> Outline:
    """Return the encoder's arguments with the pooling of sentence-transformers, if the folder has settings for it.

    Raises PenwrightError if sentence-transformers would compute different vectors from Penwright's.
    """
    place = _pooling_file(folder)
    if place is None:
        return outline
    mode = _mode(read_optional(folder, place))
    if mode not in POOLINGS:
        raise PenwrightError(f"{place}: the pooling mode {mode!r} is not supported, only one of {', '.join(POOLINGS)}")
    for name in ("pooler.weight", "pooler.bias"):  # these weights were trained for next-sentence prediction
        weights.pop(name, None)
    changes = {"pooling": POOLINGS[mode], "pooler": False}
    return outline._replace(settings=outline.settings.model_copy(update=changes))


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
