"""Models in the layout of the Hugging Face Hub: downloads, JSON and safetensors, never pickles."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, bfloat16, float16, float32

from penwright.errors import PenwrightError, import_extra
from penwright.formats.pretrained import listed, require_memory
from penwright.storage import MAX_BYTES, MOST_IN_SMALL, UnsafeFile, parse_json, read_bytes, read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
OWN_TOKENIZER = "penwright-tokenizer.json"  # written for translators: tokenizer.json cannot express their tokenizers
TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("source.spm", "target.spm", "sentencepiece.bpe.model", "tokenizer.model", "spiece.model"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("generation_config.json", "chat_template.jinja", OWN_TOKENIZER),
)
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
DTYPES = (float32, float16, bfloat16)
PREFIX = "hub:"
# A licence in the front matter of a README: a name, or a list of names in one line or several.
LICENCE = re.compile(r"^(license|licence|license_name):[ \t]*(.*(?:\n[ \t]*- .*)*)", re.MULTILINE)
ADAPTER_CONFIG = "adapter_config.json"  # PEFT's settings file of an adapter
WANTED = (
    "config.json",
    ADAPTER_CONFIG,
    INDEX,
    WEIGHTS,
    "model-*.safetensors",
    *TOKENIZER_FILES,
    "modules.json",
    "*_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "README.md",
    "LICENSE*",
)


def inside(folder: Path, name: str) -> Path:
    """Return the real path of a file in the folder. In the Hugging Face cache, the file may be a link to a blob.

    Raises UnsafeFile if the name or a link points outside the folder and the blobs of the cache.
    """
    real, home = (folder / name).resolve(), folder.resolve()
    allowed = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    if ".." in Path(name).parts or not any(real.is_relative_to(place) for place in allowed):
        raise UnsafeFile(f"{folder / name} points outside the folder. Replace the link with the file itself")
    return real


def read_optional(folder: Path, name: str, most: int = MOST_IN_SMALL) -> dict[str, Any]:
    """Read a JSON file of the folder; return {} if it does not exist."""
    try:
        return read_json(inside(folder, name), most)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PenwrightError(f"{name} cannot be read: {error}") from None


def read_content(folder: Path, name: str, most: int = MAX_BYTES) -> bytes | None:
    """Read a file of the folder; return None if it does not exist."""
    try:
        return read_bytes(inside(folder, name), most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PenwrightError(f"{name} cannot be read: {error}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json."""
    try:
        return parse_json(read_bytes(inside(folder, "config.json"), MOST_IN_SMALL))
    except FileNotFoundError:
        raise PenwrightError(
            "there is no config.json. Name the folder of a model that has one, or a GGUF file"
        ) from None
    except (OSError, ValueError) as error:
        raise PenwrightError(f"config.json cannot be read: {error}") from None


def shards_of(folder: Path) -> list[Path]:
    """Return the files that hold the weights: model.safetensors, or the shards that its index lists.

    Raises PenwrightError if a file is missing.
    """
    names = [WEIGHTS]
    if not (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        names = _complete_shards(folder) or names
    if (folder / INDEX).is_file():
        weight_map = read_optional(folder, INDEX, MAX_BYTES).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map or not all(type(n) is str for n in weight_map.values()):
            raise PenwrightError(f"{INDEX} has no weight_map. Download the model again")
        names = sorted(set(weight_map.values()))
    paths = [inside(folder, name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.is_file():
            pickles = sorted(each.name for pattern in PICKLES for each in folder.glob(pattern))
            only = f" The folder has only {', '.join(pickles[:3])}." if pickles else ""
            if names != [WEIGHTS]:
                raise PenwrightError(f"{INDEX} lists {name}, but there is no such file. Download the model again")
            raise PenwrightError(
                f"there is no {name}.{only} Only safetensors files are read, because opening other formats can run "
                "code. Convert the model with transformers, model.save_pretrained(FOLDER), or look on its page for a "
                f"revision with safetensors: {PREFIX}NAME@refs/pr/NUMBER"
            )
    return paths


def _complete_shards(folder: Path) -> list[str]:
    """Return the names of all shards in a folder without an index; raise PenwrightError if some are missing."""
    found = sorted(path.name for path in folder.glob("model-*.safetensors") if SHARD.fullmatch(path.name))
    if not found:
        return []
    n_shards = int(found[-1][-len("00001.safetensors") :].partition(".")[0])
    needed = [f"model-{number:05}-of-{n_shards:05}.safetensors" for number in range(1, n_shards + 1)]
    if missing := sorted({*needed} - {*found}):
        raise PenwrightError(f"the weights in {folder} are incomplete. Download {listed([INDEX, *missing])}, too")
    return needed


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of all shards. Raises PenwrightError if they are damaged or do not fit in memory."""
    paths = shards_of(folder)
    require_memory(sum(path.stat().st_size for path in paths))
    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            tensors |= load_file(path)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise PenwrightError(
                f"the weights in {path.name} cannot be read: {error}. Download the file again"
            ) from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dtype not in DTYPES:
            raise PenwrightError(
                f"{name} is of type {tensor.dtype}, which is not supported. Convert the model to bfloat16"
            )
    return tensors


def licence_of(folder: Path) -> str | None:
    """Return the licence that the README names, or that a licence file in the folder suggests."""
    content = (read_content(folder, "README.md") or b"").decode("utf-8", "replace").replace("\r\n", "\n")
    _, _, front = content.partition("---\n")
    stated: dict[str, str] = {}
    for key, value in LICENCE.findall(front.partition("\n---")[0]):
        names = (name.strip(" \t-\"'") for name in re.split(r"[\n,]", value.strip("[] ")))
        stated.setdefault(key, ", ".join(filter(None, names)))
    licence, name = stated.get("license") or stated.get("licence"), stated.get("license_name")
    if licence or name:
        return (f"{licence} ({name})" if licence and name else licence or name or "")[:100]
    return next((f"see {path.name}" for path in sorted(folder.glob("LICENSE*"))), None)


def without_prefix(source: str) -> str:
    """Return the name of a model on the Hub, without `hub:` and revision. Other sources are returned unchanged."""
    return source.removeprefix(PREFIX).partition("@")[0] if source.startswith(PREFIX) else source


def download(name: str, wanted: Sequence[str] = WANTED) -> Path:
    """Download these files of a model on the Hugging Face Hub, unless they are cached. Return the folder.

    The name may end with a revision, such as `@main` or `@refs/pr/3`.

    Raises PenwrightError if the download fails.
    """
    hub = import_extra("huggingface_hub", "hub", "models from the Hugging Face Hub")
    try:
        repository, _, revision = name.partition("@")
        return Path(hub.snapshot_download(repository, revision=revision or None, allow_patterns=[*wanted]))
    except Exception as error:  # a network error, an error of the Hub, or a wrong name
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PenwrightError(
            f"{PREFIX}{name} cannot be downloaded: {reason}. Check the name and the network, "
            "or download the folder by other means and import it"
        ) from None
