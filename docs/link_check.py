"""A Sphinx extension: after the build, warns about each link inside the site whose page, file or anchor is missing.

Links to other sites are not fetched. With `-W`, a broken link fails the build.
"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)
LINKS = {"a": "href", "link": "href", "img": "src", "script": "src"}


class Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        link = given.get(LINKS.get(tag, ""))
        if link is not None:
            self.links.add(link)


def broken_links(site: Path) -> Iterator[str]:
    """Yield a description of each broken link of a site."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{path.name}: the link {link} leads to no file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.name}: the link {link} leads to no anchor of {target.name}"


def check(app: Sphinx, exception: Exception | None) -> None:
    """Warn about broken links, if the build has succeeded."""
    if exception is None and app.builder.format == "html":
        for problem in broken_links(Path(app.outdir)):
            logger.warning(problem)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the check."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
