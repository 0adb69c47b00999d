"""The notebooks of docs are run, and every cell must give what it shows."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "how-to").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_cells_give_what_they_show(path: Path) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [c for c in book["cells"] if c["cell_type"] == "code"]
    assert cells
    for number, cell in enumerate(cells, 1):
        assert cell["execution_count"] == number
        found = run("".join(cell["source"]), names)
        shown = ["".join(o["data"]["text/plain"]) for o in cell["outputs"]]
        assert ([] if found is None else [repr(found)]) == shown


def run(source: str, names: dict[str, Any]) -> object:
    """The value of a cell's last expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<cell>", "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
