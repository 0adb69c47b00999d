"""Relations: queries that run when their rows are fetched, and that others can be made of."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from einsql.core.quoting import in_quotes, literal
from einsql.errors import Error, InterfaceError, suggest
from einsql.planner.outcome import Description
from einsql.session.cursor import Cursor, Session
from einsql.session.fetched import Fetched
from einsql.session.pieces import condition as in_parentheses
from einsql.session.pieces import piece, single
from einsql.session.script import described
from einsql.session.sources import (
    Source,
    as_item,
    bare,
    both,
    fresh_name,
    quoted_parts,
    statistics_items,
)
from einsql.session.tracebacks import guarded_methods
from einsql.sql.parser.parameter_marks import mark
from einsql.sql.parser.tokens import tokenize

if TYPE_CHECKING:
    from einsql.planner.outcome import Results

_JOINS = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "outer": "FULL JOIN",
    "full": "FULL JOIN",
    "semi": "SEMI JOIN",
    "anti": "ANTI JOIN",
}
_NAME = re.compile(r"\w+")


class Maker(Session, Protocol):
    """The interface of a relation's connection: that of cursors, and of captured variables."""

    def capturing(
        self, frame: FrameType | None, known: Mapping[str, object], parameters: Sequence[object]
    ) -> AbstractContextManager[dict[str, object]]:
        """Locks the connection for a statement, and records the variables that it reads."""


