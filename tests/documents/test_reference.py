"""The generated pages of the reference are those that the catalogs give now, and miss nothing."""

from __future__ import annotations

import pytest

from docs.builder.reference import FOLDER, PAGES
from docs.builder.source import ROOT
from einsql.core.settings import DESCRIPTIONS, Settings, setting_text
from einsql.ir.functions.functions import INTERNAL, SCALARS
from einsql.sql.functions import descriptions
from einsql.sql.functions.aggregate_functions import AGGREGATES
from einsql.sql.functions.scalar_functions import FUNCTION_OF_NODE, NAMED, SCALAR_MACROS
from einsql.sql.functions.table_functions import TABLE_FUNCTIONS, TABLE_MACROS


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_current(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for variable in ("EINSQL_JIT", "EINSQL_COST"):
        monkeypatch.delenv(variable, raising=False)
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text == PAGES[name](), "python -m docs.builder.reference writes the pages anew"


def test_every_scalar_function_is_described() -> None:
    described = {d.algebra for d in (*descriptions.OPERATORS, *descriptions.SCALARS)}
    assert set(SCALARS) - INTERNAL - described == set()
    assert {*FUNCTION_OF_NODE.values(), *(f for f, _ in NAMED.values())} - described == set()
    names = {d.name for d in descriptions.SCALARS}
    assert {*NAMED, *SCALAR_MACROS} - names == set()


def test_every_aggregate_and_table_function_is_described() -> None:
    names = {d.name for d in descriptions.AGGREGATES}
    unnamed = {"count_distinct"}  # COUNT(DISTINCT x) and APPROX_COUNT_DISTINCT(x)
    assert set(AGGREGATES.values()) - names == unnamed
    assert {d.name for d in descriptions.TABLES} == {*TABLE_FUNCTIONS, *TABLE_MACROS}


def test_every_setting_is_described() -> None:
    for name, description in DESCRIPTIONS.items():
        assert description.meaning
        assert description.default or setting_text(Settings(), name)
