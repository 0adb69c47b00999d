"""Macros: named SQL with parameters, expanded by substitution in the syntax tree."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from einsql.errors import ProgrammingError


@dataclass(frozen=True, slots=True)
class Macro:
    """A scalar or table macro.

    Attributes:
        body: An expression, or a query for a table macro.
        text: The CREATE MACRO statement's text.
    """

    name: str
    parameters: tuple[str, ...]
    body: exp.Expr
    is_table: bool
    text: str


def expand(macro: Macro, args: list[exp.Expr]) -> exp.Expr:
    """The body with arguments in place of parameters.

    An argument that is a name replaces the parameter wherever a name may stand, as a
    table, a column, in USING or in EXCLUDE; any other replaces it as a value.

    Raises:
        ProgrammingError: The number of arguments is wrong.
    """
    if len(args) != len(macro.parameters):
        wanted = ", ".join(macro.parameters)
        raise ProgrammingError(
            f"{macro.name}({wanted}) takes {len(macro.parameters)} arguments, not {len(args)}"
        )
    values = dict(zip((p.lower() for p in macro.parameters), args, strict=True))

    def visit(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in values:
            value = values[node.name.lower()].copy()
            return value if isinstance(value, exp.Column | exp.Literal) else exp.paren(value)
        if isinstance(node, exp.Identifier) and node.name.lower() in values:
            value = values[node.name.lower()]
            names_a_table = not isinstance(node.parent, exp.Column) or node.arg_key == "table"
            if isinstance(value, exp.Column) and names_a_table:
                identifier: exp.Expr = value.this.copy()
                return identifier
        return node

    body: exp.Expr = macro.body.copy().transform(visit, copy=False)
    return body
