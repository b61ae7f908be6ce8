"""The base class of all settings, with TOML input and output, overrides, and errors that suggest the closest key."""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin
from warnings import warn

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from penwright.errors import PenwrightError, PenwrightWarning, UsageError

Table = dict[str, Any]  # a TOML table in Python; pydantic checks the types of its values
RENAMED = {  # old full names of settings (still accepted), and their new keys
    "decoding.outlook": "beam_patience",
    "training.average": "ema_decay",
    "training.mind_over_fitting": "cooldown_on_overfitting",
}


NEEDED = {  # advice on settings without a default
    "base": ": name the run to start from with --from RUN",
    "task": ": set it to generate, chat, translate, classify or encode",
}
NOT_A_TABLE = "must be a table of settings. Set one of its keys, as in TABLE.KEY=VALUE"
IN_QUOTES = "In a shell, put single quotes around the whole setting"


class Settings(BaseModel):
    """The base class of all settings: immutable objects that reject unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _keep_variant(cls, data: Any) -> Any:
        """Set a missing `type` to the default variant, in tables that have variants."""
        if not isinstance(data, Mapping):
            return data
        kinds = {name: field.default.type for name, field in cls.model_fields.items() if field.discriminator}
        untyped = [name for name in kinds if isinstance(data.get(name), Mapping) and "type" not in data[name]]
        return {**data, **{name: {"type": kinds[name], **data[name]} for name in untyped}}


AnySettings = TypeVar("AnySettings", bound=Settings)


def read_toml(path: Path) -> Table:
    """Read the tables of a recipe file; raise PenwrightError with the position of a syntax error."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise PenwrightError(f"there is no recipe {path}") from None
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read as a recipe: {error}") from None
    return with_present_names(parse_toml(content, path))


