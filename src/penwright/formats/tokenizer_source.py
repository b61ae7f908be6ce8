"""Existing tokenizers for new models: from a run, a folder in Hugging Face layout, a tokenizer file or a GGUF file."""

from collections.abc import Mapping
from pathlib import Path

from penwright.errors import PenwrightError
from penwright.formats.gguf_import import GGUFFile
from penwright.formats.gguf_tokenizer import read_tokenizer as read_gguf_tokenizer
from penwright.formats.huggingface_files import PREFIX, TOKENIZER_FILES, download, read_optional
from penwright.formats.tokenizer_files import Table, parse_tokenizer_json, special_names, tokenizer_json, wordpiece
from penwright.run.folder import RECIPE
from penwright.storage import read_bytes
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.checks import FOREIGN, MOST_PIECES, check_foreign_file
from penwright.tokenizers.foreign import Conventions, ForeignTokenizer
from penwright.tokenizers.sentencepiece import added_token, as_tokenizer_json, parse_sentencepiece

# The roles of special tokens in the files of transformers, and their usual names. If a tokenizer
# has no token for a role, a token with the first of these names is added.
ROLES = {"start": ("bos", "cls"), "end": ("eos", "sep"), "pad": ("pad",)}
NAMES = {
    "start": ("<s>", "[CLS]", "<|begin_of_text|>", "<bos>"),
    "end": ("</s>", "[SEP]", "<|end_of_text|>", "<eos>", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]"),
}


def read_tokenizer_source(source: str) -> Tokenizer:
    """Return the tokenizer of a run, a folder, a file or `hub:NAME`. Raises PenwrightError if it cannot be used.

    A tokenizer that has no special token for the start, the end or padding gets one, after all other tokens.
    """
    path = (
        download(source.removeprefix(PREFIX), ("config.json", *TOKENIZER_FILES))
        if source.startswith(PREFIX)
        else Path(source)
    )
    if not path.exists():
        raise PenwrightError(f"there is no tokenizer {path}. Choose a run, a folder, a tokenizer file or {PREFIX}NAME")
    folder = path if path.is_dir() else path.parent
    try:
        if path.suffix == ".gguf":
            return read_gguf_tokenizer(GGUFFile(path).metadata)
        if (folder / RECIPE).is_file():
            return Tokenizer.load(folder / "tokenizer.json")
        whole = path.is_dir() or path.name in ("vocab.json", "merges.txt")
        file = tokenizer_json(folder, read_optional(folder, "config.json")) if whole else _single_file(path)
        return _with_special_tokens(file, special_names(folder))
    except PenwrightError as error:
        raise PenwrightError(f"the tokenizer of {source} cannot be used: {error}") from None
    except Exception as error:  # the tokenizers library raises plain Exception
        raise PenwrightError(f"the tokenizer of {source} cannot be used: {error}") from error


def _single_file(path: Path) -> Table:
    """Read a tokenizer.json, or build one from a vocab.txt or a SentencePiece model, whose file may have any name."""
    content = read_bytes(path.resolve())
    if path.suffix == ".json":
        return parse_tokenizer_json(content)
    if path.suffix == ".txt":
        return wordpiece(content.decode(), read_optional(path.parent, "tokenizer_config.json"))
    return as_tokenizer_json(parse_sentencepiece(content), "library")


def _with_special_tokens(file: Table, named: Mapping[str, str]) -> Tokenizer:
    """Return the tokenizer with its special tokens for start, end and padding; add those that it lacks.

    Args:
        file: The content of tokenizer.json.
        named: The special tokens by their roles in transformers, such as bos and eos.
    """
    check_foreign_file(file)
    vocabulary, added = file["model"]["vocab"], list(file["added_tokens"])
    ids = {piece: n for n, (piece, _) in enumerate(vocabulary)} if isinstance(vocabulary, list) else dict(vocabulary)
    ids |= {token["content"]: token["id"] for token in added}
    if len(ids) > MOST_PIECES:
        raise PenwrightError("it has too many tokens")
    special = {token["content"] for token in added if token["special"]}
    roles = {}
    for role, theirs in ROLES.items():
        names = [*(named[each] for each in theirs if each in named), *NAMES[role]]
        name = next((each for each in names if each in special), NAMES[role][0])
        if name not in special:
            ids.setdefault(name, 1 + max(ids.values(), default=-1))
            added.append(added_token(ids[name], name))
        roles[role] = ids[name]
    return ForeignTokenizer(
        {**file, "added_tokens": added, FOREIGN: Conventions(**roles).model_dump(exclude_none=True)}
    )
