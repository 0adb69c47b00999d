import csv
import io
import json
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsql.frontends.console.grid import folded
from einsql.frontends.console.render import MODES, excerpt, render
from einsql.frontends.console.style import Style
from einsql.storage.results.box import Excerpt, Row, display_width, draw_box
from einsql.storage.results.value_text import (
    Column,
    format_cell,
    format_json,
    format_value,
    literal,
    summary,
)
from tests.support.samples import sample

COLUMNS = [
    Column("a", "INTEGER"),
    Column("b", "VARCHAR"),
    Column("f", "FLOAT"),
    Column("t", "BOOLEAN"),
]
ROWS: list[Row] = [(1, 'x|"y', float(np.float32(0.1)), True), (-20, None, float("nan"), False)]

EXPECTED = {
    "duckbox": """\
┌───────┬─────────┬───────┬─────────┐
│   a   │    b    │   f   │    t    │
│ int32 │ varchar │ float │ boolean │
├───────┼─────────┼───────┼─────────┤
│     1 │ x|"y    │   0.1 │ true    │
│   -20 │ NULL    │   nan │ false   │
└───────┴─────────┴───────┴─────────┘""",
    "box": """\
┌─────┬──────┬─────┬───────┐
│  a  │  b   │  f  │   t   │
├─────┼──────┼─────┼───────┤
│   1 │ x|"y │ 0.1 │ true  │
│ -20 │ NULL │ nan │ false │
└─────┴──────┴─────┴───────┘""",
    "csv": 'a,b,f,t\n1,"x|""y",0.1,true\n-20,,nan,false',
    "json": '[{"a":1,"b":"x|\\"y","f":0.1,"t":true},\n{"a":-20,"b":null,"f":null,"t":false}]',
    "jsonlines": '{"a":1,"b":"x|\\"y","f":0.1,"t":true}\n{"a":-20,"b":null,"f":null,"t":false}',
    "markdown": """\
| a | b | f | t |
|--:|---|--:|---|
| 1 | x\\|"y | 0.1 | true |
| -20 | NULL | nan | false |""",
    "line": 'a = 1\nb = x|"y\nf = 0.1\nt = true\n\na = -20\nb = NULL\nf = nan\nt = false',
    "list": 'a|b|f|t\n1|x|"y|0.1|true\n-20|NULL|nan|false',
    "ascii": 'a\x1fb\x1ff\x1ft\n1\x1fx|"y\x1f0.1\x1ftrue\n-20\x1fNULL\x1fnan\x1ffalse',
    "column": """\
  a  b       f  t
---  ----  ---  -----
  1  x|"y  0.1  true
-20  NULL  nan  false""",
    "html": """\
<tr><th>a</th>
<th>b</th>
<th>f</th>
<th>t</th>
</tr>
<tr><td>1</td>
<td>x|&quot;y</td>
<td>0.1</td>
<td>true</td>
</tr>
<tr><td>-20</td>
<td>NULL</td>
<td>nan</td>
<td>false</td>
</tr>""",
    "insert": """\
INSERT INTO "table"(a,b,f,t) VALUES(1,'x|"y',0.1,true);
INSERT INTO "table"(a,b,f,t) VALUES(-20,NULL,'nan'::FLOAT,false);""",
    "latex": """\
\\begin{tabular}{|rlrl|}
\\hline
a & b & f & t \\\\
\\hline
1 & x|"y & 0.1 & true \\\\
-20 & NULL & nan & false \\\\
\\hline
\\end{tabular}""",
    "quote": """'a','b','f','t'\n1,'x|"y',0.1,true\n-20,NULL,'nan'::FLOAT,false""",
    "table": """\
+-----+------+-----+-------+
|  a  |  b   |  f  |   t   |
+-----+------+-----+-------+
|   1 | x|"y | 0.1 | true  |
| -20 | NULL | nan | false |
+-----+------+-----+-------+""",
    "tabs": 'a\tb\tf\tt\n1\tx|"y\t0.1\ttrue\n-20\tNULL\tnan\tfalse',
    "tcl": '"a" "b" "f" "t"\n"1" "x|\\"y" "0.1" "true"\n"-20" "NULL" "nan" "false"',
    "trash": "",
}


