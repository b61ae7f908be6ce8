"""Command-line options for the `[decoding]` settings, generated from the settings class and its comments."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import typer

from penwright.cli.options import without_none
from penwright.config import FLAGS, DecodingSettings
from penwright.config.descriptions import field_comments
from penwright.config.recipe import LARGEST, off
from penwright.errors import UsageError

FLAG_OF = {name: flag for flag, name in FLAGS.items()}  # setting name -> flag name, if the two differ
METAVARS = {int: "N", float: "X", str: "TEXT", tuple: "TEXT", dict: "TEXT=SCORE"}  # type -> its values in the help

Command = Callable[..., None]


class _Kind(NamedTuple):
    """The type of a setting, and its limits."""

    type: type
    metadata: tuple[Any, ...]


def flag_of(name: str) -> str:
    """Return the command-line option for a setting, such as `--top-p` for `top_p`."""
    return f"--{FLAG_OF.get(name, name).replace('_', '-')}"


def with_settings(names: Sequence[str], *, before: str, note: str = "") -> Callable[[Command], Command]:
    """Return a decorator that adds an option for each of these settings to a command with the parameter `**settings`.

    An option that is not given is None; `given_settings` drops it. In the help, these options come before the
    option of the parameter `before`, and `note` is appended to the text of each.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        place = next(number for number, each in enumerate(parameters) if each.name == before)
        parameters[place:place] = [
            parameters[place].replace(name=name, default=None, annotation=_option(name, note)) for name in names
        ]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
        return command

    return decorate


def given_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given as options, converted to the types of the settings."""
    return {name: _parsed(name, value) for name, value in without_none(options).items()}


def _option(name: str, note: str) -> Any:
    """Return the annotated type of the option for a setting."""
    kind = _kind(name)
    comment = field_comments(DecodingSettings)[name]
    is_list = kind.type in (tuple, dict)
    help_text = " ".join(filter(None, (f"{comment[0].upper()}{comment[1:]}.", note, "Repeatable." if is_list else "")))
    named = re.search(r"\b[KNP]\b", comment)  # the comment may name the value, such as P
    metavar = named[0] if named else METAVARS[kind.type]
    limits: Any = dict(_limits(kind))
    made = typer.Option(flag_of(name), help=help_text, metavar=metavar, **limits)
    return Annotated[list[str] | None if is_list else kind.type | None, made]


def _parsed(name: str, value: Any) -> Any:
    """Convert the value of an option to the type of its setting. For a table, each value has the form TEXT=SCORE."""
    if _kind(name).type is not dict:
        return value
    scores = {}
    for text in value:
        phrase, separator, score = text.rpartition("=")
        try:
            scores[phrase] = float(score)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"{flag_of(name)} '{text}' is not of the form TEXT=SCORE. Write, for example, dragon=2.5")
    return scores


def _kind(name: str) -> _Kind:
    field = DecodingSettings.model_fields[name]
    return _unwrapped(field.annotation, tuple(field.metadata))


def _unwrapped(annotation: Any, metadata: tuple[Any, ...]) -> _Kind:
    """Return the type inside `Annotated` and `| None`, and the metadata collected from them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _unwrapped(arguments[0], (*metadata, *arguments[1:]))
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return _unwrapped(inner, metadata)
    return _Kind(origin or annotation, metadata)


def _limits(kind: _Kind) -> Iterator[tuple[str, float]]:
    """Yield the limits that typer checks and shows in the help. The settings class checks all limits again."""
    flat = [each for item in kind.metadata for each in (item, *getattr(item, "metadata", ()))]
    bounds = {name: getattr(each, name) for each in flat for name in ("ge", "gt", "le") if hasattr(each, name)}
    may_be_off = any(getattr(each, "func", None) is off for each in flat)  # whether 0 and -1 turn the setting off
    low = bounds.get("ge", bounds["gt"] + 1 if kind.type is int and "gt" in bounds else None)
    if low is not None and not may_be_off:
        yield "min", low
    if "le" in bounds and bounds["le"] < LARGEST:
        yield "max", bounds["le"]
