"""Runs a query on einsql and on DuckDB over element rows, and judges the two answers."""

from __future__ import annotations

import math
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from tests.support.levels import run_as_blocks
from tests.support.oracle.changes import for_duckdb
from tests.support.oracle.compare import Row, difference
from tests.support.oracle.data import SHORT, Database, Tensor
from tests.support.oracle.generate import Query

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster

MACROS = (
    "CREATE MACRO logsumexp(v) AS ln(sum(exp(v)))",
    "CREATE MACRO sigmoid(v) AS if(v::DOUBLE < 0, exp(v::DOUBLE), 1) / (1 + exp(-abs(v::DOUBLE)))",
    "CREATE MACRO times(l, v) AS len(list_filter(l, lambda w: w = v))",
    "CREATE MACRO mode_of(l) AS list_min(list_filter(list_distinct(l), lambda v: "
    "times(l, v) = list_max(list_transform(l, lambda v: times(l, v)))))",
)
"""What einsql has and DuckDB lacks; ERF comes from Python's math module."""

SECONDS = 60
"""A statement that runs longer counts as a crash."""
WIDE_SECONDS = 5
"""The same over sparse tensors with large bounds, of which some forms visit every key."""


@dataclass(frozen=True)
class Outcome:
    """What became of one query.

    Attributes:
        verdict: `agree`, `refused` (both sides), `unsupported` (einsql says it has no way
            to run it), `invalid` (DuckDB refuses a query that should be valid), `differ` or
            `crash` (no einsql.Error).
        rows: How many rows the oracle gave.
        outside: einsql's reason for refusing the query under `fallback = off`.
    """

    verdict: str
    detail: str = ""
    rows: int = 0
    outside: str = ""


class Oracle:
    """DuckDB over one row per existing element.

    HALF and BFLOAT16 are stored as FLOAT. One thread makes every answer repeatable.
    """

    def __init__(self) -> None:
        self.con = duckdb.connect()
        self.con.execute("SET threads = 1")
        for macro in MACROS:
            self.con.execute(macro)
        # DuckDB takes a NaN that Python returns for NULL.
        self.con.create_function("finite_erf", math.erf, ["DOUBLE"], "DOUBLE")
        self.con.execute("CREATE MACRO erf(x) AS if(isnan(x), x::DOUBLE, finite_erf(x))")

    def register(self, tensor: Tensor) -> None:
        """Creates the table of a tensor."""
        array = tensor.array
        grid = np.indices(array.shape).reshape(array.ndim, array.size)
        columns: dict[str, Any] = {d: grid[n] for n, d in enumerate(tensor.dims)}
        dtype = "FLOAT" if tensor.dtype in SHORT else tensor.dtype
        flat = array.ravel()
        columns["val"] = flat.astype(np.float32) if tensor.dtype in SHORT else flat
        kinds = [f"{d} BIGINT" for d in tensor.dims] + [f"val {dtype}"]
        self.con.execute(f"CREATE TABLE {tensor.name} ({', '.join(kinds)})")
        rows = [list(r) for r in zip(*(c.tolist() for c in columns.values()), strict=True)]
        if rows:
            marks = ", ".join("?" for _ in kinds)
            self.con.executemany(f"INSERT INTO {tensor.name} VALUES ({marks})", rows)

    def statement(self, sql: str) -> None:
        """Runs a statement written for einsql; what einsql is set to is nothing here."""
        if sql.startswith("SET "):
            return
        self.con.execute(for_duckdb(sql))

    def rows(self, sql: str) -> list[Row]:
        """A query's rows.

        Raises:
            duckdb.Error: DuckDB refuses the query.
        """
        return self.con.execute(sql).fetchall()

    def answers(self, sql: str) -> bool:
        """False if the query gives no row; one that raises has an answer to compare."""
        try:
            return bool(self.rows(sql))
        except duckdb.Error:
            return True

    def close(self) -> None:
        """Drops the database; a connection left open leaks its Python function."""
        self.con.close()


INTERPRETED = {"jit": "never"}


