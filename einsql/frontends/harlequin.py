"""Harlequin, a terminal program for databases, on einsql: `harlequin -a einsql model.db`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harlequin.adapter import HarlequinAdapter, HarlequinConnection, HarlequinCursor
from harlequin.autocomplete.completion import HarlequinCompletion
from harlequin.catalog import Catalog, CatalogItem
from harlequin.exception import (
    HarlequinConfigError,
    HarlequinConnectionError,
    HarlequinQueryError,
)
from harlequin.options import HarlequinAdapterOption, ListOption

from einsql.core.quoting import in_quotes
from einsql.errors import Error, InterruptedError
from einsql.session.connection import Connection
from einsql.storage.objects import Tensor

SETTINGS = ListOption(
    name="set",
    description="A setting of einsql as NAME=VALUE, such as memory_limit=2GB or sites=4. "
    "Repeat the option for more.",
)

WORDS = (
    "CALIBRATE",
    "DIM",
    "EINSUM",
    "GRADIENT",
    "PARTIAL(SUM) OVER",
    "PARTITION BY",
    "REPLICATE OVER",
    "SHOW TENSORS",
    "TENSOR",
    "TILES",
)
"""Keywords of einsql that other SQL dialects lack."""

_SIGNS = (
    ("[]", "["),
    ("BOOL", "t/f"),
    ("TINYINT", "#"),
    ("SMALLINT", "#"),
    ("INTEGER", "#"),
    ("BIGINT", "##"),
    ("HUGEINT", "##"),
    ("DIM", "key"),
    ("HALF", "#.#"),
    ("BFLOAT16", "#.#"),
    ("FLOAT", "#.#"),
    ("DOUBLE", "#.#"),
    ("DECIMAL", "#.#"),
    ("VARCHAR", "s"),
    ("DATE", "d"),
    ("TIMESTAMP", "ts"),
    ("TIME", "t"),
    ("BLOB", "0b"),
    ("UUID", "uid"),
    ("JSON", "{}"),
    ("STRUCT", "{}"),
    ("MAP", "{}"),
    ("ENUM", "s"),
    ("INTERVAL", "|-|"),
)


def sign(kind: str) -> str:
    """A type in three letters at most."""
    return next((shown for name, shown in _SIGNS if name in kind), "?")


class EinsqlCursor(HarlequinCursor):
    """A result."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._limit: int | None = None

    def columns(self) -> list[tuple[str, str]]:
        """Names and types, in the order of the rows."""
        return [(str(d[0]), sign(str(d[1]))) for d in self._cursor.description or ()]

    def set_limit(self, limit: int) -> HarlequinCursor:
        """Limits the number of fetched rows."""
        self._limit = limit
        return self

    def fetchall(self) -> Any:
        """The rows; None if there are none.

        Raises:
            HarlequinQueryError: The rows cannot be fetched.
        """
        try:
            limit = self._limit
            rows = self._cursor.fetchall() if limit is None else self._cursor.fetchmany(limit)
        except InterruptedError:
            return None
        except Error as error:
            raise HarlequinQueryError(str(error), "The result could not be fetched") from error
        return rows or None


