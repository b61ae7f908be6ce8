"""Files in zip format: archives of text files, and documents (Word, OpenDocument, EPUB).

No member is extracted under its own name, and nothing in a document is run or fetched.
"""

import posixpath
import re
import zipfile
import zlib
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import Generic, TypeVar
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError, XMLParser, fromstring

from penwright.data.readers.markup import decode_markup, html_lines
from penwright.errors import PenwrightError
from penwright.languages import side_names

BLOCK = 1 << 20
MOST_MEMBERS = 200_000
MOST_UNPACKED = 8 << 30  # maximum total size of all members, in bytes
MOST_RATIO = 250  # maximum ratio of unpacked to packed size; DEFLATE reaches 1,032, but only on pure repetition
LARGE = 64 << 20  # unpacked size, in bytes, above which MOST_RATIO is checked
# zipfile raises NotImplementedError for compression methods that it does not have.
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError, UnicodeError)
NON_DATA = {"readme", "license", "licence", "copying", "changelog", "manifest"}  # first words of names of other files
ALIGNMENTS = {".xml", ".ids", ".scores"}  # suffixes of files of OPUS that say which sentences belong together
MOST_XML = 256 << 20  # maximum size of an XML part of a document, in bytes
STRICT = "{http://purl.oclc.org/ooxml/wordprocessingml/main}"  # has the same elements as W
W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
T = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
Item = TypeVar("Item")
COMPATIBILITY = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
WORD_PARTS = ("word/document.xml", "word/footnotes.xml", "word/endnotes.xml")
WORD_SIGNS = {f"{W}tab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-"}
# Elements whose text is left out, for example ruby annotations (rt).
WORD_SKIPPED = {f"{W}moveFrom", f"{W}rt", f"{W}tabs", f"{COMPATIBILITY}Fallback"}
ODT_SIGNS = {f"{T}tab": "\t", f"{T}line-break": "\n", f"{T}s": " "}
ODT_SKIPPED = {
    f"{OFFICE}annotation",
    *(T + name for name in ("tracked-changes", "note-citation", "table-of-content", "alphabetical-index", "ruby-text")),
}


def archive_of(path: str | Path) -> Path | None:
    """Return the .zip archive that contains the file at this path, or None."""
    path = Path(path)
    for parent in path.parents:
        if parent.suffix.lower() == ".zip":
            try:
                return parent if zipfile.is_zipfile(parent) else None
            except OSError:
                return None
    return None


def is_archive(path: str | Path) -> bool:
    """Return whether the path is a .zip archive of files. Documents in zip format (.docx and others) do not count."""
    path = Path(path)
    return path.suffix.lower() == ".zip" and path.is_file() and zipfile.is_zipfile(path)


def members(archive: str | Path) -> list[Path]:
    """Return the paths of the visible files in an archive, sorted by name."""
    with open_zip(archive) as opened:
        names = [PurePosixPath(entry.filename) for entry in opened.infolist() if not entry.is_dir()]
    # Hidden files are left out, and so are paths that contain "..".
    visible = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.parts)]
    return [Path(archive) / name.relative_to(name.anchor) for name in sorted(set(visible))]


def data_members(archive: str | Path) -> list[Path]:
    """Return the data files in an archive, without README, LICENSE and the like, and without alignments of OPUS."""
    paths = [path for path in members(archive) if re.split(r"[\W_]", path.name.lower())[0] not in NON_DATA]
    sides = [path for path in paths if path.suffix.lower() not in ALIGNMENTS]
    return sides if len(sides) == 2 and side_names(*map(str, sides)) else paths


def member_blocks(archive: Path, path: Path) -> Iterator[bytes]:
    """Yield the bytes of one member in blocks. `path` is its path through the archive.

    Raises PenwrightError if the member is missing, damaged or protected by a password.
    """
    name = path.relative_to(archive).as_posix()
    with open_zip(archive) as opened:
        found = (each for each in opened.infolist() if posixpath.normpath(each.filename).lstrip("/") == name)
        member = next(found, None)
        if member is None:
            raise PenwrightError(f"{archive} does not contain the file {name}")
        if member.flag_bits & 1:
            raise PenwrightError(f"{path} is protected by a password. Unpack {archive} and pass the folder")
        try:
            with opened.open(member) as file:
                while block := file.read(BLOCK):
                    yield block
        except (*DAMAGE, RuntimeError) as error:
            raise PenwrightError(f"{path} is damaged ({error}). Download or create {archive} again") from None


