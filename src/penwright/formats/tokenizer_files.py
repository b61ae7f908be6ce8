"""The tokenizer.json of a folder in the layout of the Hugging Face Hub, or an equivalent built from other files."""

from pathlib import Path
from typing import Any

from penwright.errors import PenwrightError
from penwright.formats.huggingface_files import TOKENIZER_FILES, read_content, read_optional
from penwright.storage import MAX_BYTES, parse_json
from penwright.tokenizers.checks import parts_of
from penwright.tokenizers.sentencepiece import added_token, as_tokenizer_json, parse_sentencepiece

Table = dict[str, Any]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CASED = 0.01  # minimum share of pieces with capital letters in a vocabulary of cased text
SENTENCEPIECE = ("source.spm", "sentencepiece.bpe.model", "tokenizer.model", "spiece.model")
SENTENCEPIECE_CLASSES = ("Llama", "CodeLlama", "Gemma", "T5", "Marian", "M2M100")
CLASSES = {  # for each file, the tokenizer classes of transformers that a tokenizer.json is built for
    "vocab.txt": ("Bert", "DistilBert", "Electra", "MobileBert"),
    "merges.txt": ("GPT2", "Roberta"),
    **dict.fromkeys(SENTENCEPIECE, SENTENCEPIECE_CLASSES),
}
_BERT_KEYS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
OVERRIDES = {  # for each class of transformers: {key of tokenizer_config.json: key of tokenizer.json that it overrides}
    **dict.fromkeys(("Bert", "DistilBert"), ("normalizer", "BertNormalizer", _BERT_KEYS)),
    **dict.fromkeys(
        ("GPT2", "Roberta", "Qwen2"), ("pre_tokenizer", "ByteLevel", {"add_prefix_space": "add_prefix_space"})
    ),
}


def tokenizer_json(folder: Path, config: Table) -> Table:
    """Return the tokenizer.json of a folder, or an equivalent that is built from other files."""
    content = read_content(folder, "tokenizer.json")
    if content is not None:
        file = parse_tokenizer_json(content)
        _override(file, read_optional(folder, "tokenizer_config.json"), config)
        return file
    file = _built(folder, config)
    return file if numbers_pieces(folder, file) else _with_added_tokens(folder, file)


def parse_tokenizer_json(content: bytes) -> Table:
    """Return the content of a tokenizer.json without truncation and padding, and with the type of its model.

    Files that are older than this key, such as that of GPT-2, lack the type.
    """
    file = parse_json(content) | {"truncation": None, "padding": None}
    model = file.get("model")
    if isinstance(model, dict) and "vocab" in model and "type" not in model:
        kind = "Unigram" if isinstance(model["vocab"], list) else "BPE" if "merges" in model else "WordPiece"
        file["model"] = {"type": kind, **model}
    return file


def tokenizer_class(settings: Table, config: Table) -> str:
    """Return the tokenizer class of transformers, without its suffix: Llama for LlamaTokenizerFast."""
    name = settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
    return str(name).removesuffix("Fast").removesuffix("Tokenizer")


def _override(file: Table, settings: Table, config: Table) -> None:
    """Change the settings in a tokenizer.json to those of tokenizer_config.json, as some classes of transformers do."""
    role, kind, keys = OVERRIDES.get(tokenizer_class(settings, config), ("normalizer", "", {}))
    for step in parts_of(file, role):
        if step["type"] == kind and isinstance(step, dict):
            step.update({ours: settings[key] for key, ours in keys.items() if isinstance(settings.get(key), bool)})


def _built(folder: Path, config: Table) -> Table:
    """Return a tokenizer.json that is built from other files."""
    settings = read_optional(folder, "tokenizer_config.json")
    name = next((name for name in CLASSES if (folder / name).is_file()), "")
    if not name:
        raise PenwrightError(
            f"there is no tokenizer. Penwright reads {', '.join(TOKENIZER_FILES[:2])} and SentencePiece models"
        )
    _require_known_class(settings, config, name)
    content = read_content(folder, name) or b""
    if name == "vocab.txt":
        return wordpiece(content.decode(), settings)
    if name == "merges.txt":
        return _byte_level(folder, config, settings)
    is_legacy = name != "tokenizer.model" or settings.get("legacy", False)  # as in LlamaTokenizer
    return as_tokenizer_json(parse_sentencepiece(content), "always" if is_legacy else "first")


