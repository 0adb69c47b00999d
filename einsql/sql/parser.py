"""Text to statements: a syntax tree for each statement.

sqlglot parses queries and data changes; what it does not know (CREATE TENSOR, EXPLAIN
with options, SHOW …) is read here from its tokens. Positions always count from the
start of the statement's own text.
"""

from __future__ import annotations

from bisect import bisect_left

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # re-exported

from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.schema import DType
from einsql.sql.dialect import EinSQL
from einsql.sql.grammar import check_grammar, spaced
from einsql.sql.hints import numbered, placed
from einsql.sql.macros import check_parameters, is_function
from einsql.sql.parameters import mark, place
from einsql.sql.syntax import (
    Calibrate,
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
from einsql.sql.tokens import TokenReader, tokenize
from einsql.units import BANDWIDTH, FLOPS, Quantity

_QUERY = ("SELECT", "WITH", "FROM", "(", "VALUES")
"""What a query may begin with."""


def parse(sql: str) -> tuple[Statement, Error | None]:
    """Parses one statement.

    Returns:
        The statement, and why DuckDB's grammar refuses it if it does. It must not be obeyed
        then, but if the binder has something to say it knows more.

    Raises:
        Error: A syntax error, with its position, or a statement einsql does not have.
    """
    try:
        tokens = tokenize(sql)
        if not tokens:
            raise ProgrammingError("The statement is empty")
        reader = Reader(sql, tokens)
        return reader.statement(), reader.doubt
    except Error as error:
        raise error.locate(sql) from None


class Reader(TokenReader):
    """Reads one statement.

    Attributes:
        doubt: Why DuckDB's grammar refuses what sqlglot could read, if it does.
    """

    doubt: Error | None = None

    def tree(self, start: int, end: int | None = None, prefix: str = "") -> exp.Expr:
        """Parses a part of the statement with sqlglot, and has DuckDB look at it."""
        tree, doubt = parse_tree(self.sql[:end], start, prefix)
        self.doubt = self.doubt or doubt
        return tree

    def rest(self) -> exp.Expr:
        """Parses everything that is left with sqlglot, keeping positions."""
        start = self.position()
        self.at = len(self.tokens)
        return self.tree(start)

    def query(self) -> exp.Query:
        """Parses the rest as a query."""
        position = self.position()
        if self.ended:
            raise self.error("Expected a SELECT")
        return _as_query(self.rest(), position)

    def refuse_parameters(self, tree: exp.Expr, start: int) -> None:
        """Refuses `?` and `$n` in a definition, for it outlives the call that gives them."""
        if tree.find(exp.Placeholder, exp.Parameter) is not None:
            marks = (t.start for t in self.tokens if t.start >= start and t.text in ("?", "$"))
            raise ProgrammingError(
                "A parameter cannot stand in a definition",
                hint="The argument of a macro takes its place.",
                position=next(marks, start),
            )

    # ---- statements

    def statement(self) -> Statement:
        """Reads the statement its first word announces."""
        word = self.word()
        if word in _QUERY:
            position = self.position()
            tree = self.rest()
            if isinstance(tree, exp.Insert | exp.Update | exp.Delete):
                return Change(tree)
            return Query(_as_query(tree, position))
        readers = {
            "EXPLAIN": self.explain, "CREATE": self.create, "DROP": self.drop, "SET": self.set,
            "SHOW": self.show, "DESCRIBE": self.describe, "DESC": self.describe,
            "COPY": self.copy, "BEGIN": self.transaction, "START": self.transaction,
            "COMMIT": self.transaction, "END": self.transaction, "ROLLBACK": self.transaction,
            "ABORT": self.transaction, "INSERT": self.change, "UPDATE": self.change,
            "DELETE": self.change, "CALIBRATE": self.calibrate,
        }  # fmt: skip
        if word in readers:
            return readers[word]()
        raise NotSupportedError(
            f"einsql has no {word} statement",
            hint="Statements: SELECT, EXPLAIN, CREATE TENSOR/VIEW/MACRO, DROP, INSERT, UPDATE, "
            "DELETE, COPY, SET, CALIBRATE, SHOW, DESCRIBE, BEGIN, COMMIT, ROLLBACK.",
            position=self.position(),
        )

    def explain(self) -> Statement:
        """EXPLAIN [ANALYZE] [VERBOSE] [(option, …)] statement."""
        self.take("EXPLAIN")
        flags: set[str] = set()
        form, sites = "text", None
        rates: dict[str, float] = {}
        while self.word() in ("ANALYZE", "VERBOSE"):
            flags.add(self.word())
            self.at += 1
        if self.word(1) not in _QUERY and self.take("("):
            while not self.take(")"):
                at = self.at
                option = self.name("an EXPLAIN option").upper()
                if option == "FORMAT" and self.word() in ("TEXT", "JSON", "SVG", "HTML"):
                    form = self.name("a format").lower()
                elif option == "SITES":
                    sites = self.integer("the number of sites", least=1)
                elif option in _RATES:
                    rates[option] = self.quantity(_RATES[option])
                elif option in ("ANALYZE", "VERBOSE"):
                    flags.add(option)
                else:
                    known = (
                        "ANALYZE, VERBOSE, FORMAT text or json or svg or html, SITES n, "
                        "NETWORK and FLOPS"
                    )
                    self.at = at + (option == "FORMAT")
                    raise self.error(f"EXPLAIN knows {known} here")
                if not self.take(",") and self.word() != ")":
                    raise self.error("Expected , or )")
        if self.ended:
            raise self.error("EXPLAIN needs a statement")
        text = self.sql[self.position() :].strip()
        flagged = "ANALYZE" in flags, "VERBOSE" in flags
        network, flops = rates.get("NETWORK"), rates.get("FLOPS")
        return Explain(self.statement(), *flagged, form, sites, network, flops, text)

    def quantity(self, kind: Quantity) -> float:
        """A quoted number with its unit."""
        position = self.position()
        return kind.read(self.text(f"a {kind.name} in quotes, as in {kind.example}"), position)

    def calibrate(self) -> Calibrate:
        """CALIBRATE."""
        self.take("CALIBRATE")
        self.end()
        return Calibrate()

    def create(self) -> Statement:
        """CREATE [OR REPLACE] TENSOR | VIEW | MACRO."""
        self.take("CREATE")
        replace = self.take("OR", "REPLACE")
        self.take("TEMP") or self.take("TEMPORARY")
        if self.take("TENSOR"):
            return self.create_tensor(replace)
        if self.take("VIEW"):
            return self.create_view(replace)
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
        if replace and if_not_exists:
            raise self.error("OR REPLACE and IF NOT EXISTS exclude each other")
        name = self.name("a tensor name")
        columns: list[ColumnDef] = []
        if self.take("("):
            columns.append(self.column())
            while self.take(","):
                columns.append(self.column())
            self.expect(")", "after the columns")
        partition: tuple[tuple[str, int], ...] | None = None
        default: exp.Expr | None = None
        while self.word() in ("PARTITION BY", "DEFAULT"):
            given = default if self.word() == "DEFAULT" else partition
            if given is not None:
                raise self.error("A clause is given twice")
            if self.take("PARTITION BY"):
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
        """(key n, key n, …); () is a copy at every site."""
        self.expect("(", "after PARTITION BY")
        parts: dict[str, int] = {}
        if self.take(")"):
            return ()
        while True:
            position = self.position()
            key = self.name("a key")
            if key.lower() in {k.lower() for k in parts}:
                raise ProgrammingError(f"{key} is partitioned twice", position=position)
            parts[key] = self.integer("a number of parts", least=1)
            if not self.take(","):
                break
        self.expect(")", "after the parts")
        return tuple(parts.items())

    def default(self) -> exp.Expr:
        """A number, perhaps signed, TRUE or FALSE."""
        start = self.position()
        signed = self.take("-")
        is_number = not self.ended and self.tokens[self.at].token_type is TokenType.NUMBER
        if not is_number and (signed or self.word() not in ("TRUE", "FALSE", "NULL")):
            raise self.error("Expected the default value, a number or a boolean")
        self.at += 1
        end = self.tokens[self.at - 1].end + 1
        value: exp.Expr = self.tree(start, end, "SELECT ").expressions[0]
        return value

    def create_view(self, replace: bool) -> CreateView:
        """Name [(columns)] AS query."""
        name = self.name("a view name")
        columns = self.names("a column name") if self.take("(") else []
        self.expect("AS", "after the view's name")
        start = self.position()
        query = self.query()
        self.refuse_parameters(query, start)
        if columns:
            names = [exp.to_identifier(c, quoted=True) for c in columns]
            alias = exp.TableAlias(this=exp.to_identifier(name, quoted=True), columns=names)
            query = exp.select("*").from_(exp.Subquery(this=query, alias=alias), copy=False)
        return CreateView(name, replace, query, self.sql)

    def create_macro(self, replace: bool) -> CreateMacro:
        """name(parameters) AS [TABLE] body."""
        position = self.position()
        name = self.name("a macro name")
        self.expect("(", "after the macro's name")
        parameters = tuple(self.names("a parameter"))
        self.expect("AS", "after the parameters")
        is_table = self.take("TABLE")
        if is_function(name, len(parameters), is_table):
            raise ProgrammingError(
                f"{name} is a function of einsql or of SQL, so a macro would never be called",
                hint="Choose another name.",
                position=position,
            )
        start = self.position()
        body = self.query() if is_table else self.macro_body(parameters)
        self.refuse_parameters(body, start)
        return CreateMacro(name, replace, parameters, body, is_table, self.sql)

    def macro_body(self, parameters: tuple[str, ...]) -> exp.Expr:
        """The one expression of a scalar macro, which sees its parameters and nothing else."""
        start = self.position()
        if self.ended:
            raise self.error("Expected the macro's body")
        self.at = len(self.tokens)
        tree = self.tree(start, prefix="SELECT ")
        only_items = all(arg == "expressions" for arg, value in tree.args.items() if value)
        items = tree.expressions
        if not only_items or len(items) != 1 or isinstance(items[0], exp.Alias | exp.Star):
            raise ProgrammingError(
                "A scalar macro's body is one expression",
                hint="AS TABLE SELECT … makes a table macro.",
                position=start,
            )
        body: exp.Expr = items[0]
        check_parameters(body, parameters)
        return body

    def drop(self) -> Drop:
        """DROP TENSOR | VIEW | MACRO [IF EXISTS] name."""
        self.take("DROP")
        kind = self.word()
        if kind not in ("TENSOR", "VIEW", "MACRO"):
            raise self.error("DROP knows TENSOR, VIEW and MACRO")
        self.at += 1
        if_exists = self.take("IF", "EXISTS")
        name = self.name(f"a {kind.lower()} name")
        if self.word() == ",":
            raise self.error("DROP takes one name at a time")
        if self.word() in ("CASCADE", "RESTRICT"):
            raise NotSupportedError(
                f"DROP … {self.word()} is outside the tensor fragment",
                hint="What depends on the name stays, and says so when it is used.",
                position=self.position(),
            )
        self.end()
        return Drop(kind.lower(), name, if_exists)

    def set(self) -> Set:
        """SET name = value."""
        self.take("SET")
        name = self.name("a setting").lower()
        if not self.take("=") and not self.take("TO"):
            raise self.error("Expected = after the setting")
        start = self.position()
        if self.ended:
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
            start, end = self.parenthesised()
            query = _as_query(self.tree(start, end), start)
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
        """Pairs `name value, name value, …)`."""
        found: dict[str, str] = {}
        while not found or not self.take(")"):
            if found:
                self.expect(",", "or )")
            position = self.position()
            name = self.name("an option").upper()
            if name in found:
                raise ProgrammingError(f"The option {name} is given twice", position=position)
            if self.ended or self.word() in (",", ")"):
                raise self.error("Expected the option's value")
            found[name] = self.tokens[self.at].text
            self.at += 1
        return found

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


_RATES = {"NETWORK": BANDWIDTH, "FLOPS": FLOPS}
"""Options of EXPLAIN that say what machine to plan for."""

TYPE_NAMES = {
    **{t.value: t for t in DType},
    "BOOL": DType.BOOLEAN, "INT": DType.INTEGER, "INT4": DType.INTEGER, "INT8": DType.BIGINT,
    "LONG": DType.BIGINT, "REAL": DType.FLOAT, "FLOAT4": DType.FLOAT, "FLOAT8": DType.DOUBLE,
    "FLOAT16": DType.HALF, "INT1": DType.TINYINT,
}  # fmt: skip


def parse_tree(sql: str, start: int, prefix: str = "") -> tuple[exp.Expr, Error | None]:
    """Parses `sql[start:]` with sqlglot; positions in the tree count from sql's start.

    Returns:
        The tree, and why DuckDB's grammar refuses the text if it does.

    Raises:
        ProgrammingError: A syntax error.
    """
    marked = mark(sql)
    # Spaces keep the offsets; a prefix that makes a fragment a statement takes their place.
    body, hints = numbered(marked.text[start:], start)
    text = " " * (start - len(prefix)) + prefix + body
    ahead = max(0, len(prefix) - start)
    apart, blanks = spaced(text)
    doubt: Error | None = None
    try:
        tree = sqlglot.parse_one(apart, dialect=EinSQL)
        check_grammar(text)
    except ParseError as error:
        raise _syntax_error(text, error) from error
    except RecursionError as error:
        raise ProgrammingError("The statement nests too deeply") from error
    except ProgrammingError as error:
        error.position = max(0, (error.position or 0) - ahead)
        doubt = error
    if ahead or blanks:
        for node in tree.walk():
            if "start" in node.meta:
                node.meta["start"] -= ahead + bisect_left(blanks, node.meta["start"])
    placed(tree, hints)
    here = {at: number for at, number in marked.numbers.items() if at >= start}
    return (place(tree, here) if here else tree), doubt


def _as_query(tree: exp.Expr, position: int) -> exp.Query:
    if not isinstance(tree, exp.Query):
        raise ProgrammingError("Expected a SELECT", position=position)
    return tree


_LATER = ("LIMIT", "OFFSET", "ORDER", "RETURNING")
"""Clauses that DuckDB takes in more places than sqlglot."""


def _syntax_error(sql: str, error: ParseError) -> Error:
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
    if highlight.upper() in _LATER:
        return NotSupportedError(
            f"{highlight.upper()} is outside the tensor fragment", position=position
        )
    return ProgrammingError(
        f"Syntax error: {description.rstrip('.')}", position=min(position, max(0, len(sql) - 1))
    )
