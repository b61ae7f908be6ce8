"""Detection of file formats by content or file name, and checks for the libraries that read them."""

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain
from pathlib import PurePath
from typing import Literal

HEAD = 1 << 16  # number of bytes from which the format is detected
PACKED = b"PK\x03\x04"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@dataclass(frozen=True)
class Format:
    """A file format, and how Penwright reads it."""

    name: str
    description: str  # name with an article, for messages
    kind: Literal["plain", "document", "markup", "segments", "pairs", "sheet", "archive", "other"]
    remedy: str = ""  # advice to the user about an unsupported file (kind "other")

    @property
    def is_decoded(self) -> bool:
        """Whether the file is read as plain text, for which the encoding must be known."""
        return self.kind in ("plain", "pairs")


def _other(name: str, what: str, remedy: str) -> Format:
    return Format(name, what, "other", remedy)


PLAIN = Format("", "text", "plain")
FORMATS = {
    each.name: each
    for each in (
        Format("docx", "a Word document", "document"),
        Format("odt", "an OpenDocument text document", "document"),
        Format("epub", "an EPUB book", "document"),
        Format("pdf", "a PDF document", "document"),
        Format("html", "a web page", "markup"),
        Format("rtf", "an RTF document", "markup"),
        Format("srt", "subtitles (SubRip)", "segments"),
        Format("vtt", "subtitles (WebVTT)", "segments"),
        Format("ass", "subtitles (SubStation Alpha)", "segments"),
        Format("sgm", "a WMT test set (.sgm)", "segments"),
        Format("tmx", "a translation memory (TMX)", "pairs"),
        Format("xliff", "a translation file (XLIFF)", "pairs"),
        Format("tbx", "a term base (TBX)", "pairs"),
        Format("wmt", "a WMT test set (.xml)", "pairs"),
        Format("po", "a translation file (PO)", "pairs"),
        Format("xlsx", "an Excel workbook", "sheet"),
        Format("ods", "an OpenDocument spreadsheet", "sheet"),
        Format("zip", "a .zip archive", "archive"),
        _other("pptx", "a presentation", "save it as PDF or as text"),
        _other("iwork", "a Pages, Numbers or Keynote document", "export it as .docx, .xlsx or PDF"),
        _other("tar", "a .tar archive", "unpack it (tar xf) and pass the folder"),
        _other("lfs", "a Git LFS pointer, not the file itself", "run git lfs pull to get the file"),
        _other("annex", "a git-annex pointer, not the file itself", "run git annex get to get the file"),
        _other(
            "error page",
            "a web page (HTML) under another name, often the error page of a failed download",
            "download the file again; if you want the page itself, rename it to .html",
        ),
        _other(
            "ole",
            "an old Office document, or one protected by a password",
            "save it without a password as .docx, .xlsx or .txt",
        ),
        _other("xml", "XML of an unsupported kind", "save its text as a .txt file"),
    )
}
ROOTS = {
    "tmx": "tmx",
    "xliff": "xliff",
    "martif": "tbx",
    "tbx": "tbx",
    "dataset": "wmt",
    "srcset": "sgm",
    "refset": "sgm",
    "tstset": "sgm",
    "mteval": "sgm",
    "html": "html",
}
BY_SUFFIX = {
    **dict.fromkeys((".xliff", ".xlf", ".sdlxliff", ".mxliff", ".mqxliff"), "xliff"),
    **dict.fromkeys((".po", ".pot"), "po"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".sgm", ".sgml"), "sgm"),
    **dict.fromkeys((".ass", ".ssa"), "ass"),
    ".tmx": "tmx",
    ".tbx": "tbx",
    ".srt": "srt",
    ".vtt": "vtt",
}
TSV, CSV, JSON, PARQUET = (".tsv", ".tab"), (".csv",), (".jsonl", ".ndjson", ".json"), (".parquet", ".pq")
TABLE_SUFFIXES = (*TSV, *CSV, *JSON, *PARQUET)
COMMENTS = r"(?>(?:\s|<!--(?>.*?-->)|<\?(?>.*?\?>))*)"  # comments, processing instructions and the XML declaration
ROOT = re.compile(
    rf"\A{COMMENTS}(?P<doctype><!DOCTYPE\s[^>\[]*(?:\[(?>.*?\]\s*>))?>?)?{COMMENTS}<(?:\w+:)?(?P<root>[\w-]+)(?=[\s/>])",
    re.DOTALL | re.IGNORECASE,
)
WEB_PAGE = re.compile(rf"\A{COMMENTS}(?:<!DOCTYPE\s+html|<html[\s>])", re.DOTALL | re.IGNORECASE)
BEGINNINGS = {
    "lfs": re.compile(r"version https://git-lfs\.github\.com/spec/"),
    "annex": re.compile(r"/annex/objects/"),
    "vtt": re.compile(r"WEBVTT(?=\s|\Z)"),
    "srt": re.compile(r"\s*\d+[ \t]*\n\d+:\d\d:\d\d[,.]\d{1,3}[ \t]*-->"),
    "ass": re.compile(r"\s*\[Script Info\]", re.IGNORECASE),
    "po": re.compile(r"(?:[ \t]*(?:#.*)?\n)*(?:msgctxt\s+\".*\n)?msgid\s+\""),
}
PACKED_IN = {
    "word/document.xml": "docx",
    "xl/workbook.xml": "xlsx",
    "xl/workbook.bin": "ole",
    "ppt/presentation.xml": "pptx",
}
MIME_TYPES = {
    b"application/epub+zip": "epub",
    b"application/vnd.oasis.opendocument.text": "odt",
    b"application/vnd.oasis.opendocument.spreadsheet": "ods",
    b"application/vnd.oasis.opendocument.presentation": "pptx",
}


