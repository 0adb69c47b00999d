"""Text to statements: a syntax tree for each statement.

sqlglot parses queries and data changes; what it does not know (CREATE TENSOR, EXPLAIN
with options, SHOW …) is read here from its tokens. Positions always count from the
start of the statement's own text.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # re-exported

from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.schema import DType
from einsql.sql.dialect import EinSQL
from einsql.sql.parameters import mark, place
from einsql.sql.syntax import (
    Change,
    ColumnDef,
    Copy,
    CreateMacro,
    CreateTensor,
    CreateView,
    Drop,
    Explain,
    Query,
    Set,
    Show,
    Statement,
    Transaction,
)


def tokenize(sql: str) -> list[Token]:
    """Tokens of a statement.

    Raises:
        ProgrammingError: The text is no SQL at all.
    """
    marked = mark(sql)
    try:
        tokens = list(EinSQL().tokenize(marked.text))
    except TokenError as error:
        raise ProgrammingError("The statement cannot be read") from error
    for token in tokens if marked.numbers else []:
        if token.start in marked.numbers:
            token.token_type, token.text = TokenType.PLACEHOLDER, sql[token.start : token.end + 1]
    return tokens


def parse(sql: str) -> Statement:
    """Parses one statement.

    Raises:
        Error: A syntax error, with its position, or a statement einsql does not have.
    """
    try:
        tokens = tokenize(sql)
        if not tokens:
            raise ProgrammingError("The statement is empty")
        return Reader(sql, tokens).statement()
    except Error as error:
        raise error.locate(sql) from None


class Reader:
    """Reads a statement's tokens from left to right."""

    def __init__(self, sql: str, tokens: list[Token]) -> None:
        self.sql = sql
        self.tokens = tokens
        self.at = 0

    # ---- tokens

    def word(self) -> str:
        """The next token in upper case, or an empty string at the end."""
        return self.tokens[self.at].text.upper() if self.at < len(self.tokens) else ""

    def position(self) -> int:
        """Offset of the next token."""
        return self.tokens[self.at].start if self.at < len(self.tokens) else len(self.sql)

    def take(self, *words: str) -> bool:
        """Consumes the given words if they come next."""
        have = [t.text.upper() for t in self.tokens[self.at : self.at + len(words)]]
        if " ".join(have) != " ".join(words):
            return False
        self.at += len(words)
        return True

    def expect(self, word: str, where: str) -> None:
        """Consumes a word.

        Raises:
            ProgrammingError: Something else comes next.
        """
        if not self.take(word):
            raise self.error(f"Expected {word} {where}")

    def error(self, reason: str) -> ProgrammingError:
        """An error at the next token."""
        found = f', found "{self.tokens[self.at].text}"' if self.at < len(self.tokens) else ""
        return ProgrammingError(reason + found, position=self.position())

    def name(self, what: str) -> str:
        """Consumes an identifier."""
        if self.at >= len(self.tokens) or self.tokens[self.at].token_type in (
            TokenType.STRING, TokenType.NUMBER, TokenType.L_PAREN, TokenType.R_PAREN,
            TokenType.COMMA, TokenType.PLACEHOLDER,
        ):  # fmt: skip
            raise self.error(f"Expected {what}")
        self.at += 1
        return self.tokens[self.at - 1].text

    def integer(self, what: str) -> int:
        """Consumes a whole number."""
        if self.at < len(self.tokens) and self.tokens[self.at].text.isdigit():
            self.at += 1
            return int(self.tokens[self.at - 1].text)
        raise self.error(f"Expected {what}")

    def end(self) -> None:
        """Requires the end of the statement."""
        if self.at < len(self.tokens):
            raise self.error("The statement should end here")

    def rest(self) -> exp.Expr:
        """Parses everything that is left with sqlglot, keeping positions."""
        start = self.position()
        self.at = len(self.tokens)
        return parse_tree(self.sql, start)

    def query(self) -> exp.Query:
        """Parses the rest as a query."""
        position = self.position()
        tree = self.rest()
        if not isinstance(tree, exp.Query):
            raise ProgrammingError("Expected a SELECT", position=position)
        return tree

    # ---- statements

    def statement(self) -> Statement:
        """Reads the statement its first word announces."""
        word = self.word()
        if word in ("SELECT", "WITH", "FROM", "(", "VALUES"):
            return Query(self.query())
        readers = {
            "EXPLAIN": self.explain, "CREATE": self.create, "DROP": self.drop, "SET": self.set,
            "SHOW": self.show, "DESCRIBE": self.describe, "DESC": self.describe,
            "COPY": self.copy, "BEGIN": self.transaction, "START": self.transaction,
            "COMMIT": self.transaction, "END": self.transaction, "ROLLBACK": self.transaction,
            "ABORT": self.transaction, "INSERT": self.change, "UPDATE": self.change,
            "DELETE": self.change,
        }  # fmt: skip
        if word in readers:
            return readers[word]()
        raise NotSupportedError(
            f"einsql has no {word} statement",
            hint="Statements: SELECT, EXPLAIN, CREATE TENSOR/VIEW/MACRO, DROP, INSERT, UPDATE, "
            "DELETE, COPY, SET, SHOW, DESCRIBE, BEGIN, COMMIT, ROLLBACK.",
            position=self.position(),
        )

    def explain(self) -> Statement:
        """EXPLAIN [ANALYZE] [VERBOSE] statement."""
        self.take("EXPLAIN")
        flags = set()
        while self.word() in ("ANALYZE", "VERBOSE"):
            flags.add(self.word())
            self.at += 1
        if self.take("("):
            while not self.take(")"):
                option = self.name("an EXPLAIN option").upper()
                if option == "FORMAT" and self.word() == "TEXT":
                    self.at += 1
                elif option in ("ANALYZE", "VERBOSE"):
                    flags.add(option)
                else:
                    raise self.error("EXPLAIN knows ANALYZE, VERBOSE and FORMAT text here")
                self.take(",")
        if not self.word():
            raise self.error("EXPLAIN needs a statement")
        return Explain(self.statement(), "ANALYZE" in flags, "VERBOSE" in flags)

    def create(self) -> Statement:
        """CREATE [OR REPLACE] TENSOR | VIEW | MACRO."""
        self.take("CREATE")
        replace = self.take("OR", "REPLACE")
        self.take("TEMP") or self.take("TEMPORARY")
        if self.take("TENSOR"):
            return self.create_tensor(replace)
        if self.take("VIEW"):
            name = self.name("a view name")
            self.expect("AS", "after the view's name")
            text = self.sql[self.position() :]
            return CreateView(name, replace, self.query(), text)
        if self.take("MACRO") or self.take("FUNCTION"):
            return self.create_macro(replace)
        raise NotSupportedError(
            f"CREATE {self.word()} is outside the tensor fragment",
            hint="CREATE TENSOR, VIEW and MACRO work.",
            position=self.position(),
        )

    def create_tensor(self, replace: bool) -> CreateTensor:
        """Name (columns) [PARTITION BY …] [DEFAULT v], or name [PARTITION BY …] AS query."""
        if_not_exists = self.take("IF", "NOT", "EXISTS")
        name = self.name("a tensor name")
        columns: list[ColumnDef] = []
        if self.take("("):
            columns.append(self.column())
            while self.take(","):
                columns.append(self.column())
            self.expect(")", "after the columns")
        partition: tuple[tuple[str, int], ...] = ()
        default: exp.Expr | None = None
        while self.word() in ("PARTITION BY", "PARTITION", "DEFAULT"):
            if self.take("PARTITION BY") or self.take("PARTITION", "BY"):
                partition = self.partition()
            elif self.take("DEFAULT"):
                default = self.default()
        query = None
        if self.take("AS"):
            if columns or default is not None:
                raise self.error("A tensor is either declared or made AS SELECT, not both")
            query = self.query()
        elif not columns:
            raise self.error("Expected the tensor's columns or AS SELECT")
        self.end()
        return CreateTensor(name, replace, if_not_exists, tuple(columns), partition, default, query)

    def column(self) -> ColumnDef:
        """Name DIM(n), or name type."""
        name = self.name("a column name")
        if self.take("DIM"):
            self.expect("(", "after DIM")
            extent = self.integer("the bound of the key, a whole number")
            self.expect(")", "after the bound")
            return ColumnDef(name, extent, None)
        position = self.position()
        word = self.name("DIM(n) or a type").upper()
        dtype = TYPE_NAMES.get(word)
        if dtype is None:
            raise NotSupportedError(
                f"Tensors have no type {word}",
                hint=f"Keys are DIM(n); values are {', '.join(t.value for t in DType)}.",
                position=position,
            )
        return ColumnDef(name, None, dtype)

    def partition(self) -> tuple[tuple[str, int], ...]:
        """(key n, key n, …)."""
        self.expect("(", "after PARTITION BY")
        parts = []
        while True:
            parts.append((self.name("a key"), self.integer("the number of parts")))
            if not self.take(","):
                break
        self.expect(")", "after the parts")
        return tuple(parts)

    def default(self) -> exp.Expr:
        """A number, perhaps signed, TRUE or FALSE."""
        start = self.position()
        self.take("-")
        self.at += 1
        end = self.position()
        value: exp.Expr = parse_tree(self.sql[:end], start, "SELECT ").expressions[0]
        return value

    def create_macro(self, replace: bool) -> CreateMacro:
        """name(parameters) AS [TABLE] body."""
        name = self.name("a macro name")
        self.expect("(", "after the macro's name")
        parameters = []
        while not self.take(")"):
            parameters.append(self.name("a parameter"))
            self.take(",")
        self.expect("AS", "after the parameters")
        if self.take("TABLE"):
            return CreateMacro(name, replace, tuple(parameters), self.query(), True, self.sql)
        start = self.position()
        self.at = len(self.tokens)
        body = parse_tree(self.sql, start, "SELECT ").expressions[0]
        return CreateMacro(name, replace, tuple(parameters), body, False, self.sql)

    def drop(self) -> Drop:
        """DROP TENSOR | VIEW | MACRO [IF EXISTS] name."""
        self.take("DROP")
        kind = self.word()
        if kind not in ("TENSOR", "VIEW", "MACRO"):
            raise self.error("DROP knows TENSOR, VIEW and MACRO")
        self.at += 1
        if_exists = self.take("IF", "EXISTS")
        name = self.name(f"a {kind.lower()} name")
        self.end()
        return Drop(kind.lower(), name, if_exists)

    def set(self) -> Set:
        """SET name = value."""
        self.take("SET")
        name = self.name("a setting").lower()
        if not self.take("=") and not self.take("TO"):
            raise self.error("Expected = after the setting")
        start = self.position()
        if not self.word():
            raise self.error("Expected a value")
        self.at = len(self.tokens)
        return Set(name, self.sql[start:].strip().strip("'\""))

    def show(self) -> Show:
        """SHOW TENSORS | TABLES | SETTINGS."""
        self.take("SHOW")
        what = self.word()
        if what not in ("TENSORS", "TABLES", "SETTINGS"):
            raise self.error("SHOW knows TENSORS and SETTINGS")
        self.at += 1
        self.end()
        return Show("settings" if what == "SETTINGS" else "tensors")

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
            start, depth = self.position(), 1
            while depth and self.at < len(self.tokens):
                depth += {"(": 1, ")": -1}.get(self.word(), 0)
                self.at += 1
            tree = parse_tree(self.sql[: self.tokens[self.at - 1].start], start)
            if not isinstance(tree, exp.Query):
                raise ProgrammingError("Expected a SELECT", position=start)
            query = tree
        else:
            name = self.name("a tensor name")
        reads = self.word() == "FROM"
        if not self.take("FROM") and not self.take("TO"):
            raise self.error("Expected FROM or TO")
        if self.at >= len(self.tokens) or self.tokens[self.at].token_type is not TokenType.STRING:
            raise self.error("Expected a file name in quotes")
        path = self.tokens[self.at].text
        self.at += 1
        options = []
        if self.take("("):
            while not self.take(")"):
                options.append((self.name("an option").upper(), self.option()))
                self.take(",")
        self.end()
        return Copy(name, query, path, reads, tuple(options), position)

    def option(self) -> str:
        """An option's value, a name, number or text."""
        if not self.word():
            raise self.error("Expected the option's value")
        self.at += 1
        return self.tokens[self.at - 1].text

    def transaction(self) -> Transaction:
        """BEGIN, COMMIT or ROLLBACK [TRANSACTION]."""
        word = self.word()
        self.at += 1
        self.take("TRANSACTION")
        self.end()
        actions = {"START": "BEGIN", "END": "COMMIT", "ABORT": "ROLLBACK"}
        return Transaction(actions.get(word, word))

    def change(self) -> Change:
        """INSERT, UPDATE or DELETE."""
        tree = self.rest()
        if not isinstance(tree, exp.Insert | exp.Update | exp.Delete):
            raise ProgrammingError("This statement could not be read", position=0)
        return Change(tree)


