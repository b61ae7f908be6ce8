"""Draw docstrings, help texts, messages and comments at random, for a reader to grade.

    python -m benchmarks.prose [--number 100] [--seed 1]

The reader grades each text as natural, odd or opaque. A text is opaque if it cannot be understood without the code.
"""

import argparse
import ast
import io
import random
import tokenize
from collections.abc import Iterator
from pathlib import Path

import penwright

ROOT = Path(penwright.__file__).parent
DIRECTIVES = ("noqa", "type:", "pragma", "fmt:", "!")
FEWEST_WORDS = 3


def strings(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, the line and the text of every docstring and every other string of a module."""
    tree = ast.parse(source)
    skipped = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):  # in breadth first order: a definition comes before its docstring
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            first = node.body[0] if node.body else None
            if text and isinstance(first, ast.Expr):
                skipped.add(id(first.value))
                yield "docstring", first.lineno, text
        elif isinstance(node, ast.JoinedStr):
            yield "message", node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield "message or help", node.lineno, node.value


def comments(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield every comment of a module. Comments on consecutive lines of their own are one comment."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ").strip()
        if token.type != tokenize.COMMENT or text.startswith(DIRECTIVES):
            continue
        line = token.start[0]
        is_alone = not token.line[: token.start[1]].strip()
        if block and not (is_alone and line == last + 1):
            yield "comment", first, " ".join(block)
            block = []
        first = first if block else line
        block.append(text)
        last = line if is_alone else -1
    if block:
        yield "comment", first, " ".join(block)


def main() -> None:
    """Print the drawn texts, numbered, each with its place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=100, help="Number of texts to draw.")
    parser.add_argument("--seed", type=int, default=1, help="Random seed.")
    arguments = parser.parse_args()
    found = [
        (kind, f"{path.relative_to(ROOT)}:{line}", text)
        for path in sorted(ROOT.rglob("*.py"))
        for finder in (strings, comments)
        for kind, line, text in finder(path.read_text(encoding="utf-8"))
        if len(text.split()) >= FEWEST_WORDS
    ]
    drawn = random.Random(arguments.seed).sample(found, min(arguments.number, len(found)))
    print(f"{len(drawn)} of {len(found)} texts, seed {arguments.seed}\n")
    for number, (kind, place, text) in enumerate(drawn, start=1):
        print(f"{number}. {kind}, {place}\n{text}\n")


if __name__ == "__main__":
    main()
