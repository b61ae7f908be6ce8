"""Patterns of paths, such as code/**/*.py."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

WILDCARD = re.compile(r"[*?\[]")


def split_pattern(pattern: str) -> tuple[Path, tuple[str, ...]]:
    """Split a pattern into the folder before its first wildcard and the remaining parts."""
    parts = Path(pattern).parts
    first = next(index for index, part in enumerate(parts) if WILDCARD.search(part))
    return Path(*parts[:first]), parts[first:]


def matches_pattern(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether the names of a path match the parts of a pattern. `**` matches any number of folders."""
    reached = {0}  # indices of the pattern parts that the next name may match
    for name in names:
        stay = set()
        for index, part in enumerate(parts):
            if index in reached and part == "**":
                stay.add(index)
                reached.add(index + 1)  # `**` may match no folder at all
        fitting = {index for index in reached - stay if index < len(parts) and fnmatchcase(name, parts[index])}
        reached = stay | {index + 1 for index in fitting}
    return any(part == len(parts) or set(parts[part:]) == {"**"} for part in reached)
