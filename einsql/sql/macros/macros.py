"""Macros: named SQL with parameters; `substitution` expands their calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.errors import ParseError

from einsql.errors import ProgrammingError, suggest
from einsql.sql.binder.aggregates import AGGREGATES
from einsql.sql.binder.from_clause import TABLE_FUNCTIONS
from einsql.sql.binder.functions import NAMED
from einsql.sql.binder.scalar import position
from einsql.sql.parser.dialect import EinSQL, parsed
from einsql.sql.tiles.names import FUNCTIONS as TILE_FUNCTIONS


@dataclass(frozen=True, slots=True)
class Names:
    """What a macro's body names, all in small letters.

    Attributes:
        tables: What FROM reads by name.
        aliases: What FROM and WITH call what they read.
        local: The names of WITH.
        columns: The columns whose place an argument may take that is copied, one for each time.
        size: Of how many syntax nodes it is.
    """

    tables: frozenset[str]
    aliases: frozenset[str]
    local: frozenset[str]
    columns: tuple[str, ...]
    size: int


def is_passed_on(column: exp.Column) -> bool:
    """True for an argument of a call in FROM."""
    call = column.parent
    return isinstance(call, exp.Anonymous) and isinstance(call.parent, exp.Table)


def names_in(body: exp.Expr) -> Names:
    """What a macro's body names."""
    nodes = list(body.walk())
    tables = [t for t in nodes if isinstance(t, exp.Table)]
    aliased = [n for n in nodes if isinstance(n, exp.Table | exp.Subquery | exp.CTE)]
    return Names(
        frozenset(
            t.name.lower()
            for t in tables
            if isinstance(t.this, exp.Identifier) and t.args.get("db") is None
        ),
        frozenset(n.alias_or_name.lower() for n in aliased),
        frozenset(n.alias.lower() for n in nodes if isinstance(n, exp.CTE)),
        tuple(n.name.lower() for n in nodes if isinstance(n, exp.Column) and not is_passed_on(n)),
        len(nodes),
    )


@dataclass(frozen=True, slots=True)
class Macro:
    """A scalar or table macro.

    Attributes:
        body: An expression, or a query for a table macro.
        text: The CREATE MACRO statement's text.
        defaults: What the last parameters are where a call does not say it.
        names: What the body names.
    """

    name: str
    parameters: tuple[str, ...]
    body: exp.Expr
    is_table: bool
    text: str
    defaults: tuple[exp.Expr, ...] = ()
    names: Names = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", names_in(self.body))

    @property
    def call(self) -> str:
        """How it is called, as `layer_norm(x, axis, eps := 0.00001)`."""
        first = len(self.parameters) - len(self.defaults)
        shown = list(self.parameters)
        for n, value in enumerate(self.defaults, first):
            shown[n] += f" := {value.sql(dialect=EinSQL)}"
        return f"{self.name}({', '.join(shown)})"

    @property
    def table_parameters(self) -> tuple[str, ...]:
        """The parameters from which its body reads in FROM."""
        return tuple(p for p in self.parameters if p.lower() in self.names.tables)


# ---- definition


def is_function(name: str, arity: int, is_table: bool) -> bool:
    """True if a call of that name means a function, so that a macro would never be called."""
    known = TABLE_FUNCTIONS if is_table else {*NAMED, *AGGREGATES, *_INLINED, *TILE_FUNCTIONS}
    if name.lower() in known:
        return True
    word = name if re.fullmatch(r"\w+", name) else exp.to_identifier(name, quoted=True).sql()
    call = f"{word}({', '.join(f'a{n}' for n in range(arity))})"
    try:
        tree = parsed(f"SELECT {'* FROM ' * is_table}{call}")
    except ParseError:  # it is a function of another arity, or a keyword
        return True
    found = tree.args["from_"].this.this if is_table else tree.expressions[0]
    return not isinstance(found, exp.Anonymous)


_INLINED = ("sigmoid", "square", "stop_gradient")
"""Functions the scalar binder spells out itself."""


def check_parameters(body: exp.Expr, parameters: tuple[str, ...]) -> None:
    """Requires that an expression reads its parameters only; subqueries have columns too.

    Raises:
        ProgrammingError: A column is no parameter.
    """
    known = {p.lower() for p in parameters}
    for node in body.walk(prune=lambda n: isinstance(n, exp.Query)):
        if isinstance(node, exp.Column) and (node.table or node.name).lower() not in known:
            name = node.table or node.name
            raise ProgrammingError(
                f'There is no parameter "{name}"',
                hint=suggest(name, parameters, "parameters"),
                position=position(node),
            )
