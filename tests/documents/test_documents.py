"""The README and docs are run: every example in them must give what it shows."""

from __future__ import annotations

import doctest
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if not p.is_relative_to(DOCS / "_build"))
DOCUMENTS = [ROOT / "README.md", *(p for p in PAGES if p.parent.name != "tour")]
"""Their examples show results. The chapters of the tour get theirs when the site is built."""
WITH_LINKS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("einsql/*/DESIGN.md")), *PAGES]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_examples_give_what_they_show(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.name == "cookbook.md" and "EINSQL_RECIPES" not in os.environ:
        pytest.skip("make recipes runs it")
    if path.name == "mpi.md":
        pytest.importorskip("mpi4py", reason="its examples start MPI ranks")
    if path.name == "clients.md":
        for client in ("pandas", "polars", "sqlalchemy"):
            pytest.importorskip(client, reason="its examples use it")
        from sqlalchemy.dialects import registry  # for who has not installed einsql

        registry.register("einsql", "einsql.frontends.sqlalchemy", "EinsqlDialect")
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("EINSQL_COST", raising=False)  # users have the default
    text = path.read_text(encoding="utf-8").replace("```", "")
    # The example must find the arrays it defines: they are globals of its own module.
    names = {"__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(text, names, path.name, str(path), 0)
    outcome = doctest.DocTestRunner(verbose=False).run(test)
    assert outcome.failed == 0


@pytest.mark.parametrize("path", WITH_LINKS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https:)([^)#]*)#?([^)]*)\)", text):
        there = path.parent / target if target else path
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{target}#{anchor}"


def test_code_names_pages_that_are_there() -> None:
    named = {
        (page, path)
        for folder in ("einsql", "tests", "benchmarks", "docs", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.\w+", path.read_text(encoding="utf-8"))
    }
    assert [(page, path) for page, path in sorted(named) if not (ROOT / page).exists()] == []


def test_the_map_has_every_room() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    rooms = [p.parent.name for p in (ROOT / "einsql").glob("*/__init__.py")]
    assert [room for room in rooms if f"| `{room}/` |" not in text] == []
    assert [r for r in rooms if not (ROOT / "einsql" / r / "DESIGN.md").exists()] == []


def test_the_map_of_the_code_is_short() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| .* \|$", text, re.MULTILINE)) - 2 <= 14  # the head and its rule


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/explanation/architecture.md"])
def test_maps_name_what_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    rows = [line for line in text.split("\n") if line.startswith("|")]
    named = {n for row in rows for n in re.findall(r"`([\w/]+(?:\.py|/))`", row)}
    there = [
        f"/{p.relative_to(ROOT)}{'/' * p.is_dir()}"
        for folder in ("einsql", "tests", "benchmarks", "docs")
        for p in [ROOT / folder, *(ROOT / folder).rglob("*")]
    ]
    assert [n for n in sorted(named) if not any(p.endswith(f"/{n}") for p in there)] == []


def anchors(path: Path) -> set[str]:
    """What headings are called in links: GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
