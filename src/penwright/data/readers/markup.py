"""Extraction of text from web pages, RTF, subtitles, and the .sgm files of WMT test sets."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import unescape
from html.parser import HTMLParser

from penwright.data.encoding import first_guess, known_encoding
from penwright.errors import import_extra
from penwright.languages import split_words
from penwright.text import join_lines

DROPPED = frozenset(
    split_words("""
    script style noscript template nav svg math iframe object button select
    rt rp title
    """)  # rt and rp: ruby annotations; title: the window title
)
BLOCKS = frozenset(
    split_words("""
    address article aside blockquote body br caption center dd details div dl dt fieldset figcaption figure footer
    h1 h2 h3 h4 h5 h6 header hr html legend li main ol p pre section summary table tbody td th thead tr ul
    """)
)
DECLARED = re.compile(
    rb"""(?:<meta[^>]{0,200}?charset|<\?xml[^>]{0,100}?encoding|^"Content-Type:[^"\n]{0,100}?charset)=\s*["']?([\w.:-]{2,40})""",
    re.IGNORECASE | re.MULTILINE,
)
# Browsers read these declarations as a larger encoding, because most pages with them use its characters.
BROWSERS = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
}
TIMES = re.compile(r"^[ \t]*((?:\d{1,9}:)?\d{1,9}:\d\d[,.]\d{1,3})[ \t]*-->[ \t]*(?:\d+:)?\d+:\d\d[,.]\d{1,3}")
# Files may come from anybody: no match of these patterns looks past the next tag, so that the time stays linear.
STYLE = re.compile(r"\{\\[^{}]*\}|</?(?:[biuv]|c|font|ruby|rt|lang)(?:[ .][^<>]*)?>|<\d[\d:.]*>")
SEGMENT = re.compile(
    r"<seg(?:\s+id\s*+=\s*+[\"']?([^\"'\s<>]*+)[\"']?)?+[^<>]*+>((?:(?!<seg[\s>]).)*?)</seg\s*>",
    re.IGNORECASE | re.DOTALL,
)
MARKUP = re.compile(r"<[^<>]*>?")
DEEPEST = 500  # maximum number of elements inside each other that are tracked while their text is skipped
FEWEST_REPAIRS = 20  # minimum number of tags and comments without an end that are repaired in a page
MOST_REREAD = 10_000_000  # approximate maximum number of characters that are read again for further repairs
WORD_TIME = re.compile(r"<(?:\d\d:)?\d\d:\d\d\.\d{3}><c>")  # marks automatic captions of YouTube
PIECE = re.compile(r"(?=<doc[\s>])", re.IGNORECASE)
DOCUMENT_NAME = re.compile(r"<doc\s[^>]*?docid\s*=\s*[\"']?([^\"'>]*)", re.IGNORECASE)
Segments = Iterator[tuple[str, str]]  # (identifier, text)