def unpacked_name(name: str) -> str:
    """Return the name in lower case, without the suffix of a compressed file."""
    return name.lower().removesuffix(".gz").removesuffix(".zst")


def detect_format(name: str, head: bytes, text: str, open_file: Callable[[], BufferedIOBase]) -> Format | None:
    """Return the format of a file, or None for plain text and unknown formats.

    `head` is the beginning of the unpacked bytes; `text` is the decoded `head`. `open_file` opens the whole file.
    """
    suffix = PurePath(unpacked_name(name)).suffix
    key = _by_bytes(head, open_file, suffix) or _by_text(text.lstrip("\ufeff").replace("\r\n", "\n"), suffix)
    if key is None and (suffix in BY_SUFFIX and text.strip()):
        key = BY_SUFFIX[suffix]
    return FORMATS[key] if key else None


def _by_bytes(head: bytes, open_file: Callable[[], BufferedIOBase], suffix: str) -> str | None:
    if head.startswith(PACKED):
        return _packed_format(open_file, suffix)
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if head.startswith(b"{\\rtf"):
        return "rtf"
    if head.startswith(OLE):
        return "ole"
    return "tar" if head[257:262] == b"ustar" else None


def _packed_format(open_file: Callable[[], BufferedIOBase], suffix: str) -> str:
    """Return the format of a file in zip format: an office document, a book, or a plain archive.

    If the archive is damaged, the suffix decides.
    """
    try:
        with open_file() as file, zipfile.ZipFile(file) as opened:
            names = set(opened.namelist())
            kind = opened.open("mimetype").read(100).strip() if "mimetype" in names else b""
    # zipfile raises NotImplementedError for unknown compression methods, and RuntimeError for encrypted files
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError):
        return suffix[1:] if suffix[1:] in ("docx", "odt", "epub", "xlsx", "ods", "pptx") else "zip"
    by_name = chain(
        (each for part, each in PACKED_IN.items() if part in names),
        ("iwork" for part in names if part.endswith(".iwa")),
    )
    return MIME_TYPES.get(kind.removesuffix(b"-template")) or next(by_name, "zip")


def _by_text(text: str, suffix: str) -> str | None:
    known = next((name for name, pattern in BEGINNINGS.items() if pattern.match(text)), None)
    if known:
        return known
    root = ROOT.match(text)
    if WEB_PAGE.match(text) or (root and root["root"].lower() == "html"):
        return "html" if suffix == ".xml" or BY_SUFFIX.get(suffix) == "html" else "error page"
    if not root or BY_SUFFIX.get(suffix) == "html":
        return None
    is_xml = text.startswith("<?xml") or root["doctype"] or suffix == ".xml"
    name = ROOTS.get(root["root"].lower())
    return name if name and (name != "wmt" or "<doc" in text) else "xml" if is_xml else None
