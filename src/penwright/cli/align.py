"""penwright align: which words of two files stand for each other."""

from pathlib import Path
from typing import Annotated

import typer

from penwright.cli.options import Device, RunFolder, lines_of, read_text
from penwright.errors import PenwrightError

NAME = "align"


def command(
    run: RunFolder,
    source: Annotated[Path, typer.Argument(help="A sentence a line.")],
    target: Annotated[Path, typer.Argument(help="Their translations, a line each.")],
    device: Device = "cpu",
) -> None:
    """Print which words of two files stand for each other.

    The links of each pair of lines as i-j (Pharaoh format): the numbers of words, from 0, in both. Where no spaces
    part words, as in Chinese, each character is one.
    """
    from penwright.cli.progress import err
    from penwright.translation.alignment import pharaoh
    from penwright.workflows.api import load_aligner

    sides = [lines_of(read_text(str(path))) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise PenwrightError(f"{source} has {len(sides[0]):,} lines and {target} {len(sides[1]):,}")
    for links in load_aligner(run, device, say=err).align(list(zip(*sides, strict=True))):
        print(pharaoh(links))
