"""A reader of tokenizers in the layout of the Hugging Face Hub: tokenizer.json, vocab.txt, SentencePiece models."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer

from penwright.config import Task
from penwright.errors import PenwrightError
from penwright.formats.huggingface_files import OWN_TOKENIZER, read_content, read_optional
from penwright.formats.tokenizer_files import (
    SENTENCEPIECE_CLASSES,
    added_numbers,
    ids_of,
    numbers_pieces,
    special_names,
    token_name,
    tokenizer_class,
    tokenizer_json,
)
from penwright.languages import Languages
from penwright.storage import MAX_BYTES, MOST_IN_SMALL, parse_json
from penwright.tokenizers.checks import FOREIGN, check_foreign_file, no_panic
from penwright.tokenizers.foreign import DAMAGED, Conventions, ForeignTokenizer
from penwright.tokenizers.sentencepiece import as_tokenizer_json, parse_sentencepiece

Table = dict[str, Any]
USUAL = {role: f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}  # special tokens of BERT
TEMPLATE = "chat_template.jinja"
TWO_ENDS = ("roberta", "xlm-roberta")  # model types whose pairs are <s> a </s></s> b </s>
ROLES: dict[Task, dict[str, tuple[str, ...]]] = {  # roles of the special tokens that begin and end a text
    "generate": {"start": ("bos", "eos"), "end": ("eos",), "pad": ("pad", "eos")},
    "classify": {"start": ("cls", "bos"), "end": ("sep", "eos"), "pad": ("pad", "unk")},
    "translate": {"start": ("decoder_start",), "end": ("eos",), "pad": ("pad",)},
}


def read_tokenizer(folder: Path, config: Table, task: Task, languages: Languages | None) -> ForeignTokenizer:
    """Read the tokenizer of a model. Raises PenwrightError if it is missing, damaged or not supported."""
    try:
        if (content := read_content(folder, OWN_TOKENIZER)) is not None:
            return ForeignTokenizer(parse_json(content))
        file = tokenizer_json(folder, config)
        return _with_conventions(folder, file, config, task, languages)
    except PenwrightError:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception
        raise PenwrightError(f"the tokenizer cannot be used: {error}") from error


def _with_conventions(
    folder: Path, file: Table, config: Table, task: Task, languages: Languages | None
) -> ForeignTokenizer:
    """Return the tokenizer with the special tokens that its model needs."""
    check_foreign_file(file)
    ids, extra = _model_ids(folder, file)
    added = {token["content"]: token["id"] for token in file["added_tokens"]}
    known = {**ids_of(file), **added}
    if ids is not None:
        known = {piece: ids[number] for piece, number in known.items()} | extra["extra"]
    names = USUAL | special_names(folder)
    special = {role: known[name] for role, name in names.items() if name in known}
    special_ids = {role: _special_id(task, role, special, config, {*known.values()}) for role in ROLES[task]}
    settings = read_optional(folder, "tokenizer_config.json")
    if settings.get("legacy_behaviour") is True:  # a setting of NLLB
        raise PenwrightError(
            "tokenizer_config.json: `legacy_behaviour` is true, so the language follows the text. This is not "
            "supported. If the model was trained with the language before the text, set it to false"
        )
    ends = {*listed_ids(config.get("eos_token_id"))} & {*known.values()} if task == "generate" else set()
    conventions = Conventions(
        **special_ids,
        ends=tuple(sorted(ends - {special_ids["end"]})),
        begins=_begins(file, settings, config, special_ids["start"]) if task == "generate" else True,
        **_prefixes(config, languages, known) if task == "translate" else {},
        pair_ends=2 if config.get("model_type") in TWO_ENDS else None,
        ids=ids,
        **extra,
    )
    return ForeignTokenizer({**file, FOREIGN: conventions.model_dump(exclude_none=True)})


def _model_ids(folder: Path, file: Table) -> tuple[tuple[int, ...] | None, Table]:
    """Return the model's id for each piece, or None if the tokenizer uses the same ids.

    Also return the tokens that only the model has.
    """
    if (folder / "tokenizer.json").exists() or not numbers_pieces(folder, file):
        return None, {}
    numbers = read_optional(folder, "vocab.json", MAX_BYTES)
    languages = read_optional(folder, "special_tokens_map.json").get("additional_special_tokens") or ()  # M2M100
    added = {token_name(token): len(numbers) + place for place, token in enumerate(languages)}
    numbers = {**added, **added_numbers(folder), **numbers}
    ids, extra = _numbered(file, numbers)
    conventions: Table = {"extra": extra}
    if (content := read_content(folder, "target.spm")) is not None:
        target = as_tokenizer_json(parse_sentencepiece(content))
        target_ids, extra = _numbered(target, numbers)
        conventions["target"] = {**target, FOREIGN: {"ids": target_ids, "extra": extra}}
    return ids, conventions


def _numbered(file: Table, numbers: Mapping[str, int]) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the model's id for each piece in a tokenizer.json, and the ids of the tokens that only the model has."""
    known, unknown = ids_of(file), numbers.get("<unk>", 0)
    pieces = sorted(known, key=known.__getitem__)
    others = {piece: number for piece, number in numbers.items() if piece not in known}
    return tuple(numbers.get(piece, unknown) for piece in pieces), others


