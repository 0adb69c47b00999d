"""einsql: an SQL engine over tensor relations.

>>> import einsql, numpy as np
>>> con = einsql.connect()
>>> con.register("x", np.eye(2), dims=("i", "j"))
>>> con.execute("SELECT SUM(val) AS trace FROM x WHERE i = j").fetchone()
(2.0,)
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from einsql.core.forks import PerProcess
from einsql.core.lazy_module import LazyModule
from einsql.core.moved import MovedModules
from einsql.core.version import __version__ as __version__
from einsql.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    InterruptedError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from einsql.session.tracebacks import guarded

if TYPE_CHECKING:
    import numpy as np
    from duckdb import DuckDBPyConnection

    from einsql import tra
    from einsql.engine.ranks.driver import Cluster
    from einsql.frontends.duckdb import Attached
    from einsql.frontends.trace import Traced, trace
    from einsql.session import connection as _session
    from einsql.session.connection import Connection
    from einsql.session.cursor import Cursor, Parameters
    from einsql.session.relation import Relation
    from einsql.session.sources import Paths
    from einsql.storage.database.memory import Database
else:
    # Submodules are imported on first use, so that `import einsql` itself is quick.
    _session = LazyModule("einsql.session.connection")
    _LATER = {
        "Connection": "session.connection",
        "Cursor": "session.cursor",
        "Relation": "session.relation",
        "Traced": "frontends.trace",
        "trace": "frontends.trace",
    }

    def __getattr__(name: str) -> object:
        if name == "tra":
            return import_module("einsql.tra")
        if name in _LATER:
            attribute = globals()[name] = getattr(import_module(f"einsql.{_LATER[name]}"), name)
            return attribute
        raise AttributeError(f"module 'einsql' has no attribute '{name}'")


sys.meta_path.append(MovedModules())

apilevel = "2.0"
threadsafety = 1
paramstyle = "qmark"


@guarded
def connect(
    database: str | os.PathLike[str] = ":memory:",
    *,
    read_only: bool = False,
    config: Mapping[str, object] | None = None,
) -> Connection:
    """Opens a database.

    Args:
        database: The path of a file, which is created if it does not exist, or ":memory:".
            Tensors are stored in the directory with the file's path and the suffix
            ".tensors". See docs/how-to/database.md.
        read_only: Whether writing is refused. Any number of processes may open a file
            read-only at the same time.
        config: Settings as in SET, and the options of MPI ranks. "mpi" is the number of
            ranks to start, or "world" for the ranks of the program's own MPI job, or
            another connection's `cluster` to share its ranks. "mpiexec" is the command that
            starts ranks, with {n} for their number. "mpi_host" is the host name under which
            ranks reach this machine. On ranks "sites" is their number, and the defaults are
            seconds for "cost" and 150us for "latency". See docs/how-to/mpi.md.

    Raises:
        InterfaceError: An argument has a wrong type, or the job's ranks are already in use.
        NotSupportedError: A database in memory cannot be read-only.
        OperationalError: Another process has locked the file, the file is no database or has
            a newer format, MPI is not installed, or ranks do not start.
        ProgrammingError: A setting is unknown.
        SystemExit: With "world", on every rank except rank 0, after rank 0 has closed its
            connection.
    """
    from einsql.core.settings import RANKS, default_settings, reset_settings
    from einsql.session.setting_statements import checked_settings

    if isinstance(database, os.PathLike):
        database = os.fspath(database)
    if not isinstance(database, str):
        raise InterfaceError(f"A database's name is a str, not a {type(database).__name__}")
    if not isinstance(config, Mapping | None):
        raise InterfaceError(f"config is a mapping of settings, not a {type(config).__name__}")
    in_memory = database in ("", ":memory:")
    if read_only and in_memory:
        raise NotSupportedError("A database in memory cannot be read-only")
    options = dict(config or {})
    ranks = {name: options.pop(name, None) for name in RANKS}
    settings = default_settings()
    for name, value in options.items():
        settings = checked_settings(settings, str(name), str(value))
    cluster = _cluster(ranks)
    if cluster is not None:
        default = default_settings(cluster.ranks)
        sets_sites = not options.keys().isdisjoint(("sites", "mesh"))
        for name in ("cost", "latency", *(() if sets_sites else ("sites",))):
            if name not in options:
                settings = reset_settings(settings, name, default)
    if in_memory:
        return _session.Connection(cluster, settings)
    opened, ticket = _opened(database, read_only)
    connection = _session.Connection(cluster, settings, opened)
    del ticket  # the connection keeps the file open from now on
    return connection


def _opened(path: str, read_only: bool) -> tuple[Database, object]:
    """Returns the database of a file, and the ticket that keeps the file open."""
    from einsql.session.statements.ddl import definition
    from einsql.storage.database.opening import open_database  # only databases in files need it
    from einsql.storage.error_boundary import boundary

    with boundary:
        return open_database(path, bool(read_only), definition)


def _cluster(options: Mapping[str, object]) -> Cluster | None:
    """Returns the MPI ranks that the options request, or None."""
    if all(value is None for value in options.values()):
        return None
    from einsql.engine.ranks.start import cluster  # only connections with ranks need MPI

    return cluster(options)


# Loaded first, because a later import would replace the function `sql` by the package.
import_module("einsql.sql")

_defaults = PerProcess(lambda _: threading.local())


def default_connection() -> Connection:
    """The calling thread's connection to a database in memory, which functions of einsql use."""
    own = _defaults.get()
    connection: Connection | None = getattr(own, "connection", None)
    if connection is None or connection.closed:
        connection = own.connection = connect()
    return connection


