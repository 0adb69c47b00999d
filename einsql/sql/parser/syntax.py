"""Statements: a dataclass for each kind, with sqlglot trees for queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from einsql.core.schema import DType
from einsql.errors import Error
from einsql.sql.parser.text_edits import Replaced


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT."""

    tree: exp.Query


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN [ANALYZE] [VERBOSE] [(FORMAT …, SITES n, NETWORK '…', FLOPS '…', …)] statement.

    Attributes:
        form: "text", "json", "svg" or "html".
        network: Bytes per second to plan for instead of the setting's.
        flops: Scalar operations per second of a FLOAT contraction to plan for.
        simulate: Whether the plan is played on a cluster.
        cluster: What is said of it, by the attributes of `Topology`; any of them simulates.
        text: The statement as written.
    """

    statement: Statement
    analyze: bool
    verbose: bool
    form: str = "text"
    sites: int | None = None
    network: float | None = None
    flops: float | None = None
    simulate: bool = False
    cluster: tuple[tuple[str, Any], ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A declared column: a key with its bound, or a typed value."""

    name: str
    extent: int | None
    dtype: DType | None


@dataclass(frozen=True, slots=True)
class CreateTensor:
    """CREATE [OR REPLACE] [TEMP] TENSOR, declared, AS SELECT or both.

    Attributes:
        query: The SELECT; None without one, and where only DuckDB's grammar has it.
        text: The statement, if it has a SELECT.
        start: Where that begins.
        refusal: Why the SELECT could not be read, if so.
    """

    name: str
    replace: bool
    if_not_exists: bool
    columns: tuple[ColumnDef, ...] = ()
    partition: tuple[tuple[str, int], ...] | None = None
    default: exp.Expr | None = None
    query: exp.Query | None = None
    text: str = ""
    start: int = 0
    refusal: Error | None = None
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE [OR REPLACE] [TEMP] VIEW name AS query; the attributes as in CreateTensor."""

    name: str
    replace: bool
    query: exp.Query | None
    text: str
    start: int = 0
    refusal: Error | None = None
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class CreateMacro:
    """CREATE [OR REPLACE] [TEMP] MACRO name(parameters) AS [TABLE] body.

    Attributes:
        defaults: Of the last parameters, which are written `name := value`.
    """

    name: str
    replace: bool
    parameters: tuple[str, ...]
    body: exp.Expr
    is_table: bool
    text: str
    temporary: bool = False
    defaults: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP TENSOR, VIEW or MACRO."""

    kind: str
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class Change:
    """INSERT, UPDATE or DELETE, or a SELECT behind a WITH that has such, as sqlglot parses them."""

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
    """SET name = value.

    Attributes:
        at: Where the value stands.
    """

    name: str
    value: str
    at: int


@dataclass(frozen=True, slots=True)
class Calibrate:
    """CALIBRATE."""


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW TENSORS, SHOW SETTINGS, DESCRIBE name or DESCRIBE query."""

    what: str
    name: str = ""
    query: exp.Query | None = None


@dataclass(frozen=True, slots=True)
class DuckDBStatement:
    """A statement of DuckDB that einsql does not read.

    Attributes:
        word: Its first word, in upper case.
        start: Where it begins in the text.
        refusal: Why einsql's own grammar has it not.
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
        at: Where the path stands.
    """

    path: str
    at: int


@dataclass(frozen=True, slots=True)
class Export:
    """EXPORT DATABASE [name TO] a directory.

    Attributes:
        database: What DuckDB calls it; empty for the one in use.
        options: DuckDB's, in parentheses as written; empty without any.
        text: The statement.
        at: Where the database is named, or the path.
    """

    database: str
    path: str
    options: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Import:
    """IMPORT DATABASE from a directory; the attributes as in Export."""

    path: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Part:
    """A statement in the body of a loop.

    Attributes:
        start: Where it begins in the loop's text.
        text: It alone, with a parameter for each use of a loop's variable; blanks before it.
        numbers: The parameters in it, each once.
        statement: What it says.
    """

    start: int
    text: Replaced
    numbers: tuple[int, ...]
    statement: Statement


@dataclass(frozen=True, slots=True)
class For:
    """FOR variable IN range(…) DO statement; … END FOR.

    Attributes:
        number: The parameter that the variable is in the body.
        bounds: The arguments of range, one to three.
        at: Where they begin.
        text: The loop with its parameters numbered.
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
    | Import
    | IntegrityCheck
    | For
)
