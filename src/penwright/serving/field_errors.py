"""Messages about invalid fields, in plain words instead of pydantic's."""

from collections.abc import Mapping, Sequence
from typing import Any

Problem = Mapping[str, Any]  # one error of a pydantic ValidationError
KINDS = {
    "string": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "model_attributes": "an object",
}
REASONS = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "json_invalid": "the body is not valid JSON: {error}",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_long": "may have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "string_too_long": "may have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_unicode": "must be a Unicode string",
}


def first_problem(problems: Sequence[Problem], given: object) -> tuple[str, str]:
    """Return the location of the most relevant problem, as `field.1`, and what is wrong there.

    If a field allows several types, pydantic reports a problem for each of them. The deepest location shows which type
    was meant.
    """
    places = [_place(problem, given) for problem in problems]
    first = places[0][:1]
    same_field = [number for number, place in enumerate(places) if place[:1] == first]
    deepest = max((places[number] for number in same_field), key=len)
    found = [problems[number] for number in same_field if places[number] == deepest]
    expected = list(dict.fromkeys(_kind(problem) for problem in found))
    reason = _reason(found[0]) if None in expected else f"must be {' or '.join(map(str, expected))}"
    return ".".join(map(str, deepest)), reason


def _place(problem: Problem, given: object) -> tuple[int | str, ...]:
    """Return the keys and indices that lead to a value, without the type names that pydantic inserts."""
    location: Sequence[int | str] = problem["loc"]
    kept: list[int | str] = []
    for number, step in enumerate(location):
        is_absent = number == len(location) - 1 and problem["type"] == "missing"
        if isinstance(given, dict) and (step in given or is_absent) and isinstance(step, str):
            kept, given = [*kept, step], given.get(step)
        elif isinstance(given, list | tuple) and isinstance(step, int) and step < len(given):
            kept, given = [*kept, step], given[step]
    return tuple(kept)


def _kind(problem: Problem) -> str | None:
    """Return the expected type of a value, or None if the problem is not about its type."""
    name = str(problem["type"])
    for ending in ("_type", "_parsing"):
        if name.endswith(ending):
            return KINDS.get(name.removesuffix(ending))
    return "a whole number" if name == "int_from_float" else None


def _reason(problem: Problem) -> str:
    kind, name, details = _kind(problem), str(problem["type"]), problem.get("ctx") or {}
    if kind is not None:
        return f"must be {kind}"
    if name == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    return REASONS.get(name, "has an invalid value").format_map(_Known(details))


class _Known(dict[str, Any]):
    """The details of a problem. Missing ones are formatted as an ellipsis."""

    def __missing__(self, key: str) -> str:
        return "…"
