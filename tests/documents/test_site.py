"""The site of the documents: Sphinx builds it, links lead somewhere, and nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.builder import site as builder
from docs.builder.site import faults
from docs.builder.source import ROOT
from tests.support.browser import CHROMIUM, Browser

PARTS = ("tutorial", "how-to", "reference", "explanation")
WIDE = """
[...document.querySelectorAll('article *')].filter(e =>
    e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('svg svg') &&
    !e.parentElement.closest('pre, .scroll, .table-wrapper, svg, .highlight')
).map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)).join('; ')
"""
"""The elements that are wider than the window and do not scroll by themselves."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="the extra docs builds the site; make docs does it")
    folder = tmp_path_factory.mktemp("site") / "html"
    builder.sphinx(folder)  # warnings are errors
    return folder


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("no Chromium to show the pages")
    browser = Browser(tmp_path)
    yield browser
    browser.close()


def test_nothing_comes_from_foreign_hosts_and_links_lead_somewhere(site: Path) -> None:
    assert list(faults(site)) == []
    pages = sum(len(list((site / part).rglob("*.html"))) for part in PARTS)
    assert pages == sum(len(list((ROOT / "docs" / part).rglob("*.md"))) for part in PARTS)


def test_nothing_but_what_scrolls_is_wider_than_a_phone(site: Path, browser: Browser) -> None:
    for name in ("index", "tutorial/1-first-query", "how-to/clients", "reference/functions",
                 "explanation/ia"):  # fmt: skip
        browser.open((site / f"{name}.html").as_uri(), width=390)
        assert browser.run(WIDE) == "", name
        assert browser.run("document.scrollingElement.scrollWidth") <= 390, name
    assert browser.problems == []


def test_the_search_works_without_a_server(site: Path, browser: Browser) -> None:
    for word, first in (
        ("logsumexp", "Reference: Functions > logsumexp"),
        ("memory_limit", "Reference: Settings > memory_limit"),
        ("FOR", "How-to: "),  # a common word of English, and a statement
    ):
        browser.open((site / "search.html").as_uri() + f"?q={word}")
        seen = browser.wait("document.querySelector('#search-results li a')?.innerText")
        assert seen.startswith(first), word


def test_faults_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<p id="here"></p><a href="#here"></a><a href="#there"></a><a href="none.html"></a>'
        '<a href="https://example.org"></a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "x.css").write_text("@font-face { src: url('//example.org/font.woff') }")
    assert list(faults(tmp_path)) == [
        "index.html loads https://example.org/x.js",
        "index.html links to #there, which is not there",
        "index.html links to none.html, which is not there",
        "x.css loads //example.org/font.woff",
    ]