NULL_OF_SQL = ("json", "jsonlines", "insert", "quote", "trash")


@pytest.mark.parametrize("mode", MODES)
def test_modes_print_as_users_know_them(mode: str) -> None:
    assert "\n".join(render(mode, COLUMNS, ROWS, Style())) == EXPECTED[mode]


@pytest.mark.parametrize("mode", MODES)
def test_a_given_null_and_no_rows(mode: str) -> None:
    given_null = "\n".join(render(mode, COLUMNS, ROWS, Style(null="∅")))
    assert ("∅" in given_null) == (mode not in NULL_OF_SQL)
    empty = "\n".join(render(mode, COLUMNS, [], Style()))
    assert "NULL" not in empty
    if mode == "json":
        assert json.loads(empty) == []


def test_literals_keep_their_values() -> None:
    values = [
        (0.30000000000000004, "DOUBLE"), (float("-inf"), "DOUBLE"), (2.5, "DOUBLE"),
        (float(np.float32(0.1234567)), "FLOAT"), (b"a\\'\x00", "BLOB"), ([1.5, None], "FLOAT[2]"),
        ({"k": "it's"}, "MAP(VARCHAR, VARCHAR)"), (timedelta(days=3, seconds=1), "INTERVAL"),
        (Decimal("-1.25"), "DECIMAL(5,2)"), (date(2020, 1, 2), "DATE"),
    ]  # fmt: skip
    con = duckdb.connect()
    for value, kind in values:
        (row,) = con.execute(f"SELECT CAST({literal(value, kind)} AS {kind})").fetchall()
        read = list(row[0]) if isinstance(row[0], tuple) else row[0]
        assert read == value, kind


def test_a_csv_field_is_quoted_where_a_reader_needs_it() -> None:
    columns = [Column("a", "VARCHAR"), Column("b", "VARCHAR")]
    rows: list[Row] = [("x;y", "1,2"), ("line\nend", ""), ('say "a"', None)]
    text = "\n".join(render("csv", columns, rows, Style(separator=";")))
    read = list(csv.reader(io.StringIO(text), delimiter=";"))
    assert read == [["a", "b"], ["x;y", "1,2"], ["line\nend", ""], ['say "a"', ""]]
    assert list(render("csv", columns[:1], [("",)], Style(headers=False))) == ['""']


def test_widths_and_columns_change_a_table() -> None:
    rows: list[Row] = [(n, f"row {n}") for n in range(9)]
    columns = [Column("a", "INTEGER"), Column("b", "VARCHAR")]
    lines = list(render("column", columns, rows[:1], Style(widths=(4, -8))))
    assert lines == ["a            b", "----  --------", "0        row 0"]
    upright = "\n".join(render("duckbox", columns, rows, Style(maxrows=2, columnwise=True)))
    assert (
        upright
        == """\
┌────────┬─────────┬───────┬───┬───────┐
│ Column │  Type   │ Row 1 │ · │ Row 9 │
├────────┼─────────┼───────┼───┼───────┤
│ a      │ int32   │     0 │ · │     8 │
│ b      │ varchar │ row 0 │ · │ row 8 │
└────────┴─────────┴───────┴───┴───────┘
  9 rows (2 shown)"""
    )
    narrow = list(render("duckbox", columns, rows, Style(columnwise=True, width=50)))
    assert max(map(display_width, narrow)) <= 50
    assert narrow[-1] == "  9 rows (3 shown); .last shows all"


@given(st.lists(st.text(max_size=40), min_size=2, max_size=4), st.integers(61, 90))
@settings(max_examples=sample(30, 100))
def test_a_grid_on_a_terminal_folds_texts_and_cuts_none(cells: list[str], width: int) -> None:
    columns = [Column(f"c{n}", "VARCHAR") for n in range(len(cells))]
    for mode in ("column", "table", "box"):
        lines = list(render(mode, columns, [tuple(cells)], Style(width=width)))
        assert max(map(display_width, lines)) <= width
    for cell in cells:
        text = format_cell(cell, "VARCHAR", "")
        for part in folded(text, 7):
            assert display_width(part) <= 7
        assert "".join(folded(text, 7)).replace(" ", "") == text.replace(" ", "")
    assert folded("words end here, unbroken", 10) == ["words end", "here,", "unbroken"]