def read_template(folder: Path) -> Any:
    """Return the chat template of a model, or None. If there are several, return the one named `default`."""
    if (content := read_content(folder, TEMPLATE, MOST_IN_SMALL)) is not None:
        return content.decode("utf-8", "replace")
    template = read_optional(folder, "tokenizer_config.json").get("chat_template")
    if not isinstance(template, list):
        return template
    named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
    return named.get("default")


def _special_id(task: Task, role: str, special: Mapping[str, int], config: Table, known: Collection[int]) -> int:
    """Return the id of the token with this role (such as eos), from the settings of the tokenizer or of the model.

    Raises PenwrightError if the tokenizer has no such token. Another token can serve as padding, which models ignore.
    """
    for name in ROLES[task][role]:
        for token in listed_ids(special.get(name, config.get(f"{name}_token_id")))[:1]:
            if token in known:
                return token
            if role != "pad":
                raise PenwrightError(
                    f"{name}_token_id is {token}, but the tokenizer has no token with this id. "
                    "Add the file that defines it, such as added_tokens.json"
                )
    raise PenwrightError(f"the tokenizer has no {' or '.join(ROLES[task][role])} token, which the model needs")


def listed_ids(given: Any) -> list[int]:
    """Return the token ids in a setting, which is an id, a list of ids, or missing."""
    return [each for each in (given if isinstance(given, list) else [given]) if type(each) is int]


def _begins(file: Table, settings: Table, config: Table, start: int) -> bool:
    """Return whether the tokenizer puts the start token before a prompt.

    As in transformers, only SentencePiece classes can turn off the start token of a post-processor.
    """
    given = settings.get("add_bos_token")
    obeys = file.get("post_processor") is None or tokenizer_class(settings, config) in SENTENCEPIECE_CLASSES
    if isinstance(given, bool) and (given or obeys):
        return given
    with no_panic(ValueError(DAMAGED)):
        return start in LibraryTokenizer.from_str(json.dumps(file)).encode("a").ids[:1]


def _prefixes(config: Table, languages: Languages | None, known: Mapping[str, int]) -> Table:
    """Return the language tokens of a model, if any: __de__ (M2M100), deu_Latn (NLLB), >>deu<< (Marian)."""
    if config.get("model_type") == "marian":
        codes = [piece for piece in known if piece.startswith(">>") and piece.endswith("<<")]
        if not codes:
            return {}
        return {"source_prefix": (_language(languages and languages.target, ">>{}<<", known, "--to"),)}
    pattern = "__{}__" if "__en__" in known else "{}"
    source = _language(languages and languages.source, pattern, known, "--from")
    return {
        "source_prefix": (source,),
        "target_prefix": (_language(languages and languages.target, pattern, known, "--to"),),
    }


def _language(code: str | None, pattern: str, known: Mapping[str, int], flag: str) -> int:
    token = pattern.format(code)
    if code is None or token not in known:
        start, end = pattern.split("{}")
        codes = sorted(
            piece.removeprefix(start).removesuffix(end)
            for piece in known
            if piece.startswith(start) and piece.endswith(end) and (start or (piece[3:4] == "_" and len(piece) == 8))
        )
        problem = f"this model has no language {code}" if code else "this model translates between many languages"
        raise PenwrightError(f"{problem}. Pass {flag} with one of these codes: {', '.join(codes)}")
    return known[token]