def _require_known_class(settings: Table, config: Table, file: str) -> None:
    """Raise PenwrightError if the tokenizer is of a class that reads this file in another way than Penwright."""
    usual = "XLMRobertaTokenizer" if config.get("model_type") == "xlm-roberta" else None
    name = settings.get("tokenizer_class") or config.get("tokenizer_class") or usual
    if name and str(name).removesuffix("Fast").removesuffix("Tokenizer") not in CLASSES[file]:
        raise PenwrightError(
            f"there is no tokenizer.json, which Penwright needs for the tokenizer_class {name}. If transformers has "
            "a fast tokenizer of this class, write one: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )


def _with_added_tokens(folder: Path, file: Table) -> Table:
    """Return the tokenizer.json with the tokens that added_tokens.json and tokenizer_config.json add to it.

    Raises PenwrightError if the ids of added tokens do not follow one another.
    """
    others = read_optional(folder, "special_tokens_map.json").get("additional_special_tokens") or ()
    special = {*special_names(folder).values(), *map(token_name, others)}
    numbers = added_numbers(folder)
    entries = {name: {"special": name in special, "normalized": name not in special} for name in numbers}
    entries |= {entry["content"]: entry for entry in _decoder(folder).values()}
    known, added = ids_of(file), {token["content"]: token for token in file["added_tokens"]}
    for name in sorted(numbers, key=numbers.__getitem__):
        if numbers[name] != known.setdefault(name, 1 + max(known.values())):
            raise PenwrightError(
                f"the token {name!r} has the id {numbers[name]} in added_tokens.json or tokenizer_config.json, but "
                f"should have {known[name]}. Save the tokenizer with transformers, which writes a tokenizer.json"
            )
        token = added_token(numbers[name], name)
        added.setdefault(name, token | {key: entries[name].get(key, False) for key in token.keys() - {"id", "content"}})
    return {**file, "added_tokens": list(added.values())}


def added_numbers(folder: Path) -> dict[str, int]:
    """Return the ids of the tokens that added_tokens.json and tokenizer_config.json add to a tokenizer."""
    numbers = read_optional(folder, "added_tokens.json")
    return numbers | {entry["content"]: int(number) for number, entry in _decoder(folder).items()}


def _decoder(folder: Path) -> Table:
    decoder: Table = read_optional(folder, "tokenizer_config.json").get("added_tokens_decoder") or {}
    return decoder


def ids_of(file: Table) -> dict[str, int]:
    """Return the ids of the pieces of a tokenizer.json."""
    vocabulary = file["model"]["vocab"]
    return {piece: n for n, (piece, _) in enumerate(vocabulary)} if isinstance(vocabulary, list) else {**vocabulary}


def wordpiece(vocabulary: str, settings: Table) -> Table:
    """Build a tokenizer.json from a vocab.txt and the settings in tokenizer_config.json.

    Without `do_lower_case`, texts are lower-cased unless at least the fraction CASED of the pieces has capital letters.
    """
    pieces = vocabulary.removesuffix("\n").split("\n")
    ids = {piece.removesuffix("\r"): number for number, piece in enumerate(pieces)}
    unknown = token_name(settings.get("unk_token", "[UNK]"))
    n_capital = sum(piece != piece.lower() and piece[0] not in "[<" for piece in ids if piece)  # "[" as in [CLS]
    specials = [
        token_name(settings.get(f"{role}_token", f"[{role.upper()}]")) for role in ("pad", "unk", "cls", "sep", "mask")
    ]
    return {
        "version": "1.0",
        "added_tokens": [added_token(ids[piece], piece) for piece in specials if piece in ids],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", n_capital < CASED * len(ids)),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def _byte_level(folder: Path, config: Table, settings: Table) -> Table:
    if config.get("model_type") not in ("gpt2", "roberta"):
        raise PenwrightError(
            "there is no tokenizer.json, and vocab.json does not define how a model of type "
            f"{config.get('model_type')} splits words"
        )
    ids, merges = read_optional(folder, "vocab.json", MAX_BYTES), (read_content(folder, "merges.txt") or b"").decode()
    lines = [line for line in merges.split("\n") if line and not line.startswith("#version")]
    special = special_names(folder)
    return {
        "version": "1.0",
        "added_tokens": [added_token(ids[name], name) for name in dict.fromkeys(special.values()) if name in ids],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": bool(settings.get("add_prefix_space", False))},
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": ids, "merges": lines},
    }


def numbers_pieces(folder: Path, file: Table) -> bool:
    """Return whether vocab.json, and not the SentencePiece model, determines the ids of the pieces."""
    return (folder / "vocab.json").exists() and file["decoder"]["type"] == "Metaspace"


def special_names(folder: Path) -> dict[str, str]:
    """Return the special tokens by role, such as bos and eos."""
    tables = [read_optional(folder, name) for name in ("special_tokens_map.json", "tokenizer_config.json")]
    roles = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
    return {
        role: token_name(table[f"{role}_token"]) for role in roles for table in tables if table.get(f"{role}_token")
    }


def token_name(token: Any) -> str:
    """Return the text of a special token, which may be stored as a table."""
    return str(token.get("content")) if isinstance(token, dict) else str(token)
