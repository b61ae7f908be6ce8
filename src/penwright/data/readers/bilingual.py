"""Sentence pairs from files of translations: TMX, XLIFF, TBX, PO, WMT test sets, and subtitles in two languages."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from gettext import c2py
from itertools import islice
from xml.etree.ElementTree import Element, ParseError, fromstring

from penwright.data.corpus import Broken
from penwright.data.files import SourceFile, read_markup
from penwright.data.readers.formats import FORMATS
from penwright.data.readers.markup import numbered_segments
from penwright.errors import PenwrightError, import_extra
from penwright.text import join_lines

SEVERAL = 5  # the English plural is paired with the translation for this number
SAMPLE = 1000  # number of translation units (pairs) from which the languages are detected
Pairs = Iterator[tuple[str, str] | Broken]
DAMAGED = Broken("damaged, or without text in any language")
ONE_SIDED = Broken("without a translation")
UNSURE = Broken("without a translation, or marked as fuzzy")
ALONE = Broken("without a counterpart in the other file")
ENOUGH = 0.5  # minimum share of matching segments in two files
LANG = "{http://www.w3.org/XML/1998/namespace}lang"
LONGEST = 4 << 20  # maximum length of a translation unit, in characters; a longer one counts as damaged
# The elements that contain translations.
NAMES = {"tmx": "tu", "xliff": "trans-unit|unit", "tbx": "termEntry|conceptEntry", "wmt": "doc"}
ROOT_END = {"tmx": "tmx", "xliff": "xliff", "wmt": "dataset", "tbx": "tbx|martif"}
SIDES = {"tuv", "langSet", "langSec"}
CODES = {"bpt", "ept", "ph", "it", "ut"}  # elements with formatting codes; a `sub` inside them is text
BREAK = "\0"  # stands for a line break; XML cannot contain it
LINE_BREAK = re.compile(r"(?:xlf:|x-)?(?:lb|br)|<br\s*/?>", re.IGNORECASE)  # marks a code that breaks the line
UNTRANSLATED = {"new", "needs-translation", "initial"}  # states in which a target may be only a copy of the source
PREFIX = re.compile(r"[<\s/](?!xml:|xmlns:)([A-Za-z_][A-Za-z0-9_.-]*):(?=[A-Za-z_])")
LANGUAGES = re.compile(r"""\s(source-language|target-language|srcLang|trgLang)\s*=\s*["']([^"']*)["']""")
Texts = dict[str, str]  # the texts of a translation unit, keyed by language


def holds_pairs(file: SourceFile) -> bool:
    """Return whether the file holds texts with their translations."""
    return bool(file.format) and FORMATS[file.format].kind == "pairs"


def holds_segments(file: SourceFile) -> bool:
    """Return whether the file holds numbered or timed segments: subtitles, or one side of a test set."""
    return bool(file.format) and FORMATS[file.format].kind == "segments"


def bilingual_languages(file: SourceFile, source: str | None, target: str | None) -> tuple[str, str]:
    """Return the two languages to read: the requested ones or, failing that, the most frequent ones.

    A PO file has the languages `msgid` and `msgstr`. Regions (pt-BR, pt-PT) count as languages of their own only if
    they are requested, or if the file has a single language. Raises PenwrightError if a language is missing.
    """
    if file.format == "po":
        return ("msgstr", "msgid") if source == "msgstr" or target == "msgid" else ("msgid", "msgstr")
    counts = Counter(language for texts in islice(read_units(file), SAMPLE) for language in texts)
    wanted = {_primary(_normalized(name)) for name in (source, target) if name is not None}
    if len(counts) < 2 or not wanted <= set(map(_primary, counts)):  # the sample may contain no translation
        counts = Counter(language for texts in read_units(file) for language in texts)
    requested = [None if name is None else _find_language(file, name, counts) for name in (source, target)]
    wide = Counter[str]()
    for language, n in counts.items():
        wide[_primary(language)] += n
    names = [language for language, _ in (wide if len(wide) > 1 else counts).most_common()]
    others = (name for name in names if name not in {*requested, *map(_primary, filter(None, requested))})
    first, second = (name or next(others, None) for name in requested)
    if first is None or second is None:
        has = f"its only language is {names[0]}" if names else "no translation unit declares the language of its text"
        raise PenwrightError(f"{file.path} is {FORMATS[file.format].description} without translations: {has}")
    return first, second


def bilingual_pairs(file: SourceFile, source: str, target: str) -> Pairs:
    """Yield one pair for each translation unit. A language without a region (`de`) includes all its regions."""
    if file.format == "po":
        return _po_pairs(file, is_swapped=source == "msgstr")
    return (_pair(texts, source, target) for texts in read_units(file))


def segment_pairs(first: SourceFile, second: SourceFile, encoding: str | None) -> Pairs:
    """Yield the pairs of segments with the same document and number, or the same time, in two files.

    A segment of the first file without a counterpart is yielded as broken. Raises PenwrightError if fewer than half of
    the segments match.
    """
    sides = [numbered_segments(each.format, read_markup(each.path, encoding)) for each in (first, second)]
    shared = sides[0].keys() & sides[1].keys()
    if len(shared) < ENOUGH * max(map(len, sides)):
        by = "document and number" if first.format == "sgm" else "time"
        raise PenwrightError(
            f"{first.path} and {second.path} are not translations of each other: only {len(shared):,} of their "
            f"{len(sides[0]):,} and {len(sides[1]):,} segments have the same {by}"
        )
    for key, text in sides[0].items():
        yield (text, sides[1][key]) if key in shared else ALONE


def _pair(texts: dict[str, str], source: str, target: str) -> tuple[str, str] | Broken:
    first, second = _side(texts, source), _side(texts, target)
    if first is None or second is None:
        return ONE_SIDED if texts else DAMAGED
    return first, second


def _side(texts: dict[str, str], name: str) -> str | None:
    matches = (text for language, text in texts.items() if language == name or language.startswith(f"{name}-"))
    return next(matches, None)


def _normalized(language: str) -> str:
    return language.lower().replace("_", "-")


def _primary(language: str) -> str:
    """Return the language without its region: `en` for `en-us`."""
    return language.split("-", maxsplit=1)[0]


def _find_language(file: SourceFile, name: str, counts: Counter[str]) -> str:
    """Return the name that a file uses for a requested language, with the region only if the file has several regions.

    Raises PenwrightError if the file does not have the language.
    """
    name = _normalized(name)
    alike = [language for language in counts if _primary(language) == _primary(name)]
    if name in alike and len(alike) > 1:
        return name
    if not alike or (len(alike) > 1 and name != _primary(name)):
        raise PenwrightError(f"{file.path} has no language '{name}'. It has: {_list_languages(list(counts))}")
    return _primary(name)


def _list_languages(languages: Sequence[str]) -> str:
    """List the languages. Regions are listed only for a language with several of them."""
    regions = Counter(map(_primary, languages))
    return ", ".join(each if regions[_primary(each)] > 1 else _primary(each) for each in languages) or "none"


def _po_pairs(file: SourceFile, *, is_swapped: bool) -> Pairs:
    polib = import_extra("polib", "documents", "PO files")
    try:
        entries = polib.pofile(f"{''.join(file.blocks())}\n")
    except (OSError, ValueError) as error:
        raise PenwrightError(f"{file.path} is a damaged PO file: {error}") from None
    plural = _plural_forms(entries.metadata.get("Plural-Forms", ""))
    for entry in entries:
        if entry.obsolete:
            continue
        pairs = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural and entry.msgstr_plural:
            forms = [entry.msgstr_plural.get(number, "") for number in plural or (0, max(entry.msgstr_plural))]
            pairs = list(zip((entry.msgid, entry.msgid_plural), forms, strict=True))
        for first, second in pairs:
            sides = (" ".join(second.split()), " ".join(first.split()))
            yield UNSURE if entry.fuzzy or not second else sides if is_swapped else sides[::-1]


def _plural_forms(rule: str) -> tuple[int, int] | None:
    """Apply the plural rule in the header of a PO file: return the indices of the forms for 1 and for SEVERAL."""
    expression = re.split(r"\bplural\s*=", rule)[-1].partition(";")[0].strip()
    try:
        form_of = c2py(expression)  # accepts only numbers, operators and n, and runs no other code
        return form_of(1), form_of(SEVERAL)
    except (ValueError, ArithmeticError):  # the header has no valid rule
        return None


def read_units(file: SourceFile) -> Iterator[Texts]:
    """Yield a dictionary from language to text for each translation unit; it is empty if the unit is damaged."""
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
    """Split the file into translation units and the text between them. Yield each text, and whether it is a unit.

    Raises PenwrightError if the end of the file is missing.
    """
    names = NAMES[file.format]
    is_empty = r"""(?:[^<>"']|"[^"]*"|'[^']*')*/>"""
    start = re.compile(rf"<(?:[\w.-]+:)?(?:{names})(?=[\s>])(?!{is_empty})")
    end = re.compile(rf"</(?:[\w.-]+:)?(?:{names})\s*>")
    rest, before = "", ""
    for block in file.blocks():
        rest += block
        position = 0
        while begin := start.search(rest, position):
            close = end.search(rest, begin.end())
            if not close:
                break
            yield False, rest[position : begin.start()]
            yield True, rest[begin.start() : close.end()]
            position = close.end()
        before, rest = rest[max(0, position - 100) : position], rest[position:]
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
    """Return the first text of each language in a TMX or TBX unit."""
    texts: Texts = {}
    for side in unit.iter():
        language = side.get(LANG) or side.get("lang")
        if _name(side) in SIDES and language:
            text = next((_text(each) for each in side.iter() if _name(each) in ("seg", "term")), None)
            if text is not None:
                texts.setdefault(_normalized(language), text)
    return texts


def _xliff_texts(unit: Element, source: str, target: str) -> Iterator[Texts]:
    """Yield the texts of an XLIFF 1.2 unit, or of each segment in an XLIFF 2 unit."""
    if source == target:
        source, target = "source", "target"
    for segment in [each for each in unit if _name(each) == "segment"] or [unit]:
        for first, second in _xliff_sides(segment):
            yield {language: text for language, text in {source: first, target: second}.items() if text}


def _xliff_sides(segment: Element) -> Iterator[tuple[str, str]]:
    """Yield both sides of each sentence that is marked in an XLIFF 1.2 unit; without marks, of the whole segment."""
    parts = {_name(each): each for each in reversed(segment)}
    original, translation = parts.get("source"), parts.get("target")
    states = {each.get("state") for each in (segment, translation) if each is not None}
    if states & UNTRANSLATED and _text(translation) in ("", _text(original)):
        translation = None
    first, second = _marked(parts.get("seg-source", original)), _marked(translation)
    if first and (translation is None or (second and second.keys() <= first.keys())):
        yield from ((text, second.get(mark, "")) for mark, text in first.items())
    else:
        yield _text(original), _text(translation)


def _marked(side: Element | None) -> Texts:
    """Return the text of each marked sentence, keyed by its identifier."""
    elements = () if side is None else side.iter()
    marks = (each for each in elements if _name(each) == "mrk" and each.get("mtype") == "seg")
    return {each.get("mid", str(n)): _text(each) for n, each in enumerate(marks)}


def _wmt_texts(document: Element) -> Iterator[Texts]:
    """Yield each segment of a document in a WMT test set with its first reference."""
    sides = [each for each in document.iter() if _name(each) in ("src", "ref") and each.get("lang")]
    by_id: dict[str, Texts] = {}
    for side in sides:
        for segment in side.iter("seg"):
            by_id.setdefault(segment.get("id", ""), {}).setdefault(side.get("lang", "").lower(), _text(segment))
    yield from by_id.values()


def _text(element: Element | None) -> str:
    """Return the text of an element without formatting codes, at any depth of nesting."""
    parts: list[str] = []
    waiting: list[tuple[Element | str, bool]] = [] if element is None else [(element, True)]
    while waiting:
        each, is_text = waiting.pop()
        if isinstance(each, str):
            parts.append(each if is_text else "")
            continue
        inside = (is_text or _name(each) == "sub") and _name(each) not in CODES
        waiting += [pair for child in reversed(each) for pair in ((child.tail or "", inside), (child, inside))]
        parts.append((each.text or "") if inside else "")
        values = (value for name, value in each.items() if name not in (LANG, "lang"))  # `br` is also Breton
        if any(map(LINE_BREAK.fullmatch, (*values, (each.text or "").strip()))):
            parts.append(BREAK)
    return join_lines(" ".join(line.split()) for line in "".join(parts).split(BREAK))


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
