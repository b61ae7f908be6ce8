"""Import and export of tokenizers in GGUF files: SentencePiece, and byte-level BPE with a known word-splitting rule."""

import json
from collections.abc import Mapping
from typing import Any

from penwright.errors import PenwrightError
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.checks import FOREIGN, parts_of
from penwright.tokenizers.foreign import SPACE, Conventions, ForeignTokenizer
from penwright.tokenizers.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    SentencePiece,
    SentencePieceModel,
    added_token,
    as_tokenizer_json,
)

Table = dict[str, Any]
KEY, CHAT_TEMPLATE = "tokenizer.ggml.", "tokenizer.chat_template"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _sequence(*parts: Table) -> Table:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _split(pattern: str) -> Table:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
GPT2_WORDS = BYTES | {"use_regex": True}
WORDS: dict[str, Table] = {  # llama.cpp's rules for splitting text into words, by name
    "gpt-2": GPT2_WORDS,
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, GPT2_WORDS),
    "llama-bpe": _sequence(_split(LLAMA3), BYTES),
    "qwen2": _sequence(_split(QWEN2), BYTES),
    "tekken": _sequence(_split(TEKKEN), BYTES),
}
TWINS = {  # further names in llama.cpp for rules in WORDS
    "gpt-2": "default phi-2 mpt olmo jais exaone4 gigachat a.x-4.0 mellum trillion granite-docling modern-bert",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    "qwen2": "deepseek-r1-qwen kormo megrez stablelm2 hunyuan grok-2",
}
ALIASES = {name: words for words, names in TWINS.items() for name in names.split()}
USUAL = {"qwen2": "qwen2", "qwen3": "qwen2", "gpt2": "gpt-2"}  # the rules of architectures, for files without a rule
LLAMA_3_SIZE = 128_000  # Llama models with larger vocabularies of byte-level BPE use the rule of Llama 3
BEGINNING = ("llama-bpe", "tekken")  # by default, models with these rules begin texts with the start token


def read_tokenizer(metadata: Mapping[str, Any]) -> ForeignTokenizer:
    """Return the tokenizer of a GGUF file.

    Raises PenwrightError, naming the metadata key, if the tokenizer is not supported.
    """
    try:
        model = metadata.get(f"{KEY}model")
        if model == "gpt2":
            file, begins = _byte_level(metadata), words_in(metadata) in BEGINNING
        elif model == "llama":
            file, begins = _sentencepiece(metadata), True
        else:
            raise PenwrightError(f"{KEY}model = {model!r} is not supported, only 'gpt2' and 'llama' are")
        return _with_conventions(metadata, file, begins)
    except PenwrightError:
        raise
    except KeyError as error:
        raise PenwrightError(f"the key {error.args[0]} is missing. Download the file again") from None
    except Exception as error:  # the tokenizers library raises plain Exception
        raise PenwrightError(f"the tokenizer is damaged or not supported: {error}") from error


def _byte_level(metadata: Mapping[str, Any]) -> Table:
    words = words_in(metadata)
    if words not in WORDS:
        raise PenwrightError(
            f"{KEY}pre = {words!r} is not supported. Supported values: {', '.join(sorted({*WORDS, *ALIASES}))}"
        )
    tokens, types = metadata[f"{KEY}tokens"], metadata[f"{KEY}token_type"]
    added = [
        added_token(i, tokens[i], kind == CONTROL) for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if _stated_words(metadata) == "qwen2" else None,
        "pre_tokenizer": WORDS[words],
        "decoder": BYTES,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": metadata[f"{KEY}merges"],
            "ignore_merges": words in BEGINNING,
        },
    }


def words_in(metadata: Mapping[str, Any]) -> str:
    """Return the llama.cpp name of the word-splitting rule of a GGUF file's tokenizer (see WORDS)."""
    pre = _stated_words(metadata)
    return ALIASES.get(pre, pre)


def _stated_words(metadata: Mapping[str, Any]) -> str:
    """Return the word-splitting rule that the file states, or else the usual one of its architecture."""
    pre, name = str(metadata.get(f"{KEY}pre", "default")), str(metadata.get("general.architecture"))
    if pre != "default":
        return pre
    is_llama_3 = name == "llama" and len(metadata[f"{KEY}tokens"]) > LLAMA_3_SIZE
    return "llama-bpe" if is_llama_3 else USUAL.get(name, pre)


def is_guessed(metadata: Mapping[str, Any]) -> bool:
    """Return whether nothing in the file determines how its byte-level BPE splits words."""
    return metadata.get(f"{KEY}model") == "gpt2" and _stated_words(metadata) == "default"


def _sentencepiece(metadata: Mapping[str, Any]) -> Table:
    parts = (metadata[f"{KEY}{name}"] for name in ("tokens", "scores", "token_type"))
    pieces = [SentencePiece(*piece) for piece in zip(*parts, strict=True)]
    adds_prefix = metadata.get(f"{KEY}add_space_prefix", True)
    return as_tokenizer_json(SentencePieceModel(pieces, adds_prefix=adds_prefix, trims=False), "library")


