"""Builds the site by Sphinx, and checks what a reader would stumble over."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from docs.builder.source import ROOT

BUILD = ROOT / "docs" / "_build"
RESULTS = BUILD / "tour"
"""The chapters of the tour as the last run wrote them."""
SITE = BUILD / "html"


def results_file(name: str, text: str) -> Path:
    """The file with the results of a page of the tour; another one if the page has changed.

    Args:
        name: The page, such as "5-cuts".
        text: The page's text.
    """
    return RESULTS / f"{name}-{sha256(text.encode()).hexdigest()[:12]}.md"


_LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


def sphinx(site: Path = SITE) -> None:
    """Runs Sphinx; warnings are errors.

    Raises:
        subprocess.CalledProcessError: Sphinx failed; its messages are on the terminal.
    """
    # All pages are read anew (-E): those of an earlier build may have older results.
    options = ["-q", "-W", "--keep-going", "-n", "-E", "-b", "html"]
    options += ["-d", str(site.parent / "pickles")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(site)]
    subprocess.run(command, cwd=ROOT, check=True)


class Page(HTMLParser):
    """What a page loads, the places that it has, and those that it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects the attributes of an element."""
        given = dict(attrs)
        if name := given.get("id"):
            self.anchors.add(name)
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        if tag in _LOADED and (link := given.get(_LOADED[tag])):
            self.loaded.append(link)


@cache
def _page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def faults(site: Path) -> Iterator[str]:
    """What is wrong with a site: assets of foreign hosts, links that lead nowhere.

    Args:
        site: The folder with index.html.
    """
    _page.cache_clear()
    for path in sorted(site.rglob("*.html")):
        page, name = _page(path), path.relative_to(site)
        for link in page.loaded:
            if re.match(r"(https?:)?//", link):
                yield f"{name} loads {link}"
        for link in [*page.links, *page.loaded]:
            if not re.match(r"[a-z]+:|//", link) and not _leads(path, link):
                yield f"{name} links to {link}, which is not there"
    for path in sorted(site.rglob("*.css")):
        for link in re.findall(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]*)""",
                               path.read_text(encoding="utf-8")):  # fmt: skip
            yield f"{path.relative_to(site)} loads {link}"


def _leads(path: Path, link: str) -> bool:
    """Whether a link of a page leads to a file, and to a place on it."""
    file, _, anchor = unquote(link).partition("#")
    there = (path.parent / file.partition("?")[0]).resolve() if file else path
    if not there.is_file():
        return False
    return not anchor or there.suffix != ".html" or anchor in _page(there).anchors
