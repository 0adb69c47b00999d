"""Statements and calls as users of DuckDB, pandas and PyTorch write them from habit.

`first.md` has sixty of them. Their author knew the front page of einsql and nothing else; they
were written before the features that they need, and no block is changed to suit einsql.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import CodeType

import pytest

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
FAILING = (58,)
"""The blocks that fail."""


def blocks() -> list[tuple[str, CodeType]]:
    """The titles and the code of all blocks."""
    text = (Path(__file__).parent / "first.md").read_text()
    sections = re.findall(r"^## (\d\d) ([^\n]*)\n```python\n(.*?)^```", text, re.S | re.M)
    return [
        (number, compile(code, f"{number} {title}", "exec", dont_inherit=True))
        for number, title, code in sections
    ]


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(*block, id=block[1].co_filename) for block in blocks()]
)
def test_a_habit_works(
    number: str, code: CodeType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {name: pytest.importorskip(module) for name, module in IMPORTS.items()}
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notices are printed by a script, which goes on
        if int(number) not in FAILING:
            exec(code, names)
            return
        with pytest.raises(Exception):  # noqa: B017, PT011 - any error shows that it fails
            exec(code, names)


def test_there_are_sixty() -> None:
    assert [number for number, _ in blocks()] == [f"{n:02}" for n in range(1, 61)]
    assert set(FAILING) <= set(range(1, 61))
