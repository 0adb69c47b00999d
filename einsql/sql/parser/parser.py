"""Parses text to statements.

sqlglot parses queries and data changes. This module reads other statements (CREATE TENSOR, EXPLAIN
with options, SHOW …) from sqlglot's tokens. Positions count from the start of the statement's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sqlglot import TokenType, exp

from einsql.core.lazy_module import LazyModule
from einsql.core.settings import RANKS, SETTINGS
from einsql.errors import Error, NotSupportedError, ProgrammingError, UnknownHere
from einsql.sql.parser.create.definitions import DefinitionReader
from einsql.sql.parser.grammar import check_grammar
from einsql.sql.parser.positions import unsupported
from einsql.sql.parser.sqlglot_trees import as_query, changing
from einsql.sql.parser.syntax import (
    Backup,
    Calibrate,
    Change,
    Copy,
    CreateTensor,
    DuckDBStatement,
    Explain,
    Export,
    ExportPlan,
    Import,
    IntegrityCheck,
    Query,
    Set,
    Show,
    Statement,
    Transaction,
    Vacuum,
)
from einsql.sql.parser.tokens import did_you_mean, tokenize, word_of

if TYPE_CHECKING:
    from einsql.sql.parser import explain_options as _options
    from einsql.sql.parser import loops as _loops
else:  # loaded for EXPLAIN and FOR
    _options = LazyModule("einsql.sql.parser.explain_options")
    _loops = LazyModule("einsql.sql.parser.loops")

_SCOPES = ("GLOBAL", "SESSION", "LOCAL")
"""Scopes of DuckDB's settings."""
_SHARED = (
    "CREATE",
    "DROP",
    "SHOW",
    "DESCRIBE",
    "DESC",
    "COPY",
    "INSERT",
    "UPDATE",
    "DELETE",
)
"""First words of statements that exist in einsql and in DuckDB."""

_QUERY = ("SELECT", "WITH", "FROM", "(", "VALUES")
"""First words of a query."""

_DUCKDB = (
    "ALTER",
    "ANALYZE",
    "ATTACH",
    "CALL",
    "CHECKPOINT",
    "DETACH",
    "INSTALL",
    "LOAD",
    "MERGE",
    "PIVOT",
    "PRAGMA",
    "RESET",
    "SUMMARIZE",
    "TRUNCATE",
    "UNPIVOT",
    "USE",
)
"""First words of statements that exist in DuckDB only, for hints on misspelt words."""


def parse(sql: str) -> tuple[Statement, Error | None]:
    """Parses one statement.

    Returns:
        The statement, and the error of DuckDB's grammar or None. A statement with an error must
        not run. It is bound nevertheless, because an error of the binder is more precise.

    Raises:
        Error: A syntax error with its position, or an unknown statement.
    """
    try:
        tokens = tokenize(sql)
        if not tokens:
            raise ProgrammingError("The statement is empty")
        if word_of(tokens[0]) == "FOR":
            return _loops.read_loop(sql, parse), None
        reader = Reader(sql, tokens)
        return reader.statement(), reader.doubt
    except Error as error:
        raise error.locate(sql) from None


def is_qualified(words: Sequence[str], at: int) -> bool:
    """True if a qualified name begins at an index, or after IF [NOT] EXISTS at the index."""
    while words[at : at + 1] in (["IF"], ["NOT"], ["EXISTS"]):
        at += 1
    return words[at + 1 : at + 2] == ["."]


def _has_plan(statement: Statement) -> bool:
    """True if a statement computes something that EXPLAIN shows."""
    if isinstance(statement, CreateTensor):
        return statement.query is not None or statement.refusal is not None
    return isinstance(statement, Query | Change | DuckDBStatement)