def html_lines(text: str) -> list[str]:
    """Return the text of a page: one line for each paragraph, heading, list item or table cell."""
    page = _Page()
    page.feed(text)
    page.repair(max(FEWEST_REPAIRS, MOST_REREAD // max(1, len(text))))
    page.close()
    page.end_line()
    return page.lines


def declared_encoding(head: bytes) -> str | None:
    """Return the encoding declared at the start of a page, XML file or PO file; None if there is none but Unicode."""
    declaration = DECLARED.search(head[:4096])
    name = known_encoding(declaration[1].decode("ascii", "replace")) if declaration else None
    # UTF-16 and UTF-32 are impossible, because the declaration is in ASCII, and UTF-8 is tried first in any case.
    return None if name is None or name.startswith("utf") else BROWSERS.get(name, name)


def decode_markup(content: bytes) -> str:
    """Decode a page according to its byte-order mark, as UTF-8 if that is valid, or else as declared."""
    encoding = first_guess(content[:4096])
    if encoding == "utf-8":
        with suppress(UnicodeDecodeError):
            return content.decode().removeprefix("\ufeff")
        encoding = declared_encoding(content) or encoding
    return content.decode(encoding, "replace").removeprefix("\ufeff")


class _Page(HTMLParser):
    """A parser that collects the lines of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.line: list[str] = []
        self.dropped: list[str] = []  # open elements whose text is skipped
        self.inside: Counter[str] = Counter()  # numbers of open blocks inside these elements
        self.n_pre = 0

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """Begin a new line if the element is a block."""
        if self.dropped and tag in ("rb", "rt", "rp") and self.dropped[-1] in ("rt", "rp"):
            self.dropped.pop()  # the end tags of rt and rp are optional
        if self.dropped and self.dropped[-1] == "select" and tag in BLOCKS and tag != "hr":
            self.dropped.pop()  # its end tag is missing
        if tag in DROPPED:
            self.dropped += [tag] * (len(self.dropped) < DEEPEST)
        elif self.dropped:
            self.inside[tag] += tag in BLOCKS
        elif tag in BLOCKS:
            self.end_line()
            self.n_pre += tag == "pre"

    def unknown_decl(self, data: str) -> None:
        """Read the text of a CDATA section, as in XHTML."""
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """End the line at a self-closing block such as `<br/>`. A self-closing `<script/>` has no content to skip."""
        if tag in BLOCKS and not self.dropped:
            self.end_line()

    def handle_endtag(self, tag: str) -> None:
        """End the line if the element is a block."""
        if tag == "ruby" and self.dropped and self.dropped[-1] in ("rt", "rp"):
            self.dropped.pop()
        if tag in DROPPED and tag in self.dropped:
            while self.dropped.pop() != tag:
                pass
        elif self.inside[tag]:
            self.inside[tag] -= 1
        elif tag in BLOCKS and tag not in ("p", "br"):
            self.dropped.clear()  # their end tags are missing, because this is the end of the element around them
        if not self.dropped:
            self.inside.clear()
            if tag in BLOCKS:
                self.end_line()
                self.n_pre -= tag == "pre" and self.n_pre > 0

    def handle_data(self, data: str) -> None:
        """Add text to the current line."""
        if not self.dropped:
            self.line.append(data)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Skip an unknown `<![...>` like a comment, as browsers do."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i)

    def repair(self, most: int) -> None:
        """Continue after tags and comments that never end. After `most` of them, leave out all further markup.

        HTMLParser alone would search the rest of the page again for each of them.
        """
        for _ in range(most):
            rest = self.rawdata
            end = rest.find(">", 1) + 1 or rest.find("<", 1)
            if not rest.startswith("</" if self.cdata_elem else "<") or end < 0:
                return
            self.rawdata = ""
            self.handle_data(unescape(rest[:end]))
            self.feed(rest[end:])
        rest, self.rawdata = self.rawdata, ""
        for part in MARKUP.split(rest):
            self.handle_data(unescape(part))
            self.end_line()

    def end_line(self) -> None:
        """Store the current line unless it is blank. Preformatted text is split at its line breaks."""
        text = "".join(self.line)
        parts = (
            [part.rstrip() for part in text.split("\n")]
            if self.n_pre
            else [" ".join(join_lines(text.split("\n")).split())]
        )
        self.lines += [part for part in parts if part.strip()]
        self.line = []


def rtf_lines(text: str) -> list[str]:
    """Return the paragraphs of an RTF document."""
    plain: str = import_extra("striprtf.striprtf", "documents", "RTF documents").rtf_to_text(text, errors="ignore")
    # RTF stores a character beyond U+FFFF, such as an emoji, as two surrogates.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace").split("\n")


def segments(name: str, text: str) -> Segments:
    """Yield the identifier and text of each segment.

    Subtitles are identified by their start time, segments of a test set by document and number.
    """
    match name:
        case "sgm":
            return _test_set(text)
        case "ass":
            return _dialogue(text)
        case _:
            return _cues(text, is_webvtt=name == "vtt")


def numbered_segments(name: str, text: str) -> dict[tuple[str, int], str]:
    """Return the text of each segment, keyed by its identifier and its number among those with this identifier."""
    seen, texts = Counter[str](), dict[tuple[str, int], str]()
    for identifier, content in segments(name, text):
        texts[identifier, seen[identifier]] = content
        seen[identifier] += 1
    return texts


def _cues(text: str, *, is_webvtt: bool) -> Segments:
    """Yield the start time and text of each cue. The text is one line, without styles.

    A blank line ends a cue only in WebVTT, where notes may follow.
    """
    are_rolling, shown = is_webvtt and WORD_TIME.search(text) is not None, list[str]()
    for time, lines in _timed_lines(text, is_webvtt=is_webvtt):
        new = lines if time else []
        if are_rolling and any(map(str.strip, new)):  # each cue begins with the last lines of the cue before
            before, shown = shown, [line for line in map(_plain, lines) if line]
            new = next(shown[n:] for n in (2, 1, 0) if shown[:n] == before[max(0, len(before) - n) :])
        if any(map(str.strip, new)):
            yield time, _plain("\n".join(new))


def _timed_lines(text: str, *, is_webvtt: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of each cue with their start time, which is empty for other lines."""
    time, lines = "", list[str]()
    for line in text.split("\n"):
        if matched := TIMES.match(line):
            if lines and lines[-1].strip().isdecimal():
                lines.pop()  # the number of the next cue
            yield time, lines
            time, lines = _seconds(matched[1]), []
        elif is_webvtt and not line.strip():
            yield time, lines
            time, lines = "", []
        else:
            lines.append(line)
    yield time, lines


def _seconds(time: str) -> str:
    """Return a time in seconds, with three decimals. SubRip uses commas, and WebVTT may omit the hours."""
    *hours, minutes, seconds = time.replace(",", ".").split(":")
    return f"{3600 * int(hours[0] if hours else 0) + 60 * int(minutes) + float(seconds):.3f}"


def _dialogue(text: str) -> Segments:
    for line in text.split("\n"):
        kind, _, rest = line.partition(":")
        fields = rest.split(",", 9)
        if kind.strip() == "Dialogue" and len(fields) == 10:
            yield fields[1].strip(), _plain(re.sub(r"\\[Nn]", "\n", fields[9]).replace(r"\h", " "))


def _test_set(text: str) -> Segments:
    for number, piece in enumerate(PIECE.split(text)):
        name = DOCUMENT_NAME.match(piece)
        for place, matched in enumerate(SEGMENT.finditer(piece)):
            yield f"{name[1] if name else number}\t{matched[1] or place}", _plain(unescape(matched[2]))


def _plain(text: str) -> str:
    return " ".join(join_lines(unescape(STYLE.sub("", text)).split("\n")).split())
