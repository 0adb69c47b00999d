"""Checks of macro definitions: names of functions, and columns that are not parameters."""

from __future__ import annotations

import re

from sqlglot import exp
from sqlglot.errors import ParseError

from einsql.errors import ProgrammingError, suggest
from einsql.sql.functions.aggregate_functions import AGGREGATES
from einsql.sql.functions.scalar_functions import NAMED
from einsql.sql.functions.table_functions import TABLE_FUNCTIONS
from einsql.sql.functions.tile_functions import FUNCTIONS as TILE_FUNCTIONS
from einsql.sql.parser.dialect import parsed
from einsql.sql.parser.positions import position

_INLINED = ("cast_to_type", "sigmoid", "square", "stop_gradient")
"""Functions that the scalar binder expands."""


def is_function(name: str, arity: int, is_table: bool) -> bool:
    """True if a call of that name is parsed as a function and never reaches a macro."""
    known = TABLE_FUNCTIONS if is_table else {*NAMED, *AGGREGATES, *_INLINED, *TILE_FUNCTIONS}
    if name.lower() in known:
        return True
    word = name if re.fullmatch(r"\w+", name) else exp.to_identifier(name, quoted=True).sql()
    call = f"{word}({', '.join(f'a{n}' for n in range(arity))})"
    try:
        tree = parsed(f"SELECT {'* FROM ' * is_table}{call}")
    except ParseError:  # the name is a keyword or a function of another arity
        return True
    callee = tree.args["from_"].this.this if is_table else tree.expressions[0]
    return not isinstance(callee, exp.Anonymous)


def check_parameters(body: exp.Expr, parameters: tuple[str, ...]) -> None:
    """Requires that an expression outside of its subqueries reads parameters only.

    Raises:
        ProgrammingError: A column is not a parameter.
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
