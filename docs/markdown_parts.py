"""Markdown for the reference: tables, code and prose."""

import re
from collections.abc import Sequence


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
