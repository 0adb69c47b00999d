"""Statements: a dataclass for each kind, with sqlglot trees for queries."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import Error
from einsql.sql.parser.aggregate_law import AggregateLaw
from einsql.sql.parser.text_edits import Replaced


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT."""

    tree: exp.Query


LEVELS = ("einsum", "tra", "ia", "program")
"""The levels of a plan, one for each language, in the order of planning."""


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN [ANALYZE] [VERBOSE] [(LEVEL …, FORMAT …, SITES n, …)] statement.

    Attributes:
        level: The level of the plan to show, one of LEVELS; None for the overview.
        form: The output format: "text", "json", "svg" or "html".
        network: The network rate in bytes per second for planning; None for the setting's.
        flops: Scalar operations per second of FLOAT contractions; None for the setting's.
        simulate: Whether the plan is simulated on a cluster.
        cluster: Values for attributes of `Topology`, by name; any value requests a simulation.
        text: The statement as written.
    """

    statement: Statement
    analyze: bool
    verbose: bool
    level: str | None = None
    form: str = "text"
    sites: int | None = None
    network: float | None = None
    flops: float | None = None
    simulate: bool = False
    cluster: tuple[tuple[str, Any], ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A declared column: a key with its bound, or a value with its type."""

    name: str
    extent: int | None
    dtype: DType | None


@dataclass(frozen=True, slots=True)
class CheckClause:
    """The condition of a CHECK, with the offset of its first word in the text."""

    condition: exp.Expr
    at: int


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """A mesh axis in a clause, with its offset in the text."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class KeyCut:
    """A key of PARTITION BY: with a number of parts, or with mesh axes, the outer one first."""

    key: str
    parts: int | None
    axes: tuple[MeshAxis, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTensor:
    """CREATE [OR REPLACE] [TEMP] TENSOR, declared, AS SELECT or both.

    Attributes:
        checks: The conditions of CHECK.
        partition: The keys of PARTITION BY; None without the clause.
        replicate: The mesh axes of REPLICATE OVER.
        partial: The mesh axes of PARTIAL(SUM) OVER.
        storage: "sparse" or "dense" of STORAGE; None without the clause.
        query: The SELECT; None without a SELECT, and for one that only DuckDB's grammar accepts.
        text: The statement's text, if it has a SELECT.
        start: The offset of the SELECT in the text.
        refusal: The error of a SELECT that only DuckDB's grammar accepts, or None.
    """

    name: str
    replace: bool
    if_not_exists: bool
    columns: tuple[ColumnDef, ...] = ()
    checks: tuple[CheckClause, ...] = ()
    partition: tuple[KeyCut, ...] | None = None
    replicate: tuple[MeshAxis, ...] = ()
    partial: tuple[MeshAxis, ...] = ()
    default: exp.Expr | None = None
    storage: str | None = None
    query: exp.Query | None = None
    text: str = ""
    start: int = 0
    refusal: Error | None = None
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE [OR REPLACE] [TEMP] VIEW name AS query; see CreateTensor for the attributes."""

    name: str
    replace: bool
    query: exp.Query | None
    text: str
    start: int = 0
    refusal: Error | None = None
    temporary: bool = False


Types = tuple[exp.Expr | None, ...]
"""The type of each parameter of a macro; None for a parameter of any type."""


@dataclass(frozen=True, slots=True)
class CreateMacro:
    """CREATE [OR REPLACE] [TEMP] MACRO name(parameters) AS [TABLE] body, or CREATE AGGREGATE.

    Attributes:
        types: The type of each parameter; None for a parameter of any type.
        defaults: The default values of the last parameters, written `name := value`.
        law: The law of an aggregate; None for a macro.
    """

    name: str
    replace: bool
    parameters: tuple[str, ...]
    body: exp.Expr
    is_table: bool
    text: str
    temporary: bool = False
    types: Types = ()
    defaults: tuple[exp.Expr, ...] = ()
    law: AggregateLaw | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP TENSOR, VIEW or MACRO.

    Attributes:
        kind: "tensor", "view" or "macro".
        written: The kind as the user wrote it, such as "aggregate", in lower case.
    """

    kind: str
    name: str
    if_exists: bool
    written: str


@dataclass(frozen=True, slots=True)
class Change:
    """sqlglot's tree of INSERT, UPDATE or DELETE, or of a SELECT whose WITH contains such."""

    tree: exp.Expr


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY name FROM or TO a file."""

    name: str
    query: exp.Query | None
    path: str
    reads: bool
    options: tuple[tuple[str, str], ...]
    position: int


@dataclass(frozen=True, slots=True)
class Set:
    """SET name = value, or RESET name.

    Attributes:
        value: The value; None for the default.
        at: The offset of the value, or of the name of RESET.
    """

    name: str
    value: str | None
    at: int


@dataclass(frozen=True, slots=True)
class Calibrate:
    """CALIBRATE."""


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW TENSORS, SHOW SETTINGS, SHOW name, DESCRIBE name or DESCRIBE query.

    Attributes:
        what: "tensors", "tables", "settings", "name" or "describe".
        refusal: The error of einsql's own grammar, if only DuckDB has the name of SHOW name.
    """

    what: str
    name: str = ""
    query: exp.Query | None = None
    refusal: Error | None = None