def open_zip(archive: str | Path | BufferedIOBase, name: str = "") -> zipfile.ZipFile:
    """Open a zip archive, or a document in zip format, and check its sizes. `name` is for error messages.

    Raises PenwrightError if the archive is damaged, or looks like a zip bomb.
    """
    name = name or str(archive)
    try:
        opened = zipfile.ZipFile(archive)
    except DAMAGE as error:
        raise PenwrightError(f"{name} is damaged or truncated ({error}). Download or save it again") from None
    entries = opened.infolist()
    unpacked, packed = sum(entry.file_size for entry in entries), max(1, sum(entry.compress_size for entry in entries))
    if len(entries) > MOST_MEMBERS or unpacked > MOST_UNPACKED or unpacked > max(LARGE, MOST_RATIO * packed):
        opened.close()
        raise PenwrightError(
            f"{name} looks like a zip bomb: it claims {len(entries):,} files with {unpacked:,} bytes, packed into "
            f"{packed:,} bytes. If you trust it, unpack it and pass the folder"
        )
    return opened


def docx_lines(file: BufferedIOBase, name: str) -> Iterator[str]:
    """Yield the paragraphs of a Word document, then its footnotes and endnotes, without deleted text."""
    with open_zip(file, name) as opened:
        contents = set[str]()
        with suppress(PenwrightError):  # the text can be read without its styles
            contents.update(parse_xml(opened, "word/styles.xml", name, _ContentsStyles()))
        for part in WORD_PARTS:
            if part in opened.namelist():
                paragraphs = _Paragraphs({f"{W}p"}, WORD_SIGNS, WORD_SKIPPED, text_in=f"{W}t")
                paragraphs.contents = contents
                yield from parse_xml(opened, part, name, paragraphs)


def odt_lines(file: BufferedIOBase, name: str) -> Iterator[str]:
    """Yield the headings and paragraphs of an OpenDocument text document, each followed by its footnotes."""
    with open_zip(file, name) as opened:
        if "content.xml" in opened.namelist() and b"encryption-data" in _read(opened, "META-INF/manifest.xml", name):
            raise PenwrightError(f"{name} is protected by a password. Save it without one")
        yield from parse_xml(opened, "content.xml", name, _Paragraphs({f"{T}p", f"{T}h"}, ODT_SIGNS, ODT_SKIPPED))


def epub_lines(file: BufferedIOBase, name: str) -> Iterator[str]:
    """Yield the paragraphs of an EPUB book in reading order, without the table of contents."""
    with open_zip(file, name) as opened:
        parts = _reading_order(opened, name)
        protected = unquote(_read(opened, "META-INF/encryption.xml", name).decode("utf-8", "replace"))
        if any(part in protected for part in parts):  # in many books, only the fonts are encrypted
            raise PenwrightError(f"{name} is protected by DRM and cannot be read. Use an unprotected edition")
        for part in parts:
            yield from html_lines(decode_markup(_read(opened, part, name)))


class XmlTarget(Generic[Item]):
    """A parser target that collects items from the XML of an office document."""

    def __init__(self) -> None:
        self.items: list[Item] = []  # finished items that have not been fetched yet

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        """Refuse a DTD: office programs write none, and the entities in a DTD could expand without limit."""
        raise ParseError("the XML has a DTD")