def test_a_table_on_a_terminal_says_what_it_cuts() -> None:
    columns = [Column("text", "VARCHAR")]
    lines = list(render("duckbox", columns, [("word " * 20,)], Style(width=40)))
    assert "…" in lines[4]
    assert lines[-1] == "  texts cut at …; .last shows all"
    rows: list[Row] = [("some words",)] * 50
    lines = list(render("duckbox", columns, rows, Style(width=10, maxrows=0, cut=False)))
    assert lines[:6] == ["┌────────────┐", "│    text    │", "│  varchar   │", "├────────────┤",
                         "│ some words │", "│ some words │"]  # fmt: skip
    assert len(lines) == 55


def test_plans_are_printed_as_they_are() -> None:
    plan: list[Row] = [("r0[i:3]\n  over j:4",)]
    column = [Column("explain", "VARCHAR")]
    assert list(render("duckbox", column, plan, Style())) == ["r0[i:3]\n  over j:4"]
    assert list(render("json", column, plan, Style())) == ['[{"explain":"r0[i:3]\\n  over j:4"}]']


@given(st.floats(width=32))
@settings(max_examples=sample(50, 200))
def test_floats_are_short_and_read_back(value: float) -> None:
    text = format_value(value, "FLOAT", "")
    assert np.array_equal(np.float32(text), np.float32(value), equal_nan=True)
    assert len(text) <= 20
    parsed = json.loads(format_json(value, "FLOAT"), parse_constant=pytest.fail)
    assert parsed == (None if np.isnan(value) else float(text))


def test_numbers_look_as_in_duckdb() -> None:
    floats = [16777216, 123456789, 1e10, 1e15, 1e16, 1e-4, 1e-5, -0.0, float("inf")]
    assert [format_value(float(f), "FLOAT", "") for f in floats] == [
        "16777216.0", "123456790.0", "10000000000.0", "1000000000000000.0", "1e+16", "0.0001",
        "1e-05", "-0.0", "inf",
    ]  # fmt: skip
    assert format_value(0.1, "DOUBLE", "") == "0.1"
    assert format_value([0.5, None], "DOUBLE[]", "") == "[0.5, NULL]"
    tile = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert format_value(tile, "FLOAT[2,3]", "") == "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]"
    assert format_cell(tile, "FLOAT[2,3]", "") == "float32[2,3] 0.0 … 5.0"
    tile[1, 0] = np.nan
    assert summary(tile) == "float32[2,3] 0.0 … 5.0, 1 nan"
    assert json.loads(format_json(tile, "FLOAT[2,3]")) == [[0, 1, 2], [None, 4, 5]]


@given(st.integers(0, 100), st.integers(0, 12))
@settings(max_examples=sample(30, 100))
def test_an_excerpt_keeps_both_ends(count: int, limit: int) -> None:
    rows: list[Row] = [(n,) for n in range(count)]
    found = excerpt(iter(rows), limit)
    assert found.total == count
    if limit == 0 or count <= limit:
        assert (found.head, found.tail) == (rows, [])
    else:
        assert len(found.head) + len(found.tail) == limit
        assert found.head == rows[: len(found.head)]
        assert found.tail == rows[count - len(found.tail) :]


def test_a_long_result_is_not_read_to_its_end() -> None:
    def rows() -> Iterator[Row]:
        for n in range(100):
            assert n < 40
            yield (n,)

    text = list(render("duckbox", [Column("i", "BIGINT")], rows(), Style(total=10**9)))
    assert text[-1].strip() == "1000000000 rows (40 shown)"


@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=8),
    st.integers(30, 120),
)
@settings(max_examples=sample(40, 150))
def test_tables_are_straight_and_fit(cells: list[str], width: int) -> None:
    columns = [Column(f"c{n}", "VARCHAR") for n in range(len(cells))]
    rows = Excerpt([tuple(cells)], [], 5)
    lines = list(draw_box(columns, rows, null="NULL", width=width))
    widths = {display_width(line) for line in lines[:-1]}
    assert len(widths) == 1
    assert widths.pop() <= max(width, 2 * 23 + 5)
    assert lines[-1].lstrip().startswith("5 rows (1 shown)")
