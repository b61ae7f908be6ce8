"""A Sphinx extension: fills the reference pages from the code when they are read.

A page names what it wants in a comment on a line of its own, such as `<!-- reference: settings -->`. The text that
takes its place is Markdown, so that headings, links and the search work as on any page.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from os.path import relpath
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from sphinx.application import Sphinx

from penwright.cli.main import app as command_line
from penwright.config import SIZES, DecodingSettings, Recipe, TableDescription, describe, field_comments
from penwright.serving.app import create_app
from penwright.serving.settings import ServingSettings

DOCS = Path(__file__).parent.resolve()
ROOT = DOCS.parent
PLACEHOLDER = re.compile(r"^<!-- reference: ([a-z]+) -->$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
TYPES = {"str": "string", "int": "integer", "int range": "integer", "float range": "float", "list[str]": "string"}
ROUTES = {  # title of a group: how its paths begin
    "OpenAI's completions API": ("/v1/",),
    "LibreTranslate's API": ("/translate", "/detect", "/languages", "/frontend/"),
    "Classification": ("/classify",),
    "State of the server": ("/health", "/metrics"),
    "For the page": ("/",),
}
Schema = Mapping[str, Any]


# Markdown


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. Raises ValueError for one without rows: a reference must not lose its content unnoticed."""
    if not rows:
        raise ValueError(f"the table of {', '.join(head)} is empty")
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def code(text: str) -> str:
    """Return a text as code inside a table cell."""
    return "`" + text.replace("|", "\\|").replace("\n", "\\n") + "`" if text else ""


