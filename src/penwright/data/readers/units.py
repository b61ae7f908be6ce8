"""Translation units in XML files.

Each unit is cut out and parsed by itself. Damage therefore costs a single unit, and no entity can be defined.
"""

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, ParseError, fromstring

from penwright.data.files import SourceFile
from penwright.errors import PenwrightError

LANG = "{http://www.w3.org/XML/1998/namespace}lang"
LONGEST = 4 << 20  # characters; anything longer is damage, not a unit
NAMES = {  # elements that contain translations
    "tmx": ("tu",),
    "xliff": ("trans-unit", "unit"),
    "tbx": ("termEntry", "conceptEntry"),
    "wmt": ("doc",),
}
ROOT_END = {"tmx": "tmx", "xliff": "xliff", "wmt": "dataset", "tbx": "tbx|martif"}
SIDES = {"tuv", "langSet", "langSec"}
CODES = {"bpt", "ept", "ph", "it", "ut"}  # their content is code for a program; a `sub` in them is text
PREFIX = re.compile(r"[<\s/](?!xml:|xmlns:)([A-Za-z_][\w.-]*):(?=[A-Za-z_])")
LANGUAGES = re.compile(r"""\s(source-language|target-language|srcLang|trgLang)\s*=\s*["']([^"']*)["']""")
Texts = dict[str, str]  # texts of a unit by language


def read_units(file: SourceFile) -> Iterator[Texts]:
    """Yield the texts of each unit by language; an empty table for a damaged unit."""
    languages = {"source": "source", "target": "target"}
    for is_unit, text in _pieces(file):
        if not is_unit:
            for name, language in LANGUAGES.findall(text):
                languages["source" if name.lower().startswith("s") else "target"] = language
            continue
        unit = _parse_unit(text)
        if unit is None:
            yield {}
        elif file.format == "xliff":
            yield from _xliff_texts(unit, languages["source"].lower(), languages["target"].lower())
        elif file.format == "wmt":
            yield from _wmt_texts(unit)
        else:
            yield _side_texts(unit)


def _pieces(file: SourceFile) -> Iterator[tuple[bool, str]]:
    """Cut the file into units and the text between them; yield whether a piece is a unit, and the piece.

    Raises PenwrightError if the end of the file is missing.
    """
    names = "|".join(NAMES[file.format])
    start = re.compile(rf"<(?:[\w.-]+:)?(?:{names})(?=[\s>])")
    end = re.compile(rf"</(?:[\w.-]+:)?(?:{names})\s*>")
    rest, before = "", ""
    for block in file.blocks():
        rest += block
        place = 0
        while begin := start.search(rest, place):
            close = end.search(rest, begin.end())
            if not close:
                break
            yield False, rest[place : begin.start()]
            yield True, rest[begin.start() : close.end()]
            place = close.end()
        before, rest = rest[max(0, place - 100) : place], rest[place:]
        if begin and len(rest) > LONGEST:
            yield True, ""
            rest = ""
        elif not begin and len(rest) > LONGEST:
            yield False, rest[:-1000]
            rest = rest[-1000:]
    if not re.search(rf"</(?:[\w.-]+:)?(?:{ROOT_END[file.format]})\s*>\s*(<!--.*)?\Z", before + rest, re.DOTALL):
        raise PenwrightError(f"{file.path} is truncated: its closing tag is missing. Download or export it again")


def _parse_unit(text: str) -> Element | None:
    declared = "".join(f' xmlns:{prefix}="{prefix}"' for prefix in sorted(set(PREFIX.findall(text))))
    try:
        return fromstring(f"<unit{declared}>{text}</unit>")[0]
    except (ParseError, IndexError, ValueError):
        return None


def _side_texts(unit: Element) -> Texts:
    """Return the texts of a TMX or TBX unit, the first of each language."""
    texts: Texts = {}
    for side in unit.iter():
        language = side.get(LANG) or side.get("lang")
        if _name(side) in SIDES and language:
            text = next((_text(each) for each in side.iter() if _name(each) in ("seg", "term")), None)
            if text is not None:
                texts.setdefault(language.lower().replace("_", "-"), text)
    return texts


def _xliff_texts(unit: Element, source: str, target: str) -> Iterator[Texts]:
    """Yield the texts of an XLIFF 1.2 unit, or of each segment in an XLIFF 2 unit."""
    if source == target:
        source, target = "source", "target"
    segments = [each for each in unit if _name(each) == "segment"] or [unit]
    for segment in segments:
        sides = {_name(each): _text(each) for each in reversed(segment) if _name(each) in ("source", "target")}
        named = {source: sides.get("source", ""), target: sides.get("target", "")}
        yield {language: text for language, text in named.items() if text}


def _wmt_texts(document: Element) -> Iterator[Texts]:
    """Yield each segment of a document in a WMT test set with its first reference."""
    sides = [each for each in document.iter() if _name(each) in ("src", "ref") and each.get("lang")]
    by_id: dict[str, Texts] = {}
    for side in sides:
        for segment in side.iter("seg"):
            by_id.setdefault(segment.get("id", ""), {}).setdefault(side.get("lang", "").lower(), _text(segment))
    yield from by_id.values()


def _text(element: Element) -> str:
    """Return the text of an element without its codes, at any depth of nesting."""
    parts: list[str] = []
    waiting: list[tuple[Element | str, bool]] = [(element, True)]
    while waiting:
        each, is_text = waiting.pop()
        if isinstance(each, str):
            parts.append(each if is_text else "")
            continue
        inside = (is_text or _name(each) == "sub") and _name(each) not in CODES
        waiting += [pair for child in reversed(each) for pair in ((child.tail or "", inside), (child, inside))]
        parts.append((each.text or "") if inside else "")
    return " ".join("".join(parts).split())


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