@dataclass(frozen=True, slots=True)
class DuckDBStatement:
    """A statement of DuckDB that einsql does not parse.

    Attributes:
        word: The statement's first word, in upper case.
        start: The offset of the statement in the text.
        refusal: The error of einsql's own grammar, or None.
    """

    text: str
    word: str
    start: int
    refusal: Error


@dataclass(frozen=True, slots=True)
class Transaction:
    """BEGIN, COMMIT or ROLLBACK."""

    action: str


@dataclass(frozen=True, slots=True)
class IntegrityCheck:
    """PRAGMA integrity_check."""


@dataclass(frozen=True, slots=True)
class Vacuum:
    """VACUUM."""


@dataclass(frozen=True, slots=True)
class Backup:
    """BACKUP TO a file.

    Attributes:
        at: The offset of the path.
    """

    path: str
    at: int


@dataclass(frozen=True, slots=True)
class Export:
    """EXPORT DATABASE [name TO] a directory.

    Attributes:
        database: DuckDB's name of the database; empty for the current one.
        options: DuckDB's options, in parentheses as written; empty without options.
        text: The statement's text.
        at: The offset of the database's name, or of the path.
    """

    database: str
    path: str
    options: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """EXPORT PLAN 'file' FOR statement.

    Attributes:
        at: The offset of the path.
        statement: The statement whose plan is written; it does not run.
        text: The text of that statement.
        start: The offset of that statement.
    """

    path: str
    at: int
    statement: Statement
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Import:
    """IMPORT DATABASE from a directory; see Export for the attributes."""

    path: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Part:
    """A statement in the body of a loop.

    Attributes:
        start: The statement's offset in the loop's text.
        text: The statement after blanks, with parameters in place of the loops' variables.
        numbers: The distinct numbers of its parameters.
        statement: The parsed statement.
    """

    start: int
    text: Replaced
    numbers: tuple[int, ...]
    statement: Statement


@dataclass(frozen=True, slots=True)
class For:
    """FOR variable IN range(…) DO statement; … END FOR.

    Attributes:
        number: The number of the parameter that replaces the variable in the body.
        bounds: The one to three arguments of range.
        at: The offset of the arguments.
        text: The loop's text with numbered parameters.
    """

    variable: str
    number: int
    bounds: tuple[exp.Expr, ...]
    at: int
    body: tuple[Part, ...]
    text: Replaced

    @property
    def speaker(self) -> int | None:
        """The index of the statement whose rows the loop returns: the last SELECT."""
        for n in reversed(range(len(self.body))):
            match self.body[n].statement:
                case Query() | Change(tree=exp.Query()):
                    return n
                case DuckDBStatement(word=word) if word in (
                    "SELECT",
                    "WITH",
                    "FROM",
                    "(",
                    "VALUES",
                ):
                    return n
                case For() as inner if inner.speaker is not None:
                    return n
        return None

    @property
    def commits(self) -> bool:
        """True if the body has a COMMIT."""
        return any(
            (isinstance(p.statement, For) and p.statement.commits)
            or isinstance(p.statement, Transaction)
            for p in self.body
        )


Statement = (
    Query
    | Explain
    | CreateTensor
    | CreateView
    | CreateMacro
    | Drop
    | Change
    | Copy
    | Set
    | Calibrate
    | Show
    | DuckDBStatement
    | Transaction
    | Vacuum
    | Backup
    | Export
    | ExportPlan
    | Import
    | IntegrityCheck
    | For
)
