"""Export of tokenizers to the transformers library."""

import re
from pathlib import Path

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.processors import TemplateProcessing

from penwright.config import ChatSettings
from penwright.formats.export import write_table
from penwright.formats.huggingface_files import OWN_TOKENIZER
from penwright.model import Model
from penwright.model.transformer import DecoderOnly, EncoderOnly
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.sentencepiece import as_protobuf, from_tokenizer_json

LANGUAGE = re.compile(r"__\w+__")  # language tokens of M2M100


def save_tokenizer(
    tokenizer: Tokenizer, folder: Path, model: Model, chat: ChatSettings | None, model_type: str
) -> None:
    """Write the tokenizer for transformers."""
    if not tokenizer.is_plain and isinstance(tokenizer, ForeignTokenizer):
        _save_sentencepiece(tokenizer, folder, model_type)
        return
    start, end, pad = (tokenizer.pieces[token] for token in (tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id))
    _with_special_tokens(tokenizer, model).save(str(folder / "tokenizer.json"))
    special: dict[str, object] = {"bos_token": start, "eos_token": end, "pad_token": pad}
    if isinstance(model, EncoderOnly):
        special = {"cls_token": start, "sep_token": end, "pad_token": pad}
    if tokenizer.unknown_id is not None:
        special["unk_token"] = tokenizer.pieces[tokenizer.unknown_id]
    if isinstance(model, DecoderOnly):
        special["add_bos_token"] = tokenizer.begins
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings["model_max_length"] = model.settings.context_length
    settings |= {"clean_up_tokenization_spaces": False}
    types = ["token_type_ids"] if model.settings.token_types == 2 else []
    settings["model_input_names"] = ["input_ids", *types, "attention_mask"]
    if chat is not None:
        settings["chat_template"] = chat.template
    # Encode "</s>" inside a text as plain text, unless a template names special tokens, which must not be split.
    if chat is None or not any(name in chat.template for name in (*tokenizer.special_ids, "_token")):
        settings["split_special_tokens"] = True
    write_table(folder / "tokenizer_config.json", {**settings, **special})


def _with_special_tokens(tokenizer: Tokenizer, model: Model) -> LibraryTokenizer:
    """Return the library's tokenizer, set up to add the special tokens that the model expects around a text."""
    library = tokenizer.library
    if isinstance(model, DecoderOnly):
        if isinstance(tokenizer, ForeignTokenizer):  # its own file may add the start token that the model does without
            start = [tokenizer.pieces[tokenizer.start_id]] if tokenizer.begins else []
            library.post_processor = TemplateProcessing(
                single=[*start, "$A"],
                pair=[*start, "$A", "$B:1"],
                special_tokens=[(piece, tokenizer.start_id) for piece in start],
            )
        return library
    before = [tokenizer.start_id] if isinstance(model, EncoderOnly) else tokenizer.source(())[:-1]
    end, types = tokenizer.pieces[tokenizer.end_id], ":1" if model.settings.token_types == 2 else ""
    single = [*(tokenizer.pieces[token] for token in before), "$A", end]
    library.post_processor = TemplateProcessing(
        single=single,
        pair=[*single, *[end] * (tokenizer.pair_ends - 1), f"$B{types}", f"{end}{types}"],
        special_tokens=[(tokenizer.pieces[token], token) for token in (*before, tokenizer.end_id)],
    )
    return library


def _save_sentencepiece(tokenizer: ForeignTokenizer, folder: Path, model_type: str) -> None:
    """Write the tokenizer files of a Marian or M2M100 model for transformers, and OWN_TOKENIZER for Penwright."""
    tokenizer.save(folder / OWN_TOKENIZER)
    target = tokenizer.target if isinstance(tokenizer.target, ForeignTokenizer) else tokenizer
    sides = {"source.spm": tokenizer, "target.spm": target}
    if model_type == "m2m_100":
        sides = {"sentencepiece.bpe.model": tokenizer}
    for name, side in sides.items():
        (folder / name).write_bytes(as_protobuf(from_tokenizer_json(side.plain_file)))
    ids = {piece: token for each in sides.values() for token, piece in enumerate(each.pieces) if each.has(token)}
    languages = [piece for piece in ids if LANGUAGE.fullmatch(piece)] if model_type == "m2m_100" else []
    write_table(folder / "vocab.json", {piece: token for piece, token in ids.items() if piece not in languages})
    special: dict[str, object] = {"eos_token": tokenizer.pieces[tokenizer.end_id], "unk_token": "<unk>"}
    special["pad_token"] = tokenizer.pieces[tokenizer.pad_id]
    if languages:
        chosen = (*tokenizer.conventions.source_prefix, *tokenizer.conventions.target_prefix)
        codes = [tokenizer.pieces[token].strip("_") for token in chosen]
        special |= dict(zip(("src_lang", "tgt_lang"), codes, strict=False))
        write_table(folder / "special_tokens_map.json", {"additional_special_tokens": languages})
    classes = {"m2m_100": "M2M100Tokenizer", "marian": "MarianTokenizer"}
    write_table(folder / "tokenizer_config.json", {"tokenizer_class": classes[model_type], **special})
