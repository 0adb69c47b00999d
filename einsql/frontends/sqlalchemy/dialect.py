"""The SQLAlchemy dialect of einsql: URLs."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakSet

from sqlalchemy import event, pool
from sqlalchemy.engine import URL, Engine, default
from sqlalchemy.engine.interfaces import BindTyping
from sqlalchemy.exc import DisconnectionError

from einsql.errors import InterfaceError
from einsql.frontends.sqlalchemy.compilers import Definitions, Execution, Names, Statements, Types
from einsql.frontends.sqlalchemy.reflection import MAIN, Reflection
from einsql.frontends.sqlalchemy.types import COLSPECS
from einsql.session.connection import Connection

TRUE = ("1", "true", "yes", "on")


class EinsqlDialect(Reflection, default.DefaultDialect):
    """SQLAlchemy's dialect of einsql.

    URLs are `einsql:///model.db` (relative), `einsql:////data/model.db` and `einsql://`, which
    is in memory. Their options are `read_only=true` and settings: `?sites=4&memory_limit=2GB`.
    """

    name = "einsql"
    driver = "einsql"

    statement_compiler = Statements
    ddl_compiler = Definitions
    type_compiler_cls = Types
    preparer = Names
    execution_ctx_cls = Execution
    colspecs = COLSPECS

    supports_statement_cache = True
    default_paramstyle = "qmark"
    bind_typing = BindTyping.NONE
    max_identifier_length = 1023

    supports_native_boolean = True
    supports_native_decimal = True
    supports_native_uuid = True
    supports_sane_rowcount = True
    supports_sane_multi_rowcount = True
    supports_default_values = True
    supports_empty_insert = False
    supports_multivalues_insert = True
    supports_is_distinct_from = True
    supports_schemas = True
    supports_comments = True
    supports_alter = False  # constraints are part of CREATE TABLE
    supports_sequences = True
    sequences_optional = True
    preexecute_autoincrement_sequences = False
    postfetch_lastrowid = False
    insert_returning = True
    update_returning = True
    delete_returning = True
    insert_executemany_returning = True
    use_insertmanyvalues = True
    tuple_in_values = True
    div_is_floordiv = False
    default_schema_name = MAIN

    def __init__(
        self, json_serializer: Any = None, json_deserializer: Any = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._json_serializer = json_serializer
        self._json_deserializer = json_deserializer
        self._automatic: WeakSet[Connection] = WeakSet()
        self._beginning: WeakSet[Connection] = WeakSet()

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """The module with `connect`."""
        import einsql  # SQLAlchemy found the dialect in this package

        return einsql

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:
        """The pool class; in memory one connection per thread, each with its own database."""
        in_memory = url.database in (None, "", ":memory:")
        return pool.SingletonThreadPool if in_memory else pool.QueuePool

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        """Makes pools open new connections in a forked child."""
        event.listen(engine, "checkout", _refuse_inherited)

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of `connect`.

        Raises:
            InterfaceError: The URL has a host or a user.
        """
        if url.host or url.username or url.port:
            raise InterfaceError(
                f"A database is a file, not at {url.host}", hint="Write einsql:///model.db."
            )
        options: dict[str, Any] = {
            name: value if isinstance(value, str) else value[-1]
            for name, value in url.query.items()
        }
        read_only = str(options.pop("read_only", "")).lower() in TRUE
        if str(options.get("mpi", "")).isdigit():
            options["mpi"] = int(options["mpi"])
        config: dict[str, Any] = {"config": options} if options else {}
        return [url.database or ":memory:"], {**config, "read_only": read_only}

    # ---- transactions

    def get_isolation_level_values(self, dbapi_conn: Any) -> list[Any]:
        """The isolation levels: a snapshot of the transaction's start, or autocommit."""
        return ["SNAPSHOT", "AUTOCOMMIT"]

    def get_default_isolation_level(self, dbapi_conn: Any) -> Any:
        """The default isolation level."""
        return "SNAPSHOT"

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        """The current isolation level."""
        return "AUTOCOMMIT" if dbapi_connection in self._automatic else "SNAPSHOT"

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """Switches autocommit on or off."""
        if level == "AUTOCOMMIT":
            self._automatic.add(dbapi_connection)
        else:
            self._automatic.discard(dbapi_connection)

    def do_begin(self, dbapi_connection: Any) -> None:
        """Makes the next statement begin a transaction; einsql's connections do not begin one.

        A transaction reads the last commit before it began, so it begins with its first
        statement and no sooner.
        """
        con = _beneath(dbapi_connection)
        if con not in self._automatic:
            self._beginning.add(con)

    def do_commit(self, dbapi_connection: Any) -> None:
        """Commits the transaction."""
        self._beginning.discard(_beneath(dbapi_connection))
        dbapi_connection.commit()

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Rolls the transaction back."""
        self._beginning.discard(_beneath(dbapi_connection))
        dbapi_connection.rollback()

    def _begin(self, cursor: Any) -> None:
        if cursor.connection in self._beginning:
            self._beginning.discard(cursor.connection)
            cursor.connection.execute("BEGIN")

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        """Runs a statement."""
        self._begin(cursor)
        cursor.execute(statement, parameters)

    def do_executemany(
        self, cursor: Any, statement: str, parameters: Any, context: Any = None
    ) -> None:
        """Runs a statement for many parameters."""
        self._begin(cursor)
        cursor.executemany(statement, parameters)

    def do_execute_no_params(self, cursor: Any, statement: str, context: Any = None) -> None:
        """Runs a statement without parameters."""
        self._begin(cursor)
        cursor.execute(statement)

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """True if a connection is no longer usable."""
        return isinstance(e, InterfaceError) and "connection is closed" in str(e)

    # ---- the database

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        import einsql  # as above

        return tuple(int(part) for part in einsql.__version__.split(".") if part.isdigit())

    def _get_default_schema_name(self, connection: Any) -> str:
        return MAIN


def _refuse_inherited(dbapi_connection: Any, *_: object) -> None:
    """Makes a pool discard a connection that another process has opened.

    Raises:
        DisconnectionError: Another process opened the connection; the pool opens a new one.
    """
    if dbapi_connection.inherited:
        raise DisconnectionError("The connection was opened before a fork")


def _beneath(dbapi_connection: Any) -> Any:
    """The einsql connection inside a pool's wrapper, if there is one."""
    return getattr(dbapi_connection, "dbapi_connection", dbapi_connection)
