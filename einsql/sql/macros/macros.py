"""Macros: named SQL with parameters; `substitution` expands their calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.sql.parser.aggregate_law import AggregateLaw
from einsql.sql.parser.create.create_headers import head_of

PARAMETER_OF = "parameter_of"
"""Marks the cast of an argument to its parameter's type with the macro's signature."""

MAY_CROSS = "may_cross"
"""Marks a NATURAL JOIN that is a cross join if no column is common, as in standard SQL.

Built-in macros need it, because a statistic of a tensor with one key has no key.
"""


FREE = "free"
"""Marks a name in FROM that a macro's body does not define: the catalog resolves it."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names in a macro's body, in lower case.

    Attributes:
        tables: The tables that FROM reads by name.
        aliases: The aliases in FROM and WITH.
        local: The names that WITH defines.
        columns: The occurrences of columns that an argument may replace by a copy.
        qualifiers: The names before columns, as `x` in `x.val`.
        nested: The columns in queries of the body.
        size: The number of syntax nodes.
        queries: The number of queries among them.
        free: The nodes that may name tables of the catalog, which have the mark `FREE`.
    """

    tables: frozenset[str]
    aliases: frozenset[str]
    local: frozenset[str]
    columns: tuple[str, ...]
    qualifiers: frozenset[str]
    nested: frozenset[str]
    size: int
    queries: int
    free: tuple[exp.Expr, ...]


def called_name(call: exp.Func) -> str:
    """The name of a called function, which is its default alias in FROM."""
    return call.name if isinstance(call, exp.Anonymous) else call.sql_name().lower()


def identity_of(call: exp.Anonymous) -> tuple[object, ...]:
    """A value that is equal for calls that have the same result in one scope."""
    names = (n for n in call.walk() if isinstance(n, exp.Column | exp.Table))
    return (call, *(FREE in n.meta for n in names))


def call_of(argument: exp.Expr) -> exp.Func | None:
    """The call that has an argument, by its place or by name."""
    call = argument.parent
    if isinstance(call, exp.PropertyEQ) and argument.arg_key == "expression":
        call = call.parent
    if isinstance(call, exp.Anonymous):
        return call
    return call if isinstance(call, exp.Func) and argument.arg_key == "this" else None


def is_passed_on(column: exp.Column) -> bool:
    """True for a column that is an argument of a call in FROM."""
    call = call_of(column)
    return call is not None and isinstance(call.parent, exp.Table)


def is_local(node: exp.Expr, name: str) -> bool:
    """True if a WITH around a node defines a name in lower case for it."""
    inner: exp.Expr = node
    part: exp.Expr | None = None
    while inner.parent is not None:
        outer = inner.parent
        clause = outer.args.get("with_")
        if isinstance(outer, exp.With):
            part = inner
        elif clause is not None:
            named = [c.alias.lower() for c in clause.expressions]
            if inner is clause:  # a part reads the parts before it
                last = next(n for n, c in enumerate(clause.expressions) if c is part)
                named = named[: last + bool(clause.args.get("recursive"))]
            if name in named:
                return True
        inner = outer
    return False


def _mark_free(nodes: list[exp.Expr]) -> None:
    """Marks the names of tables, and of arguments that may be tables, that the body lacks."""
    for node in nodes:
        is_name = isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier)
        is_name = is_name or (isinstance(node, exp.Column) and call_of(node) is not None)
        if is_name and not is_local(node, node.name.lower()):
            node.meta[FREE] = True


def names_in(body: exp.Expr) -> Names:
    """The names in a macro's body, whose free names it marks."""
    nodes = list(body.walk())
    _mark_free(nodes)
    queries = [n for n in nodes if isinstance(n, exp.Query)]
    tables = [t for t in nodes if isinstance(t, exp.Table)]
    aliased = [n for n in nodes if isinstance(n, exp.Table | exp.Subquery | exp.CTE)]
    return Names(
        tables=frozenset(
            t.name.lower()
            for t in tables
            if isinstance(t.this, exp.Identifier) and t.args.get("db") is None
        ),
        aliases=frozenset(n.alias_or_name.lower() for n in aliased),
        local=frozenset(n.alias.lower() for n in nodes if isinstance(n, exp.CTE)),
        columns=tuple(
            n.name.lower() for n in nodes if isinstance(n, exp.Column) and not is_passed_on(n)
        ),
        qualifiers=frozenset(
            n.table.lower() for n in nodes if isinstance(n, exp.Column) and n.table
        ),
        nested=frozenset(c.name.lower() for q in queries for c in q.find_all(exp.Column)),
        size=len(nodes),
        queries=len(queries),
        free=tuple(n for n in nodes if FREE in n.meta),
    )


@dataclass(frozen=True, slots=True)
class Macro:
    """A scalar or table macro.

    Attributes:
        body: The expression of a scalar macro, or the query of a table macro.
        text: The text of the CREATE MACRO statement.
        types: The type of each parameter, None for any type; empty if no parameter has a type.
        defaults: The default values of the last parameters.
        names: The names in the body.
        law: The law of an aggregate, whose body is the expression of FINISH; None for a macro.
    """

    name: str
    parameters: tuple[str, ...]
    body: exp.Expr
    is_table: bool
    text: str
    types: tuple[exp.Expr | None, ...] = ()
    defaults: tuple[exp.Expr, ...] = ()
    law: AggregateLaw | None = None
    names: Names = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", names_in(self.body))

    @property
    def kind(self) -> str:
        """The kind of the definition, in errors."""
        return "macro" if self.law is None else "aggregate"

    @property
    def call(self) -> str:
        """The macro's signature as written, such as `layer_norm(x, axis, eps := 0.00001)`."""
        head = head_of(self.text)
        assert head is not None
        return head.call

    @property
    def table_parameters(self) -> tuple[str, ...]:
        """The parameters that the body reads as tables in FROM."""
        return tuple(p for p in self.parameters if p.lower() in self.names.tables)


CheckMacro = Callable[[Macro, Callable[[str], Macro | None]], None]
"""Raises an error if a macro may not be called; finds the macros that it calls."""