class _ContentsStyles(XmlTarget[str]):
    """A parser target that collects the identifiers of the styles for contents, which depend on the language."""

    style = ""

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Store the identifier of a style whose name marks a table of contents. The name is always English."""
        if tag.replace(STRICT, W) == f"{W}style":
            self.style = _word_attribute(attributes, "styleId")
        elif tag.replace(STRICT, W) == f"{W}name" and _word_attribute(attributes, "val").lower().startswith("toc "):
            self.items.append(self.style)


def _word_attribute(attributes: Mapping[str, str], name: str) -> str:
    return attributes.get(W + name) or attributes.get(STRICT + name, "")


class _Paragraphs(XmlTarget[str]):
    """A parser target that collects the text of paragraphs. A nested paragraph follows the one that contains it."""

    def __init__(
        self, paragraphs: Container[str], signs: Mapping[str, str], skipped: Container[str], text_in: str | None = None
    ) -> None:
        super().__init__()
        self.paragraphs, self.signs, self.skipped, self.text_in = paragraphs, signs, skipped, text_in
        self.open: list[list[str]] = []  # the open paragraphs, innermost last
        self.inside: list[list[str]] = []  # the outermost open paragraph, then those inside it, in reading order
        self.contents: Container[str] = ()  # the styles of a table of contents, which is left out
        self.n_skipped = 0  # number of open elements whose text is left out
        self.is_text = text_in is None

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin a paragraph, or add the character that the element represents."""
        tag = tag.replace(STRICT, W)
        if self.n_skipped or tag in self.skipped:
            self.n_skipped += 1
        elif tag in self.paragraphs:
            self.open.append([])
            self.inside.append(self.open[-1])
        elif self.open and tag in self.signs:
            self.open[-1].append(self.signs[tag] * min(1000, int(attributes.get(f"{T}c", 1))))
        elif tag == self.text_in:
            self.is_text = True
        elif self.open and tag == f"{W}pStyle":
            style = _word_attribute(attributes, "val")
            if style.upper().startswith("TOC") or style in self.contents:
                self.inside = [each for each in self.inside if each is not self.open[-1]]

    def data(self, text: str) -> None:
        """Add text to the innermost paragraph."""
        if self.open and self.is_text and not self.n_skipped:
            self.open[-1].append(text)

    def end(self, tag: str) -> None:
        """End a paragraph."""
        tag = tag.replace(STRICT, W)
        if self.n_skipped:
            self.n_skipped -= 1
        elif tag == self.text_in:
            self.is_text = False
        elif tag in self.paragraphs:
            self.open.pop()
            if not self.open:
                self.items += [line for parts in self.inside for line in "".join(parts).split("\n")]
                self.inside = []


def parse_xml(opened: zipfile.ZipFile, part: str, name: str, target: XmlTarget[Item]) -> Iterator[Item]:
    """Yield the items that the parser target finds in an XML part. Raises PenwrightError if the part is damaged."""
    parser = XMLParser(target=target)
    try:
        with opened.open(part) as stream:
            while block := stream.read(BLOCK):
                parser.feed(block)
                yield from target.items
                target.items = []
        parser.close()
    except (ParseError, KeyError, RuntimeError, *DAMAGE) as error:
        raise _damaged(name, part, error) from None
    yield from target.items


def _read(opened: zipfile.ZipFile, part: str, name: str) -> bytes:
    """Return the content of a part of a document; b"" if the part is missing.

    Raises PenwrightError if the part is damaged or too large.
    """
    try:
        with opened.open(part) as stream:
            content = stream.read(MOST_XML + 1)
    except KeyError:
        return b""
    except (RuntimeError, *DAMAGE) as error:
        raise _damaged(name, part, error) from None
    if len(content) > MOST_XML:
        raise PenwrightError(f"{name}: {part} is larger than {MOST_XML >> 20} MiB. Split the document")
    return content


def _damaged(name: str, part: str, error: Exception) -> PenwrightError:
    return PenwrightError(
        f"{name} is damaged or protected by a password: {part} cannot be read ({error}). "
        "Save or download it again, without a password"
    )


def _reading_order(opened: zipfile.ZipFile, name: str) -> list[str]:
    """Return the chapters of a book in the order of its spine; without a spine, all its pages sorted by name."""
    container = _tree(opened, "META-INF/container.xml", name)
    package = next((each.get("full-path", "") for each in container.iter() if _local(each) == "rootfile"), "")
    items, order, parts = {}, [], opened.namelist()
    names = {each.lower(): each for each in parts} | {each: each for each in parts}  # the manifest may differ in case
    for element in _tree(opened, package, name).iter():
        if _local(element) == "item" and "nav" not in element.get("properties", "").split():
            part = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(element.get("href", ""))))
            items[element.get("id")] = names.get(part) or names.get(part.lower(), part)
        elif _local(element) == "itemref":
            order.append(element.get("idref"))
    chapters = [items[each] for each in dict.fromkeys(order) if each in items]
    return chapters or sorted(each for each in parts if each.lower().endswith((".xhtml", ".html", ".htm")))


def _tree(opened: zipfile.ZipFile, part: str, name: str) -> Element:
    content = _read(opened, part, name).lstrip()
    try:
        return fromstring(b"<none/>" if not content or b"<!ENTITY" in content else content)
    except ParseError as error:
        raise _damaged(name, part, error) from None


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
