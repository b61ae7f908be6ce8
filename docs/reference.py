"""A Sphinx extension: fills the reference pages from the code when they are read.

A page names what it wants in a comment on a line of its own, such as `<!-- reference: settings -->`. The text that
takes its place is Markdown, so that headings, links and the search work as on any page.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from os.path import relpath
from pathlib import Path
from typing import Any, get_args

import typer
from markdown_parts import code, prose, table
from server_reference import routes
from sphinx.application import Sphinx

from penwright.cli.main import app as command_line
from penwright.config import SIZES, Recipe
from penwright.config.descriptions import TableDescription, describe, field_comments
from penwright.serving.settings import ServingSettings

DOCS = Path(__file__).parent.resolve()
ROOT = DOCS.parent
PLACEHOLDER = re.compile(r"^<!-- reference: ([a-z]+) -->$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
TYPES = {str: "string", int: "integer", float: "float", Path: "path", list[str]: "string", bool: "flag"}


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
    annotation = parameter.type_descriptor.annotation
    kind = TYPES.get(annotation) or ", ".join(map(code, get_args(annotation)))
    return [code(named[1]), kind, code(limits.replace("default: ", "")), prose(meaning)]


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
