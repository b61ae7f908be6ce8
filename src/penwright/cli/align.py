"""The `penwright align` command: align the words of two files."""

from pathlib import Path
from typing import Annotated

import typer

from penwright.cli.options import Device, RunFolder, counted, lines_of, read_text
from penwright.errors import PenwrightError

NAME = "align"


def command(
    run: RunFolder,
    source: Annotated[Path, typer.Argument(help="File with one source sentence per line.")],
    target: Annotated[Path, typer.Argument(help="File with their translations, one per line.")],
    device: Device = "cpu",
) -> None:
    """Align the words of two files, line by line.

    Prints the links of each pair of lines as i-j: the positions of source and target word, from 0 (Pharaoh format).
    In text without spaces, such as Chinese, each character counts as a word.
    """
    from penwright.cli.progress import print_message
    from penwright.translation.alignment import pharaoh
    from penwright.workflows.api import load_aligner

    sides = [lines_of(read_text(str(path))) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise PenwrightError(
            f"{source} has {counted(len(sides[0]), 'line')}, but {target} has {len(sides[1]):,}. "
            "Give one translation per line"
        )
    for links in load_aligner(run, device, say=print_message).align(list(zip(*sides, strict=True))):
        print(pharaoh(links))
