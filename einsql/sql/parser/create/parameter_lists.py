"""Reads the parameters of macros, functions and aggregates, with their types and defaults."""

from __future__ import annotations

from sqlglot import exp

from einsql.core.schema import DType
from einsql.errors import ProgrammingError
from einsql.sql.parser.macro_checks import check_parameters
from einsql.sql.parser.sql_text import as_sql
from einsql.sql.parser.sqlglot_trees import TreeReader
from einsql.sql.parser.syntax import Types
from einsql.sql.parser.tokens import did_you_mean

TYPE_NAMES = {
    **{t.value: t for t in DType},
    "BOOL": DType.BOOLEAN,
    "INT": DType.INTEGER,
    "INT4": DType.INTEGER,
    "INT8": DType.BIGINT,
    "LONG": DType.BIGINT,
    "REAL": DType.FLOAT,
    "FLOAT4": DType.FLOAT,
    "FLOAT8": DType.DOUBLE,
    "FLOAT16": DType.HALF,
    "INT1": DType.TINYINT,
}
"""Types of columns, with DuckDB's aliases."""


class ParameterReader(TreeReader):
    """Reads lists of parameters behind their opening parenthesis."""

    def parameters(self) -> tuple[tuple[str, ...], Types, tuple[exp.Expr, ...]]:
        """Consumes `name [type], name [type] := constant, …)`.

        Returns:
            The names, their types, and the defaults of the last names.
        """
        names: list[str] = []
        types: list[exp.Expr | None] = []
        defaults: list[exp.Expr] = []
        while not self.take(")"):
            if names:
                self.expect(",", "or )")
            at = self.position()
            name = self.name("a parameter")
            if name.lower() in {n.lower() for n in names}:
                raise ProgrammingError(f"{name} is named twice", position=at)
            names.append(name)
            typed = self.word() not in (",", ")", ":=")
            types.append(self.parameter_type() if typed else None)
            if self.take(":="):
                defaults.append(self.constant())
            elif defaults:
                raise ProgrammingError(
                    f"{name} needs a default: a parameter before it has one", position=at
                )
        return tuple(names), tuple(types), tuple(defaults)

    def parameter_type(self) -> exp.Expr:
        """Consumes the type of a parameter, up to a comma, a default or the parenthesis."""
        start = self.up_to(",", ")", ":=")
        cast = self.tree(start, self.position(), "SELECT NULL::").expressions[0]
        if not (isinstance(cast, exp.Cast) and isinstance(cast.this, exp.Null)):
            raise ProgrammingError("Expected the type of a parameter", position=start)
        to: exp.Expr = cast.args["to"]
        name = as_sql(to)
        if to.this is exp.DType.USERDEFINED and name.upper() not in TYPE_NAMES:
            raise ProgrammingError(
                f"There is no type {name}",
                hint=f"{did_you_mean(name, TYPE_NAMES)}A parameter without a type takes any value.",
                position=start,
            )
        return to

    def up_to(self, *ends: str) -> int:
        """Consumes tokens up to one of the words outside of parentheses; returns the start."""
        start, depth = self.position(), 0
        while not self.ended and (depth or self.word() not in ends):
            depth += {"(": 1, ")": -1}.get(self.word(), 0)
            self.at += 1
        return start

    def constant(self) -> exp.Expr:
        """Consumes an expression without columns, up to a comma or the closing parenthesis."""
        start = self.up_to(",", ")")
        value: exp.Expr = self.tree(start, self.position(), "SELECT ").expressions[0]
        check_parameters(value, ())
        return value
