"""Views as self-contained files: the modules are joined into one script, and the data is embedded as bytes."""

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from penwright.errors import PenwrightError, UsageError
from penwright.views import notebook, pictures
from penwright.views.packing import as_table, pack

MODULES = Path(__file__).parent / "modules"
STYLE = Path(__file__).parent / "style.css"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z]+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (async function|function|class|const) (\w+)", re.MULTILINE)
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
script-src 'sha256-$hash'">
<title>$title</title>
<style>
$style</style>
</head>
<body class="pw-page$bare">
<main>$header</main>
<noscript>These views need JavaScript, which is turned off here.</noscript>
<script type="application/octet-stream" id="data">$data</script>
<script>$script</script>
</body>
</html>
""")


@dataclass(frozen=True)
class View:
    """A view with its data. A notebook displays it, and `save` writes it as HTML, SVG or PNG.

    `name` is a file in `modules/` with a function `draw`; the comment above it describes `data` and `options`. In
    `data`, a dataclass or named tuple can replace a dictionary, and arrays are NumPy arrays. In a notebook, the
    `attention` view leaves out some heads if the output would otherwise be too large (see `notebook.smaller`).
    """

    name: str
    data: Any = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    heading: str = ""

    def __post_init__(self) -> None:
        if self.name not in view_names():
            raise UsageError(f"there is no view {self.name!r}. Choose one of: {', '.join(view_names())}")

    def save(self, path: str | PathLike[str]) -> None:
        """Save the view to a self-contained file with the suffix .html, .svg or .png.

        Raises UsageError for any other suffix, or if the view cannot be saved in this format.
        """
        path = Path(path)
        ending = path.suffix.lower()
        if ending == ".html":
            path.write_text(html([self], self.heading or f"Penwright: {self.name}"), encoding="utf-8")
        elif ending in pictures.ENDINGS:
            path.write_bytes(pictures.render(self.name, as_table(self.data), ending))
        else:
            raise UsageError(f"{path}: save a view as .html, {' or '.join(pictures.ENDINGS)}, not as {ending!r}")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": notebook.cell(self._small_page())}

    def _small_page(self) -> str:
        """Return a page for a notebook's output cell, reduced to at most `notebook.LIMIT` bytes."""
        for data, note in notebook.smaller(self.name, as_table(self.data)):
            page = html([View(self.name, data, {**self.options, **note}, self.heading)])
            if len(notebook.cell(page).encode()) <= notebook.LIMIT:
                return page
        raise PenwrightError(
            f"the view {self.name!r} of this data is larger than {notebook.LIMIT // 1_000_000} MB, too large for a "
            "notebook. Save it as .html, or show less data"
        )


@cache
def view_names() -> tuple[str, ...]:
    """Return the names of all views."""
    return tuple(
        sorted(path.stem for path in MODULES.glob("*.js") if "export function draw(" in path.read_text("utf-8"))
    )


def html(views: Sequence[View], title: str = "") -> str:
    """Return a self-contained page with the views, one below the other. The page sends no requests.

    A page without a title is bare, for embedding in another page. The security policy allows only the script of the
    page. Apart from the escaped title, texts occur only in the packed data, so no text can be executed.
    """
    sections = [{"name": v.name, "heading": v.heading, "data": v.data, "options": v.options} for v in views]
    # a single view needs no heading that repeats the title of the page
    if len(sections) == 1 and title == views[0].heading:
        sections[0]["heading"] = ""
    packed = zlib.compress(pack({"views": sections}))
    script = bundle(tuple(sorted({view.name for view in views})))
    return PAGE.substitute(
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        title=escape(title or "Penwright"),
        bare="" if title else " pw-bare",
        # browsers show the heading before the data are unpacked
        header=f"<header><h1>{escape(title)}</h1></header>" if title else "",
        style=STYLE.read_text("utf-8"),
        data=base64.b64encode(packed).decode(),
        script=script,
    )


@cache
def bundle(names: tuple[str, ...]) -> str:
    """Return the modules of some views as one classic script, since `import` does not work from file://.

    Each module becomes a function that returns its exports. The functions of imported modules come first.
    """
    modules = _in_order(["start", *names])
    parts = ['"use strict";', *(_wrap_module(name) for name in modules)]
    drawn = ", ".join(f"{name}: module_{name}.draw" for name in names)
    parts.append(f"module_start.start({{ {drawn} }});")
    return "\n".join(parts)


def _in_order(names: Sequence[str], ordered: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the modules and all modules that they import, dependencies first."""
    for name in names:
        if name not in ordered:
            needed = [other for _, other in IMPORT.findall(_source(name))]
            ordered = (*_in_order(needed, ordered), name)
    return ordered


def _wrap_module(name: str) -> str:
    source = IMPORT.sub(_replace_import, _source(name))
    exported = [match[1] for match in EXPORT.findall(source)]
    body = EXPORT.sub(r"\1 \2", source)
    return f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"


def _replace_import(match: re.Match[str]) -> str:
    names = re.sub(r"(\w+) as (\w+)", r"\1: \2", match[1])
    return f"const {{{names}}} = module_{match[2]};"


@cache
def _source(name: str) -> str:
    return (MODULES / f"{name}.js").read_text("utf-8")