def prose(text: str) -> str:
    """Return a help text or a comment as Markdown; command-line options and what is in backquotes become code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part.replace("|", "\\|") if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    parts = re.split(r"((?<![\w-])--?[a-z][\w-]*)", text)
    return "".join(
        f"`{part}`" if n % 2 else re.sub(r"([\\*_\[\]<>|${}#])", r"\\\1", part) for n, part in enumerate(parts)
    )


# Commands


def commands() -> str:
    """Return a section for each command."""
    group: Any = typer.main.get_command(command_line)
    return "\n".join(_command(name, each) for name, each in group.commands.items() if not each.hidden)


def _command(name: str, command: Any) -> str:
    context = command.make_context(f"penwright {name}", [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage: ")
    paragraphs = "\n\n".join(prose(paragraph) for paragraph in command.help.split("\n\n"))
    rows = [_parameter(each, context) for each in command.params if not each.hidden]
    head = ("Argument or option", "Type", "Default and limits", "Meaning")
    return f"## penwright {name}\n\n{paragraphs}\n\n```text\n{usage}\n```\n\n{table(head, rows)}"


def _parameter(parameter: Any, context: Any) -> list[str]:
    shown, described = parameter.get_help_record(context)
    named = re.fullmatch(r"(.*?)(?: <(.*)>)?", shown)
    assert named is not None
    meaning, limits = parameter.help or "", ""
    if described.endswith("]"):
        limits = described.removeprefix(meaning).strip(" []")
    kind = named[2] or "flag"
    kind = ", ".join(map(code, kind.split("|"))) if "|" in kind else TYPES.get(kind, kind)
    return [code(named[1]), kind, code(limits.replace("default: ", "")), prose(meaning)]


# Settings


def settings() -> str:
    """Return a section for each table of a recipe."""
    return "\n".join(_table_section(each) for each in describe(Recipe))


def _table_section(described: TableDescription) -> str:
    title = f"\\[{described.name}\\]" if described.name else "Outside tables"
    if described.variant:
        title += f' type = "{described.variant}"' + (" (default)" if described.is_default else "")
    level = "###" if described.variant or "." in described.name else "##"
    return f"{level} {title}\n\n{prose(described.summary)}\n\n{_settings_table(described)}"


def _settings_table(described: TableDescription, prefix: str = "") -> str:
    prefix += f"{described.variant}-" if described.variant else ""
    rows = [
        [
            f"{code(each.name)}{{#{prefix}{each.name.replace('.', '-')}}}",
            re.sub(r'"[^"]+"', lambda found: code(found[0]), prose(each.type)),
            _default(each.default, each.meaning),
            prose(each.meaning),
        ]
        for each in described.settings
    ]
    return table(("Setting", "Type", "Default", "Meaning"), rows)


def _default(default: str, meaning: str) -> str:
    if default == "None":
        return "not set"
    if default == "required":
        return "computed" if meaning.startswith("default: ") else "required"
    return code(default)


def sizes() -> str:
    """Return what each named size sets."""
    keys = dict.fromkeys(key for size in SIZES.values() for key in size)
    shown = [key for key in keys if key in ("d_model", "n_layers", "n_heads", "d_ff", "context_length")]
    rows = [
        [code(name), *(str(size.get(key, "")) for key in shown), prose(", ".join(_others(size, shown)))]
        for name, size in SIZES.items()
    ]
    return table(("Size", *map(code, shown), "Other keys"), rows)


def _others(size: Mapping[str, Any], shown: Sequence[str]) -> Iterator[str]:
    for key, value in size.items():
        if key not in shown:
            yield f"`{key} = {value.get('type') if isinstance(value, dict) else str(value).lower()}`"


def limits() -> str:
    """Return the settings of a server."""
    (described,) = describe(ServingSettings)
    return _settings_table(described, "serve-")


# Server


def routes() -> str:
    """Return a section for each route of the server, then one for each object in a request or an answer."""
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
    answers = [f"{_name_link(each['schema'])}" for each in _answers(route) if each.get("schema")]
    if answers:
        parts.append(f"Answer: {', '.join(answers)}.")
    return "\n\n".join(parts) + "\n"


def _answers(route: Schema) -> list[Schema]:
    return list(route["responses"].get("200", {}).get("content", {}).values())


def _objects(api: Schema) -> str:
    """Return a section for each object that is a part of requests or answers."""
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


# Sphinx

SECTIONS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "sizes": sizes,
    "limits": limits,
    "routes": routes,
}


def relink(text: str, origin: Path, place: Path) -> str:
    """Return a text of the folder `origin` with its links as a page in the folder `place` needs them.

    The site has the pages of docs/ and CONTRIBUTING.md. Links to folders and to other Markdown files of the repository
    become plain text; other files are copied to the site.
    """

    def link(found: re.Match[str]) -> str:
        image, label, target, anchor = found.groups()
        path = (origin / target).resolve()
        if path == ROOT / "CONTRIBUTING.md":
            path = DOCS / "contributing.md"
        is_outside = path.suffix == ".md" and path.is_file() and not path.is_relative_to(DOCS)
        if is_outside or path.is_dir():
            return label
        return f"{image}[{label}]({relpath(path, place)}{anchor or ''})"

    return LINK.sub(link, text)


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the comments of a page with what they ask for, and adapt its links."""
    folder = Path(app.env.doc2path(page)).parent
    source[0] = PLACEHOLDER.sub(lambda found: SECTIONS[found[1]](), relink(source[0], folder, folder))


def read_included(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """Adapt the links of a file that a page includes."""
    content[0] = relink(content[0], (app.srcdir / path).parent, Path(app.env.doc2path(page)).parent)


def list_fields(app: Sphinx, what: str, name: str, kind: Any, options: Any, lines: list[str]) -> None:
    """Add the fields of a class to its docstring, with their comments in the source."""
    if what == "class":
        fields = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", ())
        comments = field_comments(kind) if fields else {}
        described = (f"* ``{each}``: {comments[each]}" if each in comments else f"* ``{each}``" for each in fields)
        lines += ["", "Fields:", "", *described] if fields else []


def skip_field(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples among the members: `list_fields` has them."""
    return True if str(getattr(member, "__doc__", "")).startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the events."""
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-docstring", list_fields)
    app.connect("autodoc-skip-member", skip_field)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
