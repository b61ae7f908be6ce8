"""TMX, the translation memories of translators' programs, read without keeping them in memory."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from xml.etree.ElementTree import Element, ParseError, iterparse

from penwright.data.files import SourceFile, open_raw
from penwright.errors import PenwrightError

XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
SAMPLE = 1000


def read_tmx(file: SourceFile, source: str, target: str) -> Iterator[tuple[str, str] | None]:
    """A pair of each unit; None where one of the two languages is missing."""
    for unit in _units(file):
        pair = unit.get(_primary(source)), unit.get(_primary(target))
        yield (pair[0], pair[1]) if pair[0] is not None and pair[1] is not None else None


def tmx_languages(file: SourceFile, source: str | None, target: str | None) -> tuple[str, str]:
    """The two languages, as told or as most units have them, in their order there."""
    counts = Counter(language for unit in islice(_units(file), SAMPLE) for language in unit)
    told = [None if name is None else _primary(name) for name in (source, target)]
    for name in filter(None, told):
        if name not in counts:
            raise PenwrightError(f"{file.path} has no language '{name}'; it has: {', '.join(counts) or 'none'}")
    others = (language for language, _ in counts.most_common() if language not in told)
    first, second = (name or next(others, None) for name in told)
    if first is None or second is None:
        raise PenwrightError(f"{file.path} holds no translations; its languages are: {', '.join(counts) or 'none'}")
    return first, second


def _primary(language: str) -> str:
    """`en` of `EN-us`."""
    return language.lower().replace("_", "-").split("-")[0]


def _units(file: SourceFile) -> Iterator[dict[str, str]]:
    """The texts of each unit by their languages."""
    with open_raw(file.path) as stream:
        try:
            parents: list[Element] = []
            for event, element in iterparse(stream, events=("start", "end")):
                if event == "start":
                    parents.append(element)
                    continue
                parents.pop()
                if _name(element) == "tu":
                    yield _texts(element)
                    for parent in parents[-1:]:
                        parent.clear()  # so that what was read does not pile up
        except ParseError as error:
            raise PenwrightError(f"{file.path} is not valid XML: {error}") from None


def _texts(unit: Element) -> dict[str, str]:
    texts: dict[str, str] = {}
    for variant in unit:
        language = variant.get(XML_LANG) or variant.get("lang")
        segment = next((child for child in variant if _name(child) == "seg"), None)
        if language and segment is not None:
            texts.setdefault(_primary(language), " ".join("".join(segment.itertext()).split()))
    return texts


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