class EinsqlConnection(HarlequinConnection):
    """A session."""

    def __init__(self, connection: Connection, init_message: str = "") -> None:
        super().__init__(init_message=init_message)
        self.connection = connection
        self.init_message = init_message

    def execute(self, query: str) -> HarlequinCursor | None:
        """Runs a statement; None if it has no rows to show.

        Raises:
            HarlequinQueryError: The statement is wrong or fails.
        """
        try:
            cursor = self.connection.execute(query)
        except InterruptedError:
            return None
        except Error as error:
            raise HarlequinQueryError(str(error), "einsql refused the statement") from error
        return None if cursor.description is None else EinsqlCursor(cursor)

    def cancel(self) -> None:
        """Cancels the running statement."""
        self.connection.interrupt()

    def close(self) -> None:
        """Closes the connection."""
        if not self.connection.closed:
            self.connection.close()

    def get_catalog(self) -> Catalog:
        """The tree of schemas, their tensors, tables and views, and the columns of these.

        Raises:
            HarlequinQueryError: The catalog cannot be read.
        """
        con = self.connection
        try:
            con.store.refresh()
            columns = con.duck.execute(
                "SELECT schema_name, NULL, NULL, NULL, NULL FROM duckdb_schemas() "
                "WHERE database_name = current_database() "
                "AND schema_name NOT IN ('__einsql', 'information_schema', 'pg_catalog') "
                "UNION ALL SELECT c.schema_name, table_name, view_name IS NOT NULL, column_name, "
                "data_type FROM duckdb_columns() c LEFT JOIN duckdb_views() v ON "
                "(v.schema_name, v.view_name) = (c.schema_name, c.table_name) "
                "WHERE NOT c.internal AND c.schema_name <> '__einsql'"
            )
        except Error as error:
            raise HarlequinQueryError(str(error), "The catalog could not be read") from error
        schemas: dict[str, dict[tuple[str, str], list[tuple[str, str]]]] = {}
        for schema, table, is_view, column, kind in columns:
            relations = schemas.setdefault(schema, {})
            if table is not None:
                sort = "v" if is_view else "t"
                relations.setdefault((table, sort), []).append((column, kind))
        schemas.setdefault("main", {}).update(self._ours())
        return Catalog([_schema(name, schemas[name]) for name in sorted(schemas)])

    def _ours(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        columns: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for stored in self.connection.store.objects.values():
            if isinstance(stored, Tensor):
                schema = stored.relation.schema
                keys = {k.name: f"DIM {k.lo}..{k.hi}" for k in schema.keys}
                columns[stored.name, "x"] = [
                    (n, keys[n] if n in keys else schema.dtype(n).value) for n in stored.columns
                ]
            elif stored.kind == "view":
                columns[stored.name, "v"] = self._described(stored.name)
        return columns

    def _described(self, name: str) -> list[tuple[str, str]]:
        """The columns of a view; none if a relation that it reads is gone."""
        try:
            columns = self.connection.execute(f"DESCRIBE {in_quotes(name)}").fetchall()
        except Error:
            return []
        return [(str(column), str(kind)) for column, kind, *_ in columns]

    def get_completions(self) -> list[HarlequinCompletion]:
        """Words of einsql's SQL."""
        return [HarlequinCompletion(word, "kw", word, 100) for word in WORDS]


_SORTS = {"x": "TENSOR", "t": "TABLE", "v": "VIEW"}


def _schema(name: str, relations: dict[tuple[str, str], list[tuple[str, str]]]) -> CatalogItem:
    at = in_quotes(name)
    children = [
        _relation("" if name == "main" else f"{at}.", table, sort, columns)
        for (table, sort), columns in sorted(relations.items())
    ]
    return CatalogItem(at, at, name, "sch", children, "SCHEMA")


def _relation(before: str, name: str, sort: str, columns: Iterable[tuple[str, str]]) -> CatalogItem:
    at = before + in_quotes(name)
    children = [
        CatalogItem(f"{at}.{in_quotes(column)}", in_quotes(column), column, sign(kind), [], kind)
        for column, kind in columns
    ]
    return CatalogItem(at, at, name, sort, children, _SORTS[sort])


class EinsqlAdapter(HarlequinAdapter):
    """The adapter that Harlequin loads for `-a einsql`; it takes at most one database file."""

    ADAPTER_OPTIONS: list[HarlequinAdapterOption] | None = [SETTINGS]  # noqa: RUF012 - Harlequin's
    IMPLEMENTS_CANCEL = True
    IMPLEMENTS_READ_ONLY = True
    ADAPTER_DETAILS = "einsql: SQL over tensors and tables."

    def __init__(
        self, conn_str: Sequence[str] = (), read_only: bool = False, **options: Any
    ) -> None:
        if len(conn_str) > 1:
            raise HarlequinConfigError("einsql opens one database at a time", "Two databases")
        self._path = conn_str[0] if conn_str else ":memory:"
        self._read_only = bool(read_only)
        assignments = options.get("set") or ()
        texts = [assignments] if isinstance(assignments, str) else assignments
        pairs = [str(text).partition("=") for text in texts]
        if any(not equals for _, equals, _ in pairs):
            raise HarlequinConfigError("A setting is NAME=VALUE", "Wrong setting")
        self._config = {name: value for name, _, value in pairs}

    @property
    def connection_id(self) -> str | None:
        """The database file; None in memory."""
        return "" if self._path == ":memory:" else Path(self._path).resolve().as_posix()

    def connect(self) -> HarlequinConnection:
        """Opens the database.

        Raises:
            HarlequinConnectionError: The database cannot be opened.
        """
        import einsql  # Harlequin loads the adapter before it connects

        try:
            connection = einsql.connect(self._path, read_only=self._read_only, config=self._config)
        except Error as error:
            raise HarlequinConnectionError(
                str(error), "The database could not be opened"
            ) from error
        return EinsqlConnection(connection, f"{self._path}: einsql {einsql.__version__}")
