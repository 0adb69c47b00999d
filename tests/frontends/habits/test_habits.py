"""Statements and calls as users of DuckDB, pandas and PyTorch write them from habit.

`first.md` and `second.md` have sixty of them each. Their authors knew the front page of einsql and
nothing else. The first were written before the features that they need, the second after them; 58
of the second worked when they were first run. No block is changed to suit einsql.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import CodeType

import pytest

from tests.support.samples import spread

IMPORTS = {
    "einsql": "einsql",
    "np": "numpy",
    "pd": "pandas",
    "pl": "polars",
    "pa": "pyarrow",
    "sp": "scipy.sparse",
    "torch": "torch",
    "duckdb": "duckdb",
}
"""The names of modules that every block has."""
FAILING = ("first 58",)
"""The blocks that fail: fetch_numpy returns an array for one value column, not a dict."""


def blocks() -> list[tuple[str, CodeType]]:
    """The numbers and the code of all blocks."""
    sections_of_all = []
    for name in ("first", "second"):
        text = (Path(__file__).parent / f"{name}.md").read_text()
        sections = re.findall(r"^## (\d\d) ([^\n]*)\n+```python\n(.*?)^```", text, re.S | re.M)
        sections_of_all += [
            (f"{name} {number}", compile(code, f"{name} {number} {title}", "exec", 0, True))
            for number, title, code in sections
        ]
    return sections_of_all


@pytest.mark.parametrize(
    ("number", "code"),
    spread([pytest.param(*block, id=block[1].co_filename) for block in blocks()], 40),
)
def test_a_habit_works(
    number: str, code: CodeType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {name: pytest.importorskip(module) for name, module in IMPORTS.items()}
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notices are printed by a script, which goes on
        if number not in FAILING:
            exec(code, names)
            return
        with pytest.raises(IndexError):
            exec(code, names)


def test_there_are_sixty_of_each() -> None:
    numbers = [number for number, _ in blocks()]
    assert numbers == [f"{name} {n:02}" for name in ("first", "second") for n in range(1, 61)]
    assert set(FAILING) <= set(numbers)
