"""Checks of the documentation: the commands that its pages show, their links, and the tree. Nothing is run."""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.main import get_command

from penwright.cli.main import app
from penwright.config import DecodingSettings, Recipe, merge, parse_override, validate
from penwright.errors import PenwrightError
from penwright.serving.settings import ServingSettings
from penwright.workflows.plan import _without_open_choices, read_recipe, without_score_task

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?P<fence>`{3,}|:{3,}) *(?P<language>\S*).*?\n(?P<body>.*?)^(?P=fence) *$", re.MULTILINE | re.DOTALL
)
SHELLS = ("sh", "bash", "shell", "console", "{try}")


def pages() -> list[Path]:
    """Return the README, CONTRIBUTING and all pages of docs/, except those that `make docs` builds."""
    found = [path for path in (ROOT / "docs").rglob("*.md") if "build" not in path.relative_to(ROOT).parts]
    return [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(found)) if path.is_file()]


# Commands


class Shown(NamedTuple):
    """A command as a page shows it, split into words."""

    words: tuple[str, ...]
    is_inline: bool  # in the middle of a sentence, where arguments may be left out

    def __str__(self) -> str:
        return shlex.join(self.words)


def commands(text: str) -> list[Shown]:
    """Return the commands in the shell blocks and in the `code` of a page, each once."""
    blocks = [match["body"] for match in FENCE.finditer(text) if match["language"] in SHELLS]
    found = [Shown(words, False) for block in blocks for line in _lines(block) for words in simple_commands(line)]
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCE.sub("", text)):
        line = " ".join(span.replace(r"\|", "|").split())
        if line.startswith(("penwright ", "python -m ", "make ")):
            found += [Shown(words, True) for words in simple_commands(line)]
    return list(dict.fromkeys(found))


def _lines(block: str) -> Iterator[str]:
    """Yield the command lines of a shell block; where a `$` marks commands, all other lines are output."""
    lines = block.replace("\\\n", " ").split("\n")
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    yield from (line for line in lines if line.strip())


def simple_commands(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands of a line without pipes, redirections, assignments and comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    redirects = False
    for word in [*lexer, ";"]:
        if redirects:
            redirects = False
        elif set(word) <= set("<>"):
            redirects = True
        elif set(word) <= set("|&;"):
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                del words[0]
            if words:
                yield tuple(words)
            words = []
        else:
            words.append(word)


def problem_with(command: Shown) -> str | None:
    """Return what is wrong with a command, or None. Programs of others are not checked."""
    program, *arguments = command.words
    match Path(program).name, arguments:
        case ("penwright", words) | ("python" | "python3", ["-m", "penwright", *words]):
            return _problem_of_ours(words, command.is_inline)
        case "python" | "python3", words:
            return _problem_of_script(words)
        case "make", words:
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
            unknown = [word for word in words if "=" not in word and word not in targets]
            return f"the Makefile has no target {', '.join(unknown)}" if unknown else None
        case "pip", ["install", *words]:
            known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
            extras = [re.fullmatch(r"(?:penwright|\.)\[(.*)\]", word) for word in words]
            unknown = [name for match in extras if match for name in match[1].split(",") if name not in known]
            return f"there is no extra {', '.join(unknown)}" if unknown else None
    return None


def _problem_of_script(words: Sequence[str]) -> str | None:
    """Return what is wrong with the arguments of Python, if they name a module or a script of this repository."""
    match words:
        case ["-m", module, *_] if module.split(".")[0] in ("benchmarks", "demo", "examples"):
            path = ROOT.joinpath(*module.split("."))
            is_there = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
            return None if is_there else f"there is no module {module}"
        case [script, *_] if script.endswith(".py"):
            return None if (ROOT / script).is_file() else f"there is no file {script}"
    return None


def _problem_of_ours(words: Sequence[str], is_inline: bool) -> str | None:
    if not words or words[0] in ("--version", "--help"):
        return None
    name, *arguments = words
    command = get_command(app).commands.get(name)  # type: ignore[attr-defined]
    if command is None:
        return f"there is no command {name}"
    try:
        _check_settings(name, command.make_context(f"penwright {name}", list(arguments)).params)
    except typer.Exit:  # --help
        return None
    except Exception as error:
        is_left_out = is_inline and type(error).__name__ == "MissingParameter"
        return None if is_left_out else str(getattr(error, "format_message", error.__str__)())
    return None


def _check_settings(name: str, parameters: dict[str, Any]) -> None:
    """Raise PenwrightError if a --set of the command has an unknown key or a wrong value, or if the task is unknown."""
    table = merge(*map(parse_override, parameters.get("set_") or ()))
    if name in ("serve", "studio"):
        validate(ServingSettings, table, "--set")
    elif name == "generate":
        validate(DecodingSettings, table, "--set")
    elif table or parameters.get("recipe") or parameters.get("size") or parameters.get("task"):
        flags = {"model": {"size": parameters["size"]}} if parameters.get("size") else {}
        recipe = parameters.get("recipe")
        if recipe is not None and (ROOT / recipe).is_file():
            table = merge(read_recipe(ROOT / recipe, table), table)
        tasks = [parameters["task"]] if parameters.get("task") else ["generate", "translate", "classify"]
        errors = [_error_of(merge({"data": {"train": ["TEXT"]}}, table, flags, {"task": task})) for task in tasks]
        if all(errors):
            raise errors[0] or AssertionError


def _error_of(table: dict[str, Any]) -> PenwrightError | None:
    try:
        validate(Recipe, _without_open_choices(without_score_task(table)), "--set")
    except PenwrightError as error:
        return error
    return None


# Links


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page to missing files or headings."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text("utf-8")))
    broken = []
    for link in re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        has_heading = not heading or target.suffix != ".md" or (target.is_file() and heading in _headings(target))
        if not (target.exists() and has_heading):
            broken.append(link)
    return broken


def _headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ +(.*?) *#*$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


# Parts of a page


def section(text: str, title: str) -> str:
    """Return a section of a page, from its heading to the next one of the same level."""
    (found,) = re.findall(rf"^## {re.escape(title)}[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def blocks(text: str) -> list[str]:
    """Return the contents of all fenced blocks."""
    return [match["body"] for match in FENCE.finditer(text)]


def tree_shown(block: str) -> dict[str, list[str]]:
    """Return the modules that a tree names, by package; the top package is ''. Raises ValueError for an odd line."""
    shown: dict[str, list[str]] = {}
    package = None
    for line in block.splitlines():
        if header := re.fullmatch(r"(\S+)/\s+\S.*", line):
            package = header[1] if header[1] != "penwright" else ""
            shown[package] = []
        elif package is not None and re.fullmatch(r"    \S.*", line):
            shown[package] += line.split()
        else:
            raise ValueError(f"neither a package with its description nor its modules: {line!r}")
    return shown


def tree_of(package: Path) -> dict[str, list[str]]:
    """Return the modules that exist, by package."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        here = found.setdefault("/".join(path.relative_to(package).parts[:-1]), [])
        if path.name not in ("__init__.py", "__main__.py"):
            here.append(path.stem)
    return found


def defined_in(module: Path) -> set[str]:
    """Return the names of all functions and classes of a module, and of the methods of its classes."""
    kinds = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, kinds)}
