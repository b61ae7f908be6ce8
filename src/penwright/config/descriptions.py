"""Descriptions of settings: type, default and meaning of each key, read from the classes and their comments."""

import ast
import inspect
import json
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from io import StringIO
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from penwright.config.recipe import one_or_more
from penwright.config.settings import settings_in

REQUIRED = "required"
TYPES = {int: "integer", float: "float", str: "string", bool: "boolean"}  # names of the types in TOML
LARGE = 1 << 20  # limits above this are written as powers of two


@dataclass(frozen=True)
class SettingDescription:
    """The description of one key of a table."""

    name: str  # full name, for example "model.d_model"
    type: str
    default: str  # value in TOML; "None" for a setting that is off; "required" if there is no default
    meaning: str


@dataclass(frozen=True)
class TableDescription:
    """The description of a table of settings, or of one variant of a table."""

    name: str  # name of the table, for example "model"; empty for keys outside tables
    summary: str
    variant: str  # the value of `type` that selects this variant; empty if the table has no variants
    is_default: bool  # whether this variant is the default
    settings: tuple[SettingDescription, ...]


def explain(kind: type[BaseModel]) -> str:
    """List every key of these settings, table by table, with its default and its meaning."""
    return "\n".join(line for table in describe(kind) for line in _as_toml(table))


def describe(
    kind: type[BaseModel], name: str = "", default: object = None, *, is_variant: bool = False
) -> Iterator[TableDescription]:
    """Yield the tables of these settings; the keys outside tables come first.

    `default` is the default of the whole table, if there is one. It may differ from the defaults of the class.
    """
    base = default if isinstance(default, kind) else None
    meanings = {"type": "value that selects this variant" if is_variant else "the only choice"} | field_comments(kind)
    own, tables = [], []
    for key, field in kind.model_fields.items():
        full = f"{name}.{field.alias or key}".strip(".")
        value = getattr(base, key) if base else _default_of(field)
        inner = settings_in(field.annotation)
        tables += [table for each in inner for table in describe(each, full, value, is_variant=len(inner) > 1)]
        if not inner:
            is_required = field.is_required() and base is None
            shown = REQUIRED if is_required else _toml_value(value)
            own.append(SettingDescription(full, type_in_words(field), shown, meanings.get(key, "")))
    summary = (kind.__doc__ or "").split("\n")[0]
    variant = str(kind.model_fields["type"].default) if is_variant else ""
    yield TableDescription(name, summary, variant, is_variant and base is not None, tuple(own))
    yield from tables


def type_in_words(field: FieldInfo) -> str:
    """Describe the type of a field, for example as "integer > 0" or "list of strings"."""
    return _in_words(field.annotation, tuple(field.metadata))


@cache
def field_comments(kind: type) -> dict[str, str]:
    """Return the source comment of each annotated field of a class and its bases."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is not BaseModel and "__annotations__" in vars(base):
            comments |= _comments_in(inspect.cleandoc("\n" + inspect.getsource(base)))
    return comments


def _comments_in(source: str) -> dict[str, str]:
    """Return the comment of each annotated field in the source of a class. A field may span several lines."""
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    by_line = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    fields = [node for node in body.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    comments = {
        node.target.id: " ".join(by_line[n] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in by_line)
        for node in fields
        if isinstance(node.target, ast.Name)
    }
    return {name: comment for name, comment in comments.items() if comment}


def _default_of(field: FieldInfo) -> object:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _in_words(annotation: object, metadata: tuple[Any, ...] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _in_words(arguments[0], (*arguments[1:], *metadata))
    if origin in (Union, UnionType):
        return " or ".join(_in_words(each, metadata) for each in arguments if each is not NoneType)
    if origin is Literal:
        return " or ".join(json.dumps(value) for value in arguments)
    if origin is dict:
        return f"table of {_plural(_in_words(arguments[1]))}"
    if origin is tuple:
        return _list_in_words(arguments, metadata)
    return " ".join([TYPES[annotation], ", ".join(_limits(metadata))]).strip()  # type: ignore[index]  # a key of TYPES


def _list_in_words(arguments: tuple[Any, ...], metadata: tuple[Any, ...]) -> str:
    items = _plural(_in_words(arguments[0]))
    if arguments[-1] is not Ellipsis:
        return f"list of {len(arguments)} {items}"
    takes_one = any(isinstance(each, BeforeValidator) and each.func is one_or_more for each in metadata)
    return f"list of {items}{', or a single one' if takes_one else ''}"


def _plural(words: str) -> str:
    """Return the plural of a type: "floats > 0" for "float > 0", "strings or integers" for "string or integer"."""
    first, _, rest = words.partition(" ")
    return f"{first}s or {_plural(rest[3:])}" if rest.startswith("or ") else f"{first}s {rest}".strip()


def _limits(metadata: tuple[Any, ...]) -> Iterator[str]:
    """Yield the limits in the metadata of a numeric field, for example "> 0"."""
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _limits(tuple(each.metadata))
        for sign, name in ((">", "gt"), ("≥", "ge"), ("<", "lt"), ("≤", "le")):
            limit = getattr(each, name, None)
            if limit is not None:
                yield f"{sign} {_number(limit)}"


def _number(value: int | float) -> str:
    """Format a number; use a power of two for a large one if possible."""
    exponent = int(value + 1).bit_length() - 1
    if value < LARGE or value not in (2**exponent, 2**exponent - 1):
        return f"{value:g}"
    return f"2^{exponent}" if value == 2**exponent else f"2^{exponent} - 1"


def _toml_value(value: object) -> str:
    """Format a default value in TOML. None, which TOML cannot express, becomes "None"."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, bool | str | dict):
        return json.dumps(value)
    return str(value)


def _as_toml(table: TableDescription) -> Iterator[str]:
    summary = table.summary + (" The default." if table.is_default else "")
    yield f"[{table.name}]  # {summary}" if table.name else f"# {summary}"
    for setting in table.settings:
        key = setting.name.rpartition(".")[2]
        yield f"{key} = {setting.default}{f'  # {setting.meaning}' if setting.meaning else ''}"
    yield ""