@guarded
def sql(query: str, *, params: Parameters = None, alias: str = "") -> Relation:
    """Returns the relation of a query on `default_connection()`; see `Connection.sql`.

    >>> einsql.sql("SELECT i * 2 AS twice FROM range(3) AS r(i)").fetchall()
    [(0,), (2,), (4,)]
    """
    return default_connection().sql(query, params=params, alias=alias)


query = sql


def from_df(df: object) -> Relation:
    """Returns the relation of a DataFrame or an Arrow table; see `Connection.from_df`."""
    return default_connection().from_df(df)


from_arrow = from_df


def values(*rows: object) -> Relation:
    """Returns the relation of rows of values; see `Connection.values`."""
    return default_connection().values(*rows)


def read_csv(path: Paths, **options: object) -> Relation:
    """Returns the relation of CSV files; see `Connection.read_csv`."""
    return default_connection().read_csv(path, **options)


def read_parquet(path: Paths, **options: object) -> Relation:
    """Returns the relation of Parquet files; see `Connection.read_parquet`."""
    return default_connection().read_parquet(path, **options)


def read_json(path: Paths, **options: object) -> Relation:
    """Returns the relation of JSON files; see `Connection.read_json`."""
    return default_connection().read_json(path, **options)


@guarded
def execute(sql: str, parameters: Parameters = None) -> Cursor:
    """Runs a text on `default_connection()`; see `Connection.execute`."""
    return default_connection().execute(sql, parameters)


@guarded
def einsum(
    expression: str, *operands: object, combine: str = "mul", reduce: str = "sum"
) -> np.ndarray:
    """Evaluates an einsum expression as numpy.einsum does, on einsql's engine.

    Args:
        expression: The expression, such as "ij,jk->ik"; it may use ellipsis, implicit output
            and diagonals.
        operands: One array for each term.
        combine: The function ⊗ of the operands' values: "mul", "add", "greatest" or another
            function of two arguments of SQL. With more operands it is applied from the left.
        reduce: The aggregate ⊕ over the labels that the result lacks: "sum", "product", "min",
            "max", "avg", "logsumexp" or another aggregate of one argument of SQL.

    Returns:
        A new array. Integers are summed in BIGINT; an overflow raises DataError. Over no values
        a sum is 0, and MIN and MAX of floats are infinite.

    Raises:
        ProgrammingError: The expression does not fit the arrays, or an operation their types.
        DataError: An overflow, or MIN or MAX of no integers.
    """
    return default_connection().einsum(expression, operands, combine=combine, reduce=reduce)


def load_ipython_extension(shell: object) -> None:
    """Adds `%%einsql` to IPython and Jupyter; `%load_ext einsql` calls it."""
    from einsql.frontends import notebook  # only notebooks need it

    notebook.load(shell, default_connection)


def attach(connection: DuckDBPyConnection, *, element: str = "DOUBLE") -> Attached:
    """Registers einsql's tile functions with a DuckDB connection, and enables `FROM einsql('…')`.

    Args:
        connection: The caller's DuckDB connection. It must not be in a transaction.
        element: FLOAT or DOUBLE, the element type of the tiles that functions return.

    Returns:
        The object that runs statements with `einsql('…')`; docs/how-to/duckdb.md has examples.

    Raises:
        InterfaceError: The argument is no DuckDB connection, or a transaction is running.
        ProgrammingError: The database has its own function with one of the names.
    """
    from einsql.frontends.duckdb import attach  # DuckDB and Arrow are optional

    return attach(connection, element=element)


class _TypeObject:
    """PEP 249's type object: equal to the type names of its kind, whatever their arguments."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return other is self
        # DECIMAL(18,3) is a number; a list of them, DECIMAL(18,3)[], is not.
        name, _, arguments = other.partition("(")
        return name in self._names and not arguments.endswith("]")

    def __hash__(self) -> int:
        return hash(self._names)


STRING = _TypeObject("VARCHAR", "JSON", "ENUM", "BIT")
BINARY = _TypeObject("BLOB")
NUMBER = _TypeObject(
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "BIGNUM", "UTINYINT",
    "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT", "HALF", "BFLOAT16", "FLOAT", "DOUBLE",
    "DECIMAL",
)  # fmt: skip
DATETIME = _TypeObject(
    "DATE", "TIME", "TIME_NS", "TIME WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS",
    "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS",
)  # fmt: skip
ROWID = _TypeObject()

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:  # noqa: N802 - PEP 249's name
    """The date of a Unix time."""
    return Date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:  # noqa: N802 - PEP 249's name
    """The time of day of a Unix time."""
    return Time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:  # noqa: N802 - PEP 249's name
    """The date and time of a Unix time."""
    return Timestamp(*time.localtime(ticks)[:6])


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "InterruptedError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Relation",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Traced",
    "Warning",
    "apilevel",
    "attach",
    "connect",
    "default_connection",
    "einsum",
    "execute",
    "paramstyle",
    "query",
    "sql",
    "threadsafety",
    "tra",
    "trace",
]
