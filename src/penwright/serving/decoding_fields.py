"""Decoding settings from clients: converted from JSON, and limited in size."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import ValidationError

from penwright.config import DecodingSettings, with_present_names
from penwright.errors import UsageError
from penwright.serving.errors import RequestTooLarge, first_problem

OFF: Mapping[str, Collection[float]] = {  # values that other programs send to disable a setting
    "top_k": (0, -1),
    "top_n_sigma": (0, -1),
    "no_repeat_ngram": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}


class _MaxSize(NamedTuple):
    entries: int
    characters: int  # maximum number of characters of all entries together


LISTS: Mapping[str, _MaxSize] = {
    "banned_words": _MaxSize(500, 8000),
    "required_words": _MaxSize(50, 2000),
    "dry_breakers": _MaxSize(64, 1000),
    "stop": _MaxSize(16, 4000),
    "logit_bias": _MaxSize(300, 2000),
}


def decoding_settings(defaults: DecodingSettings, changes: Mapping[str, Any], where: str) -> DecodingSettings:
    """Return the defaults with these changes. Raises UsageError or RequestTooLarge, naming the setting."""
    changes, keys = with_present_names(changes, "decoding."), DecodingSettings.model_fields
    unknown = next((name for name in changes if name not in keys), None)
    if unknown is not None:
        near = get_close_matches(str(unknown), keys, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(keys)}"
        raise UsageError(f"{where} has no key '{str(unknown)[:40]}': {hint}")
    for name, most in LISTS.items():
        _check_size(f"{where}.{name}", changes.get(name), most)
    table = {**defaults.model_dump(), **{name: _plain(name, value) for name, value in changes.items()}}
    try:
        return DecodingSettings.model_validate(table, strict=True)
    except ValidationError as error:
        place, reason = first_problem(error.errors(include_url=False), table)
        raise UsageError(f"{where}.{place}: {reason}") from None


def is_off(name: str, value: object) -> bool:
    """Return whether this value disables the setting."""
    return type(value) in (int, float) and value in OFF.get(name, ())


def _plain(name: str, value: Any) -> Any:
    """Convert a JSON value to the setting's type: a list to a tuple, and a value that disables the setting to None."""
    if is_off(name, value):
        return None
    return tuple(value) if isinstance(value, list) else value


def _check_size(name: str, given: object, most: _MaxSize) -> None:
    if not isinstance(given, list | dict):
        return
    if len(given) > most.entries:
        raise RequestTooLarge(
            f"{name} has {len(given):,} entries, but this server accepts at most {most.entries}. Send fewer"
        )
    n = sum(len(each) for each in given if isinstance(each, str))
    if n > most.characters:
        raise RequestTooLarge(
            f"{name} has {n:,} characters in total, but this server accepts at most {most.characters:,}. Send fewer"
        )