class Pair:
    """One database on both sides.

    Args:
        db: What to create.
        with_einsql: False runs the oracle alone, to test the generator itself.
        settings: einsql's settings.
        cluster: The ranks it runs on, which outlive it; None for this process.
    """

    def __init__(
        self,
        db: Database,
        with_einsql: bool = True,
        settings: Mapping[str, str] = INTERPRETED,
        cluster: Cluster | None = None,
    ) -> None:
        self.db = db
        self.cluster = cluster
        self.oracle = Oracle()
        self.con: Any = None
        for t in db.tensors:
            self.oracle.register(t)
        for s in db.statements:
            self.oracle.statement(s)
        self.broken = ""
        self.lowered: Counter[str] = Counter()
        if with_einsql:
            try:
                with limited(SECONDS):
                    self._connect(settings)
            except Exception as e:
                self.broken = f"{type(e).__name__}: {e}"

    def _connect(self, settings: Mapping[str, str]) -> None:
        import einsql

        self.con = einsql.Connection(self.cluster)
        settings = dict(settings)
        if settings.pop("level", "") == "blocks":
            self.lowered = run_as_blocks(self.con, random.Random(self.db.float_math))
        for name, value in settings.items():
            self.con.execute(f"SET {name} = '{value}'")
        self.con.execute(f"SET float_math = '{self.db.float_math}'")
        for t in self.db.tensors:
            self.con.register(t.name, t.given, dims=t.dims)
        for s in self.db.statements:
            self.con.execute(s)

    def close(self) -> None:
        """Closes both sides."""
        self.oracle.close()
        if self.con is not None:
            self.con.context.cluster = None  # another pair will use it
            self.con.close()

    def change(self, sql: str) -> None:
        """Runs a statement that changes a tensor on both sides."""
        self.oracle.statement(sql)
        self.con.execute(sql)

    def check(self, query: Query) -> Outcome:
        """Runs a query on both sides and compares."""
        if self.broken:
            return Outcome("crash", f"the database cannot be made: {self.broken}")
        return self.judge(query, self.theirs(query))

    def judge(self, query: Query, theirs: list[Row] | str) -> Outcome:
        """Runs a query on einsql, under its settings of the moment, and compares.

        Args:
            query: What to run.
            theirs: The oracle's answer, as `theirs` gives it.
        """
        if self.con is None:
            if isinstance(theirs, str):
                return Outcome("refused" if query.may_raise else "invalid", theirs)
            return Outcome("agree", rows=len(theirs))
        import einsql

        outside = ""
        try:
            with limited(WIDE_SECONDS if self.db.has_wide else SECONDS):
                ours, outside = self._ours(query)
        except einsql.Error as e:
            if isinstance(theirs, str) and "not yet supported" in theirs:
                return Outcome("unsupported", outside=theirs)  # by DuckDB, which einsql asked
            return self._refused(query, theirs, e)
        except TimeoutError as e:
            if self.db.has_wide:  # as the roadmap says of computed keys
                return Outcome("unsupported", outside="Every key of a sparse tensor is visited")
            return Outcome("crash", f"{type(e).__name__}: {e}", outside=outside)
        except Exception as e:
            return Outcome("crash", f"{type(e).__name__}: {e}", outside=outside)
        if isinstance(theirs, str) and "not yet supported" in theirs:
            return Outcome("unsupported", outside=theirs)  # by DuckDB
        if isinstance(theirs, str):
            theirs = self._undivided(query, theirs)
            if isinstance(theirs, str) and not ours and query.may_raise:
                return Outcome("refused", theirs)  # what raised belongs to no row of the answer
            if isinstance(theirs, str):
                return Outcome("differ", f"DuckDB refuses: {theirs}; einsql: {ours[:3]!r}")
        inexact = [n for n, c in enumerate(query.columns) if c.error]
        why = difference(ours, theirs, inexact, query.ordered)
        has_ties = "mode_of(" in query.oracle or "ties" in query.tags
        if why and outside and has_ties and len(ours) == len(theirs):
            return Outcome("unsupported", outside="Ties in a part that DuckDB runs")
        return Outcome("differ" if why else "agree", why, len(theirs), outside)

    def _ours(self, query: Query) -> tuple[list[Row], str]:
        """einsql's rows, and why it needed DuckDB if it did."""
        import einsql

        fallback = "off" if query.in_fragment else "on"
        self.con.execute(f"SET fallback = {fallback}")
        outside = ""
        try:
            cursor = self.con.execute(query.sql)
        except einsql.NotSupportedError as e:
            if not query.in_fragment:
                raise
            outside = e.reason
            self.con.execute("SET fallback = on")
            cursor = self.con.execute(query.sql)
        names = [d[0] for d in cursor.description]
        wanted = [c.name for c in query.columns]
        if names != wanted:
            raise AssertionError(f"columns are named {names}, not {wanted}")
        return cursor.fetchall(), outside

    def theirs(self, query: Query) -> list[Row] | str:
        """The oracle's rows, or why it refuses."""
        try:
            plain = self.oracle.rows(query.sql)
            if query.oracle == query.sql:
                return plain
            settled = self.oracle.rows(query.oracle)
        except duckdb.Error as e:
            return f"{type(e).__name__}: {e}"
        # Ties, which DuckDB settles as it likes, may decide what a condition keeps.
        if len(plain) != len(settled) and "ties" not in query.tags:
            return f"the oracle runs another query: {query.oracle}"
        return settled

    def _undivided(self, query: Query, why: str) -> list[Row] | str:
        """DuckDB may divide by zero in rows a WHERE leaves out; ask it to give NULL."""
        if "guarded" not in query.tags and "Division by zero" not in why:
            return why
        self.oracle.con.execute("SET error_on_division_by_zero = false")
        try:
            return self.theirs(query)
        finally:
            self.oracle.con.execute("SET error_on_division_by_zero = true")

    def _refused(self, query: Query, theirs: Sequence[Row] | str, e: Exception) -> Outcome:
        import einsql

        if isinstance(theirs, str):
            # An expression of ORDER BY may name a result that is a column of tables, too.
            names_column = ("Ambiguous reference", "must appear in the GROUP BY clause")
            may_raise = query.may_raise or any(reason in theirs for reason in names_column)
            return Outcome("refused" if may_raise else "invalid", f"DuckDB: {theirs}")
        is_large = "memory" in str(e) or "combinations of keys" in str(e)
        if isinstance(e, einsql.OperationalError) and is_large:
            return Outcome("unsupported", outside="A domain larger than memory")
        if isinstance(e, einsql.NotSupportedError):
            return Outcome("unsupported", outside=e.reason)
        if query.may_raise and "int_overflow" in query.tags and isinstance(e, einsql.DataError):
            return Outcome("refused", str(e))  # DuckDB sums in 128 bits
        return Outcome("differ", f"einsql refuses, {type(e).__name__}: {e}", len(theirs))


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the main thread after some seconds."""

    def ring(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def repro(db: Database, query: Query, ranks: int | None = None) -> str:
    """A self-contained script that shows a query on both sides."""
    used = [t for t in db.tensors if _mentions(t.name, [query.sql, *db.statements])]
    config = "" if ranks is None else f'config={{"mpi": {ranks}}}'
    lines = ["import numpy as np, einsql", f"con = einsql.connect({config})"]
    lines += [f"con.register({t.name!r}, {t.literal}, dims={t.dims!r})" for t in used]
    lines += [f"con.execute({s!r})" for s in db.statements if ranks or _needed(s, db, query)]
    if db.float_math != "float":
        lines.append(f"con.execute(\"SET float_math = '{db.float_math}'\")")
    lines.append(f'print(con.execute("""{query.sql}""").fetchall())')
    return "\n".join(lines)


def _needed(statement: str, db: Database, query: Query) -> bool:
    """Whether a query or another statement names what the statement makes or fills."""
    name = statement.split()[2].partition("(")[0]
    others = [s for s in db.statements if s.split()[2].partition("(")[0] != name]
    return _mentions(name, [query.sql, *others])


def _mentions(name: str, texts: Sequence[str]) -> bool:
    return any(re.search(rf"\b{name}\b", t) for t in texts)