@guarded_methods("fetchone")
class Relation(Fetched):
    """A query that runs when its rows are fetched, in the snapshot of that moment.

    It is bound when it is made: its names have to exist, and the variables of Python that it reads
    are those of that moment. A statement other than a SELECT runs at once, and its relation holds
    the rows that it returned. So does a query with an effect or of chance or time, as `nextval()`.

    Args:
        connection: The connection.
        source: The query. Names that it does not capture are variables of the frame.
        frame: The frame of the caller.
        alias: The name of the relation in queries over it; by default a generated one.
        sides: The FROM clause of a join, in which expressions may name its sides.
    """

    def __init__(
        self,
        connection: Maker,
        source: Source,
        frame: FrameType | None,
        alias: str = "",
        sides: str = "",
    ) -> None:
        self._connection = connection
        self._named = alias
        self._sides = sides
        self._cursor: Cursor | None = None
        """The cursor of rows that are fetched in part."""
        self._held: Cursor | None = None
        """The cursor of a statement that has run."""
        with connection.capturing(frame, source.captured, source.parameters) as captured:
            self._description = described(connection.context, source.text)
            if self._description is None:
                self._held = self._run_text(source.text)
                captured = {**captured, (name := fresh_name()): self._held}
                source = Source(f"SELECT * FROM {name}", captured)
        captured = {n: v.kept() if isinstance(v, Cursor) else v for n, v in captured.items()}
        self._source = Source(source.text, captured, source.parameters)

    # ---- running

    def _run_text(self, text: str) -> Cursor:
        cursor = Cursor(self._connection)
        cursor.run(text)
        return cursor

    def _run(self) -> Cursor:
        """Runs the query. A statement that has run keeps its rows."""
        if self._held is not None:
            return self._held.kept()
        source = self._source
        with self._connection.capturing(None, source.captured, source.parameters):
            cursor = self._run_text(source.text)
        self._description = cursor.description
        return cursor

    def _tensor(self) -> Results:
        return self._run().result()

    def _fetching(self) -> AbstractContextManager[None]:
        return self._connection.fetching()

    @property
    def description(self) -> Description | None:
        """One 7-tuple (name, type, None, …) per column; None without rows."""
        return self._description if self._held is None else self._held.description

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The numbers of rows and columns, as in DuckDB; runs the query."""
        return None if self.description is None else (len(self), len(self.columns))

    @property
    def rowcount(self) -> int:
        """The number of rows, or of rows that a statement has changed."""
        return self._run().rowcount

    def __len__(self) -> int:
        return max(0, self.rowcount)

    def execute(self) -> Relation:
        """Runs the query, as DuckDB's method of this name; returns the relation."""
        self._cursor = self._run()
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """Returns the next row; after the last one None, and the next call runs the query again."""
        self._cursor = self._cursor or self._run()
        row = self._cursor.fetchone()
        if row is None:
            self._cursor = None
        return row

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """Returns the next rows."""
        self._cursor = self._cursor or self._run()
        return self._cursor.fetchmany(size)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Returns all rows, or those that `fetchone` and `fetchmany` have left."""
        cursor, self._cursor = self._cursor or self._run(), None
        return cursor.fetchall()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._run())

    def close(self) -> None:
        """Releases the rows that are fetched in part."""
        self._cursor = None

    # ---- relations of this one

    def __getitem__(self, name: str) -> Relation:
        """Returns the relation of one column, also as `relation.name`.

        Raises:
            AttributeError: The relation has no such column.
        """
        if not isinstance(name, str):
            raise TypeError(f"relation[…] takes the name of a column, not {name!r:.80}")
        if name.lower() not in map(str.lower, self.columns):
            known = suggest(name, self.columns, "columns")
            raise AttributeError(f"The relation has no column {name!r}. {known}")
        return self._over("SELECT {1} FROM {0}", in_quotes(name))

    def __getattr__(self, name: str) -> Relation:
        if name.startswith("_"):  # protocols of Python and of notebooks
            raise AttributeError(name)
        return self[name]

    def describe(self) -> Relation:
        """Returns statistics of each column: count, mean, stddev, min, max, median."""
        columns = zip(self.columns, self.types, strict=True)
        return self._over("SELECT {1} FROM {0}", statistics_items(columns))

    @property
    def alias(self) -> str:
        """The name of the relation in queries over it."""
        return self._named or "this"

    def set_alias(self, alias: str) -> Relation:
        """Returns the relation under a name, for the conditions of a join."""
        return self._made(self._source, alias)

    def sql_query(self) -> str:
        """Returns the text of the query."""
        return self._source.text

    def filter(self, condition: str) -> Relation:
        """Returns the rows that meet a condition of SQL."""
        return self._over("SELECT * FROM {} WHERE {}", in_parentheses(condition))

    def project(self, *columns: str) -> Relation:
        """Returns expressions of SQL over the rows; `select` is the same.

        Args:
            columns: A list of expressions as one text, or names of columns and expressions.
        """
        known = self.columns
        listed = (in_quotes(c) if len(columns) > 1 and c in known else c for c in columns)
        return self._over("SELECT {1} FROM {0}", ", ".join(map(piece, listed)))

    select = project

    def aggregate(self, expressions: str | Sequence[str], group: str = "") -> Relation:
        """Returns aggregates, by the columns among the expressions or by a GROUP BY list."""
        texts = [expressions] if isinstance(expressions, str | None) else expressions
        listed = ", ".join(map(piece, texts))
        return self._over("SELECT {1} FROM {0} GROUP BY {2}", listed, piece(group.strip() or "ALL"))

    def order(self, by: str) -> Relation:
        """Returns the rows in an order."""
        return self._over("SELECT * FROM {} ORDER BY {}", piece(by))

    def sort(self, *columns: str) -> Relation:
        """Returns the rows ordered by columns."""
        return self.order(", ".join(map(piece, columns)))

    def limit(self, n: int, offset: int = 0) -> Relation:
        """Returns the first rows, after an offset."""
        if not all(isinstance(count, int) for count in (n, offset)):
            raise InterfaceError(f"A limit is an int, not {n!r:.40} after {offset!r:.40}")
        return self._over(f"SELECT * FROM {{}} LIMIT {n} OFFSET {offset}")

    def distinct(self) -> Relation:
        """Returns the rows without repetitions."""
        return self._over("SELECT DISTINCT * FROM {}")

    def union(self, other: Relation) -> Relation:
        """Returns the rows of both, as UNION ALL."""
        return self._with(other, "UNION ALL")

    def except_(self, other: Relation) -> Relation:
        """Returns the rows that the other relation lacks."""
        return self._with(other, "EXCEPT ALL")

    def intersect(self, other: Relation) -> Relation:
        """Returns the rows of both relations."""
        return self._with(other, "INTERSECT ALL")

    def join(self, other: Relation, condition: str | Sequence[str], how: str = "inner") -> Relation:
        """Returns the rows joined with those of another relation.

        Args:
            other: The other relation. `set_alias` names both in a condition.
            condition: A condition of SQL, or the name or the names of equal columns.
            how: "inner", "left", "right", "outer", "semi" or "anti".

        Raises:
            InterfaceError: There is no such join.
        """
        if how not in _JOINS:
            raise InterfaceError(
                f"There is no join {how!r}", hint=f"Joins are {', '.join(_JOINS)}."
            )
        columns = [condition] if isinstance(condition, str) else list(condition)
        is_using = all(map(_NAME.fullmatch, columns))
        on = (
            f"USING ({', '.join(columns)})"
            if is_using
            else f"ON {' AND '.join(map(in_parentheses, columns))}"
        )
        return self._joined(other, _JOINS[how], on)

    def cross(self, other: Relation) -> Relation:
        """Returns all pairs of rows."""
        return self._joined(other, "CROSS JOIN", "")

    def query(self, name: str, sql: str) -> Relation:
        """Returns the relation of a query that reads this one under a name."""
        return self._within(name, sql, sys._getframe(1))

    def sql(self, query: str) -> Relation:
        """Returns the relation of a query that reads this one as `this`."""
        return self._within("this", query, sys._getframe(1))

    def count(self, column: str = "*") -> Relation:
        """Returns the number of rows, or of values that are not NULL."""
        return self.aggregate(f"COUNT({piece(column)})")

    def sum(self, column: str) -> Relation:
        """Returns the sum of a column."""
        return self.aggregate(f"SUM({piece(column)})")

    def min(self, column: str) -> Relation:
        """Returns the least value of a column."""
        return self.aggregate(f"MIN({piece(column)})")

    def max(self, column: str) -> Relation:
        """Returns the greatest value of a column."""
        return self.aggregate(f"MAX({piece(column)})")

    def mean(self, column: str) -> Relation:
        """Returns the mean of a column."""
        return self.aggregate(f"AVG({piece(column)})")

    # ---- storing

    def create(self, name: str) -> None:
        """Creates a table of the rows; `to_table` is the same."""
        self._store(f"CREATE TABLE {quoted_parts(name)} AS ")

    to_table = create

    def create_tensor(self, name: str) -> None:
        """Creates a tensor of the rows, as CREATE TENSOR … AS."""
        self._store(f"CREATE TENSOR {in_quotes(name)} AS ")

    def create_view(self, name: str, replace: bool = True) -> Relation:
        """Creates a view of the query; `to_view` is the same.

        Raises:
            InterfaceError: The query reads variables of Python or has parameters.
        """
        if self._source.captured or self._source.parameters:
            raise InterfaceError(
                "A view cannot read variables of Python, and has no parameters",
                hint="create() makes a table of the rows.",
            )
        self._store(f"CREATE {'OR REPLACE ' if replace else ''}VIEW {in_quotes(name)} AS ")
        return self

    to_view = create_view

    def insert_into(self, name: str) -> None:
        """Inserts the rows into a table or a tensor."""
        self._store(f"INSERT INTO {quoted_parts(name)} ")

    def write_csv(self, path: str) -> None:
        """Writes the rows to a CSV file; `to_csv` is the same."""
        self._copy(path, "csv")

    to_csv = write_csv

    def write_parquet(self, path: str) -> None:
        """Writes the rows to a Parquet file; `to_parquet` is the same."""
        self._copy(path, "parquet")

    to_parquet = write_parquet

    # ---- private

    def _copy(self, path: str, form: str) -> None:
        self._store("COPY (", f"\n) TO {literal(str(path))} (FORMAT {form})")

    def _store(self, before: str, after: str = "") -> None:
        source = self._source
        with self._connection.capturing(None, source.captured, source.parameters):
            self._run_text(f"{before}{bare(source.text)}{after}")

    def _made(self, source: Source, alias: str = "", frame: FrameType | None = None) -> Relation:
        return Relation(self._connection, source, frame, alias)

    def _over(self, form: str, *parts: str) -> Relation:
        """Returns the relation of a query over this one; its own variables are the caller's."""
        source = self._source
        if source.parameters and any(mark(part).numbers for part in parts):
            raise InterfaceError("Parameters of a relation are given to `sql`, not to its methods")
        frame = sys._getframe(2)

        def over(clause: str) -> Relation:
            text = form.format(clause, *parts)
            query = Source(text, source.captured, source.parameters)
            return self._made(query, self._named, frame)

        if self._sides and not self._named:
            try:
                return over(self._sides)
            except Error:  # a name of the join's columns, such as val_1
                pass
        return over(as_item(source.text, self.alias))

    def _within(self, name: str, sql: str, frame: FrameType) -> Relation:
        source, query = self._source, sql.lstrip()
        first = tokenize(query)[:2]
        words = [t.text.upper() for t in first]
        begin, rest = "WITH ", f" {query}"
        if words[:1] == ["WITH"]:
            begin = "WITH RECURSIVE " if words[1:] == ["RECURSIVE"] else "WITH "
            if words[1:] == ["RECURSIVE"]:  # the source does not read itself
                source = Source(f"SELECT * FROM {(own := fresh_name())}", {own: self})
            rest = f", {query[first[begin.count(' ') - 1].end + 1 :]}"
        text = f"{begin}{in_quotes(name)} AS (\n{bare(source.text)}\n){rest}"
        return self._made(Source(single(text), source.captured, source.parameters), "", frame)

    def _with(self, other: Relation, operation: str) -> Relation:
        left, right = self._source, self._other(other)
        text = f"(\n{bare(left.text)}\n) {operation} (\n{bare(right.text)}\n)"
        return self._made(both(text, left, right), self._named)

    def _joined(self, other: Relation, join: str, condition: str) -> Relation:
        left, right = self._source, self._other(other)
        first, second = self._named or fresh_name(), other._named or fresh_name()
        if first.lower() == second.lower():
            raise InterfaceError(
                f"Both relations are named {first}", hint="set_alias() gives one another name."
            )
        sides = as_item(left.text, first), as_item(right.text, second)
        clause = f"{sides[0]} {join} {sides[1]} {condition}"
        source = both(f"SELECT * FROM {clause}", left, right)
        return Relation(self._connection, source, None, sides=clause)

    def _other(self, other: Relation) -> Source:
        """The source of another relation, with new names for variables that both capture.

        Raises:
            InterfaceError: It is no relation of this connection.
        """
        if not isinstance(other, Relation) or other._connection is not self._connection:
            raise InterfaceError(
                f"A relation is combined with another one of its connection, not with {other!r:.80}"
            )
        mine, source = self._source, other._source
        same = all(mine.captured.get(n, o) is o for n, o in source.captured.items())
        texts = mine.text + source.text
        if same and not (mine.parameters and source.parameters and "$" in texts):
            return source
        name = fresh_name()
        return Source(f"SELECT * FROM {name}", {name: other})
