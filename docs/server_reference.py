"""The routes of the server as Markdown, from its description in OpenAPI."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from markdown_parts import code, prose, table
from pydantic import BaseModel

from penwright.config import DecodingSettings
from penwright.config.descriptions import field_comments
from penwright.serving.server import create_app
from penwright.serving.settings import ServingSettings

ROUTES = {  # title of a group: how its paths begin
    "OpenAI's API": ("/v1/",),
    "LibreTranslate's API": ("/translate", "/detect", "/languages", "/frontend/"),
    "Classification": ("/classify", "/clusters"),
    "State of the server": ("/health", "/metrics"),
    "For the page": ("/",),
}
Schema = Mapping[str, Any]


def routes() -> str:
    """Return a section for each route of the server, then one for each object in a request or a response."""
    api = create_app([], ServingSettings()).openapi()  # type: ignore[arg-type]  # the description needs no models
    groups: dict[str, list[str]] = {title: [] for title in ROUTES}
    for path, methods in api["paths"].items():
        title = next(title for title, starts in ROUTES.items() if path.startswith(starts))
        groups[title] += [_route(method, path, route, api) for method, route in methods.items()]
    sections = [f"## {title}\n\n" + "\n".join(found) for title, found in groups.items()]
    return "\n".join([*sections, _objects(api)])


def _route(method: str, path: str, route: Schema, api: Schema) -> str:
    parts = [f"### {method.upper()} {path}", prose(route["description"])]
    if given := route.get("parameters"):
        rows = [
            [code(each["name"]), each["in"], schema_in_words(each["schema"]), _fallback(each["schema"])]
            for each in given
        ]
        parts.append(table(("Parameter", "In", "Type", "Default"), rows))
    if body := route.get("requestBody"):
        schema = next(iter(body["content"].values()))["schema"]
        parts.append(f"Request: {', '.join(map(code, body['content']))}.")
        parts.append(_fields(_name(schema), _resolved(schema, api)))
    responses = [f"{_name_link(each['schema'])}" for each in _responses(route) if each.get("schema")]
    if responses:
        parts.append(f"Response: {', '.join(responses)}.")
    return "\n\n".join(parts) + "\n"


def _responses(route: Schema) -> list[Schema]:
    return list(route["responses"].get("200", {}).get("content", {}).values())


def _objects(api: Schema) -> str:
    """Return a section for each object that is a part of requests or responses."""
    requests = {_name(body["schema"]) for route in _all_routes(api) for body in _bodies(route)}
    shown = [
        f"### {name}\n\n{prose(schema.get('description', ''))}\n\n{_fields(name, schema)}"
        for name, schema in sorted(api["components"]["schemas"].items())
        if name not in requests
    ]
    return "## Objects\n\n" + "\n".join(shown)


def _all_routes(api: Schema) -> Iterator[Schema]:
    for methods in api["paths"].values():
        yield from methods.values()


def _bodies(route: Schema) -> list[Schema]:
    return list(route.get("requestBody", {}).get("content", {}).values())


def _fields(name: str, schema: Schema) -> str:
    """Return the fields of an object. Without a comment, a field means what the decoding setting of its name means."""
    if "prefixItems" in schema:
        parts = (f"{each['title'].lower()} ({schema_in_words(each)})" for each in schema["prefixItems"])
        return f"A list of {', '.join(parts)}.\n"
    meanings = {**field_comments(DecodingSettings), **_comments().get(name or schema.get("title", ""), {})}
    required = schema.get("required", ())
    rows = [
        [
            code(key),
            schema_in_words(field),
            "required" if key in required else _fallback(field),
            prose(field.get("description") or meanings.get(key, "")),
        ]
        for key, field in schema["properties"].items()
    ]
    return table(("Field", "Type", "Default", "Meaning"), rows)


def _comments() -> dict[str, dict[str, str]]:
    """Return the comments of the fields of the server's objects, by the name of the object."""
    found, left = {}, list(BaseModel.__subclasses__())
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__.startswith("penwright.serving."):
            found[kind.__name__] = field_comments(kind)
    return found


def _name(schema: Schema) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _name_link(schema: Schema) -> str:
    name = _name(schema)
    return f"[`{name}`](#{name.lower()})" if name else schema_in_words(schema)


def _resolved(schema: Schema, api: Schema) -> Schema:
    found: Schema = api["components"]["schemas"][_name(schema)] if _name(schema) else schema
    return found


def _fallback(schema: Schema) -> str:
    value = schema.get("default")
    return "" if value is None else code(json.dumps(value))


def schema_in_words(schema: Schema) -> str:
    """Return the type in a JSON schema, such as "integer ≥ 1, or a list of strings"."""
    if _name(schema):
        return _name_link(schema)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(schema_in_words(each) for each in options if each.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(code(str(value)) for value in schema.get("enum") or [schema["const"]])
    kind = {"number": "float", "array": "list"}.get(schema.get("type", ""), schema.get("type", "any"))
    inner = schema.get("items") or schema.get("additionalProperties")
    if isinstance(inner, dict):
        return f"{kind} of " + re.sub(r"^\w+", r"\g<0>s", schema_in_words(inner))
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    shown = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if abs(schema.get(key, 2**31)) < 2**31 - 1]
    return f"{kind} {', '.join(shown)}".strip()