def _with_conventions(metadata: Mapping[str, Any], file: Table, begins: bool) -> ForeignTokenizer:
    end = _token(metadata, "eos")
    start = _token(metadata, "bos", end)
    begins = metadata.get(f"{KEY}add_bos_token", begins)
    if begins:
        name = metadata[f"{KEY}tokens"][start]
        single = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        known = {name: {"id": name, "ids": [start], "tokens": [name]}}
        file["post_processor"] = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": single,
            "special_tokens": known,
        }
    ends = {_token(metadata, role, end) for role in ("eot", "eom")} - {end}  # end-of-turn tokens
    pad = _token(metadata, "padding", end)
    conventions = Conventions(pad=pad, start=start, end=end, ends=tuple(sorted(ends)), begins=begins)
    return ForeignTokenizer({**file, FOREIGN: conventions.model_dump(exclude_none=True)})


def _token(metadata: Mapping[str, Any], role: str, default: int | None = None) -> int:
    token = metadata.get(f"{KEY}{role}_token_id", default)
    if type(token) is not int or not 0 <= token < len(metadata[f"{KEY}tokens"]):
        raise PenwrightError(f"{KEY}{role}_token_id = {token!r} is not the id of a token")
    return token


def special_piece(metadata: Mapping[str, Any], role: str) -> str:
    """Return the text of the special token with this role, such as bos; "" if there is none."""
    token, pieces = metadata.get(f"{KEY}{role}_token_id"), metadata[f"{KEY}tokens"]
    return str(pieces[token]) if isinstance(token, int) and 0 <= token < len(pieces) else ""


def words_of(tokenizer: Tokenizer) -> str | None:
    """Return llama.cpp's name for the rule by which a tokenizer splits text into words; None for unknown rules."""
    splitter = _without_offsets(tokenizer.splitter)
    return next((name for name, rule in WORDS.items() if _without_offsets(rule) == splitter), None)


def _without_offsets(rule: Any) -> Any:
    """Return the definition of a pre-tokenizer, omitting keys that do not affect the tokens."""
    if isinstance(rule, dict):
        return {key: _without_offsets(value) for key, value in rule.items() if key != "trim_offsets"}
    return [_without_offsets(each) for each in rule] if isinstance(rule, list) else rule


def describe_tokenizer(writer: Any, tokenizer: Tokenizer, end_of_answer: int) -> None:
    """Write a tokenizer to a GGUF file. Raises PenwrightError if llama.cpp does not support it."""
    pieces, types = tokenizer.pieces, [_type(tokenizer, token) for token in range(tokenizer.vocab_size)]
    if tokenizer.kind == "sentencepiece" and tokenizer.merges:
        ranks = {left + right: rank for rank, (left, right) in reversed(list(enumerate(tokenizer.merges, 1)))}
        _require_normalizer(tokenizer, [{"type": "Prepend", "prepend": SPACE}, SPACES])
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([float(-ranks.get(piece, 0)) for piece in pieces])
        writer.add_add_space_prefix(tokenizer.prefix_space)
    else:
        words = words_of(tokenizer)
        if tokenizer.kind != "bpe" or words is None:
            raise PenwrightError(_unsupported(tokenizer))
        _require_normalizer(tokenizer, [{"type": "NFC"}] if words == "qwen2" else [])
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(words)
        writer.add_token_merges([" ".join(pair) for pair in tokenizer.merges])
    writer.add_token_list(pieces)
    writer.add_token_types(types)
    writer.add_pad_token_id(tokenizer.pad_id)
    writer.add_bos_token_id(tokenizer.start_id)
    writer.add_eos_token_id(tokenizer.end_id)
    ends = dict.fromkeys([end_of_answer, *tokenizer.end_ids])
    others = [token for token in ends if token != tokenizer.end_id]
    for add, token in zip((writer.add_eot_token_id, writer.add_eom_token_id), others, strict=False):
        add(token)
    writer.add_add_bos_token(tokenizer.begins)


def _require_normalizer(tokenizer: Tokenizer, known: list[Table]) -> None:
    """Raise PenwrightError if the tokenizer changes texts in steps that llama.cpp does not take."""
    steps = parts_of(json.loads(tokenizer.library.to_str()), "normalizer")
    if others := [step["type"] for step in steps if step not in known]:
        raise PenwrightError(
            f"llama.cpp would not normalize texts as this model's tokenizer does ({', '.join(others)}), so its tokens "
            "would differ. The model can be exported to huggingface"
        )


def _unsupported(tokenizer: Tokenizer) -> str:
    if tokenizer.kind != "bpe":
        return (
            f"llama.cpp does not support the tokenizer of type {tokenizer.kind}. Only models trained with "
            '--set tokenizer.type="bpe" can be exported to gguf'
        )
    return (
        "llama.cpp would split words at vowel signs and combining accents, unlike this model's tokenizer. "
        "The model can be exported to huggingface or ctranslate2"
        if tokenizer.joins_marks
        else "llama.cpp does not know the rule by which this model's tokenizer splits text into words. "
        "The model can be exported to huggingface"
    )


def _type(tokenizer: Tokenizer, token: int) -> int:
    piece = tokenizer.pieces[token]
    if not tokenizer.token_bytes(token) and token != tokenizer.unknown_id:
        return CONTROL
    if tokenizer.kind == "sentencepiece" and len(piece) == 6 and piece.startswith("<0x"):
        return BYTE
    return USER_DEFINED if token in tokenizer.user_defined else NORMAL
