"""The dialect has the settings of sqlglot's class for DuckDB, which it does not import."""

from __future__ import annotations

import sqlglot
from sqlglot import TokenType
from sqlglot.dialects.duckdb import DuckDB

from einsql.sql.parser.dialect import EinSQL


def settings(of: type) -> dict[str, object]:
    """Public attributes of a class that are neither classes nor functions."""
    values = ((name, getattr(of, name)) for name in dir(of) if not name.startswith("_"))
    return {name: value for name, value in values if not callable(value)}


def test_settings_are_those_of_duckdb() -> None:
    ours, theirs = settings(EinSQL), settings(DuckDB)
    assert ours | {"ORIGINAL_NAME_META_KEY": None} == theirs
    words, others = settings(EinSQL.Tokenizer), settings(DuckDB.Tokenizer)
    assert words.pop("KEYWORDS") == {**DuckDB.Tokenizer.KEYWORDS, "/*+": TokenType.HINT}
    del others["KEYWORDS"]
    assert words == others | {"COMMANDS": set()}
    assert EinSQL.Parser is DuckDB.Parser


def test_text_is_written_as_by_duckdb() -> None:
    for text in (
        "SELECT a.i, SUM(x ** 2) FILTER (WHERE x > 1e-3) FROM a JOIN b USING (i) GROUP BY ALL",
        "SELECT j -> '$.a', k -> '/a', l -> '[#-1]', e'\\x41', CAST(1 AS UTINYINT), x[1:2]",
        "SELECT STRFTIME(d, '%Y-%m-%d'), EXTRACT(dow FROM d), {'a': 1}.a, [1, 2][1] FROM t",
    ):
        ours = sqlglot.parse_one(text, dialect=EinSQL).sql(dialect=EinSQL)
        assert ours == sqlglot.parse_one(text, dialect=DuckDB).sql(dialect=DuckDB)
