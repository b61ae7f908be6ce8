"""A console of the `rich` library that works on every terminal."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from penwright.cli.streams import Stream, escaped, without_escaping

# ASCII replacements, for encodings that lack these characters.
ASCII_STAND_INS = str.maketrans("━▁▂▃▄▅▆▇█░▒▓…→←↵␣⟨⟩", "-_.:-=+*#.:%~><|_<>")


class SafeConsole(Console):
    """A `rich.console.Console` that sends its own escape sequences, but escapes control characters in the text."""

    def __init__(self, stream: Stream):
        super().__init__(file=without_escaping(stream), markup=False, highlight=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as usual, but escape control characters, and replace drawing characters that the encoding lacks."""
        has_drawings = self.encoding.startswith("utf")
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                text = escaped(segment.text)
                yield Segment(text if has_drawings else text.translate(ASCII_STAND_INS), segment.style)