class Reader(DefinitionReader):
    """Reads one statement."""

    def statement(self) -> Statement:
        """Reads the statement, depending on its first word."""
        word = self.word()
        if word in _QUERY:
            at, position = self.at, self.position()
            try:
                tree = self.rest()
            except Error as error:
                return self.foreign(at, error)
            if isinstance(tree, exp.Insert | exp.Update | exp.Delete) or changing(tree):
                return Change(tree)
            if isinstance(tree, exp.Values):
                return self.foreign(at, unsupported("VALUES", tree))
            return Query(as_query(tree, position))
        readers = {
            "EXPLAIN": self.explain,
            "CREATE": self.create,
            "DROP": self.drop,
            "SET": self.set,
            "SHOW": self.show,
            "DESCRIBE": self.describe,
            "DESC": self.describe,
            "COPY": self.copy,
            "BEGIN": self.transaction,
            "START": self.transaction,
            "COMMIT": self.transaction,
            "END": self.transaction,
            "ROLLBACK": self.transaction,
            "ABORT": self.transaction,
            "INSERT": self.change,
            "UPDATE": self.change,
            "DELETE": self.change,
            "CALIBRATE": self.calibrate,
            "VACUUM": self.vacuum,
            "BACKUP": self.backup,
            "EXPORT": self.export,
            "IMPORT": self.import_database,
        }
        if word == "PRAGMA" and self.word(1) == "INTEGRITY_CHECK":
            return self.integrity_check()
        if word == "RESET" and self.tokens[-1].text.lower() in (*SETTINGS, *RANKS):
            return self.reset()
        if word not in readers:
            meant = did_you_mean(word, (*_QUERY, *readers, "FOR", *_DUCKDB))
            return self.foreign(
                self.at,
                NotSupportedError(
                    f"einsql has no {word} statement",
                    hint=f"{meant}Statements: SELECT, EXPLAIN, CREATE TENSOR/VIEW/MACRO, DROP, "
                    "INSERT, UPDATE, DELETE, COPY, SET, CALIBRATE, SHOW, DESCRIBE, BEGIN, COMMIT, "
                    "ROLLBACK, VACUUM, BACKUP, EXPORT, IMPORT, FOR, and those of DuckDB.",
                    position=self.position(),
                ),
            )
        start = self.at
        try:
            return readers[word]()
        except Error as error:
            if word not in _SHARED or self._is_definition(start):
                raise
            if not isinstance(error, NotSupportedError):
                error = UnknownHere(error.reason, hint=error.hint, position=error.position)
            return self.foreign(start, error)

    def _is_definition(self, start: int) -> bool:
        """True for CREATE and DROP of einsql's objects; DuckDB runs those of qualified views."""
        words = [t.text.upper() for t in self.tokens[start : start + 9]]
        kinds = ("TENSOR", "VIEW", "MACRO", "FUNCTION", "AGGREGATE")
        if words[0] not in ("CREATE", "DROP") or not any(w in kinds for w in words[1:5]):
            return False
        return "VIEW" not in words[1:5] or not is_qualified(words, words.index("VIEW") + 1)

    def foreign(self, start: int, error: Error) -> DuckDBStatement:
        """The statement as a DuckDB statement.

        Raises:
            Error: The given error, or the error of DuckDB's grammar if its position is further.
        """
        self.at = start
        begins = self.position()
        if not isinstance(error, NotSupportedError | UnknownHere):
            raise error
        try:
            check_grammar(" " * begins + self.sql[begins:])
        except ProgrammingError as wrong:
            comparable = isinstance(error, NotSupportedError) and wrong.position is not None
            if comparable and (error.position or 0) < (wrong.position or 0):
                raise wrong from None
            raise error from None
        return DuckDBStatement(self.sql, self.word(), begins, error)

    def explain(self) -> Statement:
        """EXPLAIN [ANALYZE] [VERBOSE] [SIMULATE] [(option, …)] statement."""
        self.take("EXPLAIN")
        options = _options.explain_options(self, _QUERY)
        if self.ended:
            raise ProgrammingError(
                "EXPLAIN needs a statement",
                hint="Write EXPLAIN SELECT ….",
                position=self.position(),
            )
        word, position = self.word(), self.position()
        if word == "FOR":
            raise ProgrammingError(
                "EXPLAIN shows one statement, and a loop has several",
                hint="EXPLAIN one of its body, with a number in place of the loop's variable.",
                position=position,
            )
        statement = self.statement()
        if not _has_plan(statement):
            raise NotSupportedError(
                f"This {word} has no plan",
                hint="EXPLAIN shows plans of SELECT, CREATE TENSOR AS SELECT and changes: EXPLAIN "
                "the SELECT of a view, a macro or a COPY.",
                position=position,
            )
        return Explain(statement, **asdict(options), text=self.sql[position:].strip())

    def calibrate(self) -> Calibrate:
        """CALIBRATE."""
        self.take("CALIBRATE")
        self.end()
        return Calibrate()

    def integrity_check(self) -> IntegrityCheck:
        """PRAGMA integrity_check [()]."""
        self.take("PRAGMA", "INTEGRITY_CHECK")
        self.take("(", ")")
        self.end()
        return IntegrityCheck()

    def vacuum(self) -> Vacuum:
        """VACUUM."""
        self.take("VACUUM")
        self.end()
        return Vacuum()

    def backup(self) -> Backup:
        """BACKUP TO 'file'."""
        self.take("BACKUP")
        self.expect("TO", "after BACKUP")
        position = self.position()
        path = self.text("a file name in quotes")
        self.end()
        return Backup(path, position)

    def export(self) -> Export | ExportPlan:
        """EXPORT DATABASE [name TO] 'directory' [(options)], or EXPORT PLAN."""
        self.take("EXPORT")
        if self.take("PLAN"):
            return self.export_plan()
        self.expect("DATABASE", "or PLAN after EXPORT")
        position, name = self.position(), ""
        if self.ended or self.tokens[self.at].token_type is not TokenType.STRING:
            name = self.name("a directory in quotes")
            self.expect("TO", "after the database")
        path = self.text("a directory in quotes")
        start = self.position()
        if self.take("("):
            self.parenthesised()
        options = self.sql[start : self.position()].strip()
        self.end()
        return Export(name, path, options, self.sql, position)

    def export_plan(self) -> ExportPlan:
        """'file' FOR statement, after EXPORT PLAN."""
        position = self.position()
        path = self.text("a file name in quotes")
        self.expect("FOR", "after the file name")
        start = self.position()
        if self.ended:
            raise self.error("EXPORT PLAN needs a statement")
        if self.word() in ("FOR", "EXPLAIN", "EXPORT"):
            raise ProgrammingError(
                f"EXPORT PLAN writes the plan of one statement, and {self.word()} has none",
                hint="Write EXPORT PLAN 'p.json' FOR SELECT ….",
                position=start,
            )
        return ExportPlan(path, position, self.statement(), self.sql[start:].strip(), start)

    def import_database(self) -> Import:
        """IMPORT DATABASE 'directory'."""
        self.take("IMPORT")
        self.expect("DATABASE", "after IMPORT")
        position = self.position()
        path = self.text("a directory in quotes")
        self.end()
        return Import(path, self.sql, position)

    def set(self) -> Set:
        """SET name = value."""
        self.take("SET")
        name = self.name("a setting").lower()
        shows = f"SHOW {name} prints its value." if name in SETTINGS else ""
        if name.upper() in _SCOPES:
            shows = "Write SET name = value: each session has its own settings."
        if not self.take("=") and not self.take("TO"):
            raise self.error("Expected = after the setting", shows)
        start = self.position()
        if self.ended:
            raise self.error("Expected a value", shows)
        token, *more = self.tokens[self.at :]
        written = self.sql[start : self.tokens[-1].end + 1].strip("'\"")
        is_text = token.token_type is TokenType.STRING and not more
        self.at = len(self.tokens)
        return Set(name, token.text if is_text else written, start)

    def reset(self) -> Set:
        """RESET name."""
        self.take("RESET")
        position = self.position()
        if self.word() in _SCOPES:
            raise self.error(
                "Expected a setting", "Write RESET name: each session has its own settings."
            )
        name = self.name("a setting").lower()
        self.end()
        return Set(name, None, position)

    def show(self) -> Show:
        """SHOW TENSORS | TABLES | SETTINGS | name."""
        self.take("SHOW")
        what = self.word()
        known = ("TENSORS", "TABLES", "SETTINGS")
        if what not in known:
            error = self.error("SHOW knows TENSORS and SETTINGS", did_you_mean(what, known))
            token = self.tokens[self.at] if self.at + 1 == len(self.tokens) else None
            if token is None or token.token_type is TokenType.STRING:
                raise error
            refusal = UnknownHere(error.reason, hint=error.hint, position=error.position)
            return Show("name", token.text, refusal=refusal)
        self.at += 1
        self.end()
        return Show(what.lower())

    def describe(self) -> Show:
        """DESCRIBE name, or DESCRIBE query."""
        self.at += 1
        if self.word() in ("SELECT", "WITH", "FROM"):
            return Show("describe", query=self.query())
        name = self.name("a tensor or a SELECT")
        self.end()
        return Show("describe", name)

    def copy(self) -> Copy:
        """COPY name FROM 'file' (options); COPY name TO 'file'; COPY (query) TO 'file'."""
        position = self.position()
        self.take("COPY")
        query: exp.Query | None = None
        name = ""
        if self.take("("):
            start, end = self.parenthesised()
            query = as_query(self.tree(start, end), start)
        else:
            name = self.name("a tensor name")
        reads = query is None and self.take("FROM")
        if not reads and not self.take("TO"):
            raise self.error("Expected FROM or TO" if query is None else "Expected TO")
        path = self.text("a file name in quotes")
        options = self.options() if self.take("(") else {}
        self.end()
        return Copy(name, query, path, reads, tuple(options.items()), position)

    def options(self) -> dict[str, str]:
        """Pairs `name value, name value, …)`; HEADER and ROWS alone are true."""
        options: dict[str, str] = {}
        while not options or not self.take(")"):
            if options:
                self.expect(",", "or )")
            position = self.position()
            name = self.name("an option").upper()
            if name in options:
                raise ProgrammingError(f"The option {name} is given twice", position=position)
            if name in ("HEADER", "ROWS") and not self.ended and self.word() in (",", ")"):
                options[name] = "TRUE"
                continue
            if self.ended or self.word() in (",", ")"):
                raise self.error("Expected the option's value")
            options[name] = self.tokens[self.at].text
            self.at += 1
        return options

    def transaction(self) -> Transaction:
        """BEGIN, COMMIT or ROLLBACK [TRANSACTION | WORK]."""
        word = self.word()
        self.at += 1
        if not self.take("TRANSACTION"):
            self.take("WORK")
        self.end()
        actions = {"START": "BEGIN", "END": "COMMIT", "ABORT": "ROLLBACK"}
        return Transaction(actions.get(word, word))

    def change(self) -> Change:
        """INSERT, UPDATE or DELETE."""
        tree = self.rest()
        if not isinstance(tree, exp.Insert | exp.Update | exp.Delete):
            raise ProgrammingError("This statement could not be read", position=0)
        return Change(tree)