TYPE_NAMES = {
    **{t.value: t for t in DType},
    "BOOL": DType.BOOLEAN, "INT": DType.INTEGER, "INT4": DType.INTEGER, "INT8": DType.BIGINT,
    "LONG": DType.BIGINT, "REAL": DType.FLOAT, "FLOAT4": DType.FLOAT, "FLOAT8": DType.DOUBLE,
    "FLOAT16": DType.HALF, "INT1": DType.TINYINT,
}  # fmt: skip


def parse_tree(sql: str, start: int, prefix: str = "") -> exp.Expr:
    """Parses `sql[start:]` with sqlglot; positions in the tree count from sql's start.

    Raises:
        ProgrammingError: A syntax error.
    """
    marked = mark(sql)
    # Spaces keep the offsets; a prefix that makes a fragment a statement takes their place.
    text = " " * (start - len(prefix)) + prefix + marked.text[start:]
    ahead = max(0, len(prefix) - start)
    try:
        tree = sqlglot.parse_one(text, dialect=EinSQL)
    except ParseError as error:
        raise _syntax_error(text, error) from error
    except RecursionError as error:
        raise ProgrammingError("The statement nests too deeply") from error
    if ahead:
        for node in tree.walk():
            if "start" in node.meta:
                node.meta["start"] -= ahead
    here = {at: number for at, number in marked.numbers.items() if at >= start}
    return place(tree, here) if here else tree


def _syntax_error(sql: str, error: ParseError) -> ProgrammingError:
    detail = error.errors[0] if error.errors else {}
    description = str(detail.get("description") or "it cannot be read").split(" but got <")[0]
    if description.startswith("Required keyword"):
        description = "something is missing before this point"
    line, col = detail.get("line") or 1, detail.get("col") or 1
    starts = [0]
    for text in sql.split("\n"):
        starts.append(starts[-1] + len(text) + 1)
    highlight = str(detail.get("highlight") or "")
    position = max(0, starts[int(line) - 1] + int(col) - max(1, len(highlight)))
    return ProgrammingError(
        f"Syntax error: {description.rstrip('.')}", position=min(position, max(0, len(sql) - 1))
    )
