"""Modules that are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from einsql.core.lazy_module import LazyModule, lazy_modules

UNUSED = (
    "_duckdb",
    "concurrent.futures",
    "einsql.engine.program_writer",
    "einsql.engine.ranks",
    "einsql.engine.spilling_executor",
    "einsql.hybrid",
    "einsql.ir.layout",
    "einsql.kernels.groups.group",
    "einsql.kernels.loops.codegen",
    "einsql.kernels.sparse",
    "einsql.kernels.vectorized.vector",
    "einsql.kernels.convolutions",
    "einsql.optimizer.decomposition",
    "einsql.planner.tile_plan",
    "einsql.storage.files",
    "einsql.storage.row_files",
    "json",
    "numpy.ma",
    "pyarrow",
)
"""Modules that a small product of registered arrays does not need."""


def test_the_first_use_imports() -> None:
    missing, paths = lazy_modules("xml.etree", "absent", "ElementPath")
    assert isinstance(missing, LazyModule)
    assert callable(paths.find)
    with pytest.raises(ModuleNotFoundError, match="absent"):
        _ = missing.find
    with pytest.raises(AttributeError, match="nothing"):
        _ = paths.nothing


def test_a_first_select_loads_what_it_needs() -> None:
    script = f"""
import sys, numpy as np, einsql
before = set(sys.modules)
con = einsql.connect()
con.register("a", np.ones((2, 2)), ("i", "j"))
con.register("b", np.ones((2, 2)), ("j", "k"))
sql = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
assert con.execute(sql).fetchall()[0] == (0, 0, 2.0)
print(*sorted(({{*sys.modules}} - before) & {{*{UNUSED!r}}}))
"""
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == ""
