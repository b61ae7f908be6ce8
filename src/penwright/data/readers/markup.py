"""Text of formats that mark up plain text: RTF, subtitles, and the .sgm files of WMT test sets."""

import re
from collections.abc import Iterator
from html import unescape

from penwright.data.readers.extras import require_library

TIMES = re.compile(r"^[ \t]*((?:\d+:)?\d+:\d\d[,.]\d{1,3})[ \t]*-->[ \t]*(?:\d+:)?\d+:\d\d[,.]\d{1,3}")
STYLE = re.compile(r"\{\\[^}]*\}|</?(?:[biuv]|c|font|ruby|rt|lang)(?:[ .][^>]*)?>|<\d[\d:.]*>")
SEGMENT = re.compile(r"<seg(?:\s+id\s*=\s*[\"']?([^\"'\s>]*)[\"']?)?[^>]*>(.*?)</seg\s*>", re.IGNORECASE | re.DOTALL)
PIECE = re.compile(r"(?=<doc[\s>])", re.IGNORECASE)
DOCUMENT_NAME = re.compile(r"<doc\s[^>]*?docid\s*=\s*[\"']?([^\"'>]*)", re.IGNORECASE)
Segments = Iterator[tuple[str, str]]  # an identifier and a text each


def rtf_lines(text: str) -> list[str]:
    """Return the paragraphs of an RTF document."""
    require_library("striprtf", "RTF documents")
    from striprtf.striprtf import rtf_to_text  # noqa: PLC0415 - an extra

    plain: str = rtf_to_text(text, errors="ignore")
    return plain.split("\n")


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
            return _cues(text)


def _cues(text: str) -> Segments:
    """Yield the start time and text of each cue. The text is one line, without styles."""
    time: str | None = None
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        matched = TIMES.match(line)
        if matched:
            if time is not None and lines and lines[-1].strip().isdecimal():
                lines.pop()  # the number of this cue, without a blank line before it
            if time is not None and lines:
                yield time, _plain(" ".join(lines))
            time, lines = _seconds(matched[1]), []
        elif line.strip():
            lines.append(line)
        elif time is not None and lines:
            yield time, _plain(" ".join(lines))
            time, lines = None, []
        else:
            lines = []
    if time is not None and lines:
        yield time, _plain(" ".join(lines))


def _seconds(time: str) -> str:
    """Return a time in seconds, with three decimals. SubRip uses commas, and WebVTT may omit the hours."""
    *hours, minutes, seconds = time.replace(",", ".").split(":")
    return f"{3600 * int(hours[0] if hours else 0) + 60 * int(minutes) + float(seconds):.3f}"


def _dialogue(text: str) -> Segments:
    for line in text.split("\n"):
        kind, _, rest = line.partition(":")
        fields = rest.split(",", 9)
        if kind.strip() == "Dialogue" and len(fields) == 10:
            yield fields[1].strip(), _plain(re.sub(r"\\[Nnh]", " ", fields[9]))


def _test_set(text: str) -> Segments:
    for number, piece in enumerate(PIECE.split(text)):
        name = DOCUMENT_NAME.match(piece)
        for place, matched in enumerate(SEGMENT.finditer(piece)):
            yield f"{name[1] if name else number}\t{matched[1] or place}", _plain(unescape(matched[2]))


def _plain(text: str) -> str:
    return " ".join(unescape(STYLE.sub("", text)).split())
