"""HTML split into markup, which is not changed, and texts, which are translated."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape, unescape
from typing import NamedTuple

# Elements that cannot contain tags, and whether their content is translated.
UNPARSED = {"script": False, "style": False, "textarea": True, "title": True}
KEPT = ("script", "style", "code", "kbd", "samp", "var", "math", "svg")  # elements whose text is not translated
PREFORMATTED = ("pre", "textarea")  # elements that show line breaks
VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
_BEGIN = re.compile(r"</?[a-zA-Z]|<[!?]")
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_UNTRANSLATED = re.compile(r"""\s(?:translate\s*=\s*["']?no\b|class\s*=\s*["'][^"']*\bnotranslate\b)""", re.IGNORECASE)
_STOP = re.compile("[>\"']")  # end of a tag, or a quotation mark: inside a quoted value, > does not end the tag
_LETTER = re.compile(r"[^\W\d_]")
_SPACES = re.compile(r"[ \t\r\n\f]+")  # white space that a browser displays as one space
_SPACE = ("&nbsp;", "&#160;", "&#xa0;", "&#xA0;")


class Piece(NamedTuple):
    """A piece of a page: markup, or text with the white space around it."""

    before: str
    text: str = ""  # text without character references; "" if there is nothing to translate
    after: str = ""


def pieces(html: str) -> list[Piece]:
    """Split a page into pieces, in linear time. `with_texts` joins the pieces and inserts the translations."""
    pieces: list[Piece] = []
    kept: list[str] = []  # names of the open elements, from the outermost untranslated one inwards
    n_preformatted = 0  # number of open elements that show line breaks
    for part, is_text in _parts(html):
        lines = part.splitlines(keepends=True) if is_text and n_preformatted > 0 else [part]
        pieces += [_piece(line) if is_text and not kept else Piece(line) for line in lines]
        name = None if is_text else _NAME.match(part)
        if name is not None:
            _track(kept, name[1].lower(), part)
            if name[1].lower() in PREFORMATTED:
                n_preformatted += -1 if part.startswith("</") else 1
    return pieces


def texts_of(parts: Sequence[Piece]) -> list[str]:
    """Return the texts to translate, without duplicates."""
    return list(dict.fromkeys(part.text for part in parts if part.text))


def with_texts(parts: Sequence[Piece], translations: Mapping[str, str]) -> str:
    """Return the page with its texts replaced by these translations."""
    return "".join(
        part.before + escape(translations.get(part.text, part.text), quote=False) + part.after for part in parts
    )


def _piece(part: str) -> Piece:
    begin, end = 0, len(part)
    while begin < end and (n := _space(part, begin)):
        begin += n
    while begin < end and (n := _space_before(part, end)):
        end -= n
    core = unescape(part[begin:end])
    if not _LETTER.search(core):
        return Piece(part)
    return Piece(part[:begin], _SPACES.sub(" ", core), part[end:])


def _space(part: str, place: int) -> int:
    """Return the length of the white space that begins at `place`, or 0."""
    if part[place].isspace():
        return 1
    return next((len(each) for each in _SPACE if part.startswith(each, place)), 0)


def _space_before(part: str, place: int) -> int:
    """Return the length of the white space that ends at `place`, or 0."""
    if part[place - 1].isspace():
        return 1
    return next((len(each) for each in _SPACE if part.endswith(each, 0, place)), 0)


def _track(kept: list[str], name: str, tag: str) -> None:
    """Update `kept`, the list of open elements whose text is not translated, at a start tag or an end tag."""
    if tag.startswith("</"):
        if name in kept:
            del kept[len(kept) - 1 - kept[::-1].index(name) :]
    elif name not in VOID and not tag.endswith("/>") and (kept or name in KEPT or _UNTRANSLATED.search(tag)):
        kept.append(name)


def _parts(html: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a page in order, each with True for text or False for markup."""
    scanner, place, text_from = _Scanner(html), 0, 0
    while (place := html.find("<", place)) >= 0:
        end = scanner.markup_end(place)
        if end is None:
            place += 1
            continue
        if text_from < place:
            yield html[text_from:place], True
        yield html[place:end], False
        name = _NAME.match(html, place, end)
        if name is not None and name[1].lower() in UNPARSED and html[place + 1] != "/":
            closed = scanner.closing(name[1].lower(), end)
            if end < closed:
                yield html[end:closed], UNPARSED[name[1].lower()]
            end = closed
        place = text_from = end
    if text_from < len(html):
        yield html[text_from:], True


class _Scanner:
    """A scanner that finds the ends of markup. A failed search is never repeated."""

    def __init__(self, html: str):
        self._html, self._lower = html, html.lower() if len(html.lower()) == len(html) else html
        self._missing: set[str] = set()
        self._is_broken = False  # whether a closing quotation mark is missing; if so, every > ends a tag

    def markup_end(self, place: int) -> int | None:
        """Return the position after the markup that begins at `place`, or None if text begins there."""
        if self._html.startswith("<!--", place):
            return self._after("-->", place + 4)
        return self._tag_end(place) if _BEGIN.match(self._html, place) else None

    def closing(self, name: str, place: int) -> int:
        """Return the position of the end tag or, if there is none, of the end of the page."""
        after = self._after(f"</{name}", place)
        return len(self._html) if after is None else after - len(name) - 2

    def _tag_end(self, place: int) -> int | None:
        first, at = self._after(">", place + 1), place + 1
        if first is None or self._is_broken:
            return first
        while (match := _STOP.search(self._html, at)) is not None:
            if match[0] == ">":
                return match.end()
            at = self._after(match[0], match.end()) or match.end()
        self._is_broken = True
        return first

    def _after(self, what: str, place: int) -> int | None:
        if what in self._missing:
            return None
        at = self._lower.find(what, place)
        if at < 0:
            self._missing.add(what)
            return None
        return at + len(what)