def parse_toml(content: bytes, path: Path) -> Table:
    """Parse the content of a recipe file; raise PenwrightError, naming `path`, if it is not valid."""
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise PenwrightError(f"{path} cannot be read as a recipe: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise PenwrightError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise PenwrightError(f"{path} is not a recipe: its brackets are nested too deeply") from None


def write_toml(settings: Settings) -> str:
    """Return the settings as TOML, without values that are None, which TOML cannot express."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))


def parse_override(text: str) -> Table:
    """Parse an override like `model.d_model=256` into nested tables. A value that is not valid TOML is a string."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise UsageError(f"'{text}' is not a setting: write it as table.key=value, for example model.d_model=256")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return with_present_names(parsed)


def merge(*tables: Mapping[str, Any]) -> Table:
    """Merge tables recursively; later ones override earlier ones. A table of another `type` is replaced as a whole.

    Raises UsageError if a single value would override a table.
    """
    merged: Table = {}
    for table in tables:
        for key, value in table.items():
            below = merged.get(key)
            if isinstance(value, Mapping) and isinstance(below, Mapping):
                is_other = "type" in value and "type" in below and value["type"] != below["type"]
                merged[key] = dict(value) if is_other else merge(below, value)
            elif below and isinstance(below, Mapping) and value is not None:
                raise UsageError(f"the settings: {key}: {NOT_A_TABLE}")
            else:
                merged[key] = value
    return merged


def with_present_names(table: Mapping[str, Any], above: str = "", warns: bool = True) -> Table:
    """Replace old names of settings in nested tables with the current names. Warn about each old name if `warns`."""
    present: Table = {}
    for key, value in table.items():
        name = RENAMED.get(f"{above}{key}", key)
        if name != key and warns:
            warn(f"the setting {above}{key} is now called {above}{name}", PenwrightWarning, stacklevel=2)
        present[name] = with_present_names(value, f"{above}{key}.", warns) if isinstance(value, Mapping) else value
    return present


def flatten(table: Mapping[str, Any], above: str = "") -> Table:
    """Flatten nested tables: the keys become full names like `model.d_model`."""
    flat: Table = {}
    for key, value in table.items():
        flat |= flatten(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat


def validate(kind: type[AnySettings], table: Mapping[str, Any], where: str, *, warns: bool = True) -> AnySettings:
    """Create settings from tables. Raise UsageError for a mistake, with its position and the closest key.

    Unless `warns` is False, warn about each old name of a setting.
    """
    try:
        return kind.model_validate(with_present_names(table, warns=warns))
    except RecursionError:
        raise UsageError(f"{where}: the tables are nested too deeply") from None
    except ValidationError as error:
        raise _refusal(kind, error.errors(), where) from None


def require_known_keys(kind: type[Settings], table: Mapping[str, Any], where: str) -> None:
    """Raise UsageError for unknown keys and invalid values in a table of settings that need not be complete."""
    try:
        kind.model_validate(table)
    except ValidationError as error:
        own = [problem for problem in error.errors() if problem["type"] not in ("missing", "value_error")]
        if own:
            raise _refusal(kind, own, where) from None


def _refusal(kind: type[Settings], problems: Sequence[Mapping[str, Any]], where: str) -> UsageError:
    inner = {problem["loc"][:-1] for problem in problems}
    shown = [each for each in problems if each["type"] != "too_short" or each["loc"] not in inner]
    explained = dict.fromkeys(_explain(kind, problem["loc"], problem) for problem in shown)
    return UsageError("\n".join(f"{where}: {each}" for each in explained))


REASONS = {  # by pydantic's type of a problem; other problems keep pydantic's message
    **dict.fromkeys(("model_type", "model_attributes_type"), NOT_A_TABLE),
    "dict_type": f'must be a table such as {{"a" = "b"}}. {IN_QUOTES}',
    "tuple_type": f'must be a list such as ["a", "b"]. {IN_QUOTES}',
    "too_short": "must not be empty",
    "string_type": "must be a string",
    **dict.fromkeys(("int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
}


def _explain(kind: type[BaseModel], location: tuple[int | str, ...], problem: Mapping[str, Any]) -> str:
    names, keys, key, inside = _walk(kind, location)
    table, value = f"[{'.'.join(names)}] " if names else "", repr(problem["input"])[:50]
    if problem["type"] == "extra_forbidden":
        nearest = [] if names else _full_names(kind, key)
        nearest = nearest or get_close_matches(key, keys, n=1, cutoff=0.5)
        hint = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else f". Its keys are: {', '.join(keys)}"
        return f"{table}has no key '{key}'{hint}" if table else f"there is no key '{key}'{hint}"
    reason = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    reason = REASONS.get(problem["type"], reason)
    if problem["type"] == "union_tag_invalid":
        return f"[{'.'.join([*names, key])}] type: must be one of {problem['ctx']['expected_tags']}"
    if any(isinstance(step, str) for step in inside):  # pydantic lists the problem of each type that is allowed
        reason = f"{value} is not a valid value"
    elif problem["type"] == "missing":
        reason = "has too few values" if inside else f"is not set{NEEDED.get(key, '')}"
    elif problem["type"] == "int_parsing":
        reason = f"{value} is not a whole number"
    elif problem["type"] == "float_parsing":
        reason = f"{value} is not a number"
    return f"{table}{key}: {reason}" if key else reason


def _full_names(kind: type[BaseModel], key: str) -> list[str]:
    """Return the full names of the settings in the tables of a class that have this key, such as `model.dropout`."""
    tables = {name: settings_in(field.annotation) for name, field in kind.model_fields.items()}
    return [f"{name}.{key}" for name, kinds in tables.items() if any(key in _keys_of([each]) for each in kinds)]


def _walk(
    kind: type[BaseModel], location: tuple[int | str, ...]
) -> tuple[list[str], list[str], str, tuple[int | str, ...]]:
    """Find the setting at a location. Return its tables, outermost first; the keys of its table; its key; the rest.

    The rest is the location within the value of the setting, for example the index of an item.
    """
    names: list[str] = []
    kinds = [kind]
    for number, step in enumerate(map(str, location)):
        if variant := [k for k in kinds if len(kinds) > 1 and k.model_fields["type"].default == step]:
            kinds = variant
            continue
        annotations = [k.model_fields[step].annotation for k in kinds if step in k.model_fields]
        inner = [each for annotation in annotations for each in settings_in(annotation)]
        is_table = bool(inner) or any(get_origin(annotation) is dict for annotation in annotations)
        if not is_table or number == len(location) - 1:
            return names, _keys_of(kinds), step, location[number + 1 :]
        names.append(step)
        kinds = inner or kinds
    return names, _keys_of(kinds), "", ()


def _keys_of(kinds: Sequence[type[BaseModel]]) -> list[str]:
    return sorted({field.alias or key for k in kinds for key, field in k.model_fields.items()})


def settings_in(annotation: object) -> list[type[BaseModel]]:
    """Return the settings classes in a type annotation."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return [kind for argument in get_args(annotation) for kind in settings_in(argument)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
