"""Macros in a database file, whose later callers have other variables of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from einsql.errors import ProgrammingError
from einsql.sql.macros.arguments import free_tables
from einsql.sql.macros.macros import Macro
from einsql.sql.parser.positions import position
from einsql.storage.objects import macro_key

if TYPE_CHECKING:
    from einsql.planner.context import Context


def refuse_variables(ctx: Context, macro: Macro, find: Callable[[str], Macro | None]) -> None:
    """Refuses a call of a stored macro whose body names a variable of the caller as a table.

    Args:
        ctx: The services.
        macro: The called macro.
        find: Function that returns the macro of a name, or None.

    Raises:
        ProgrammingError: The body names a table that is only a variable.
    """
    if not ctx.is_stored(macro_key(macro.name)):
        return
    for node in free_tables(macro, find):
        if ctx.is_variable(node.name):
            raise ProgrammingError(
                f'There is no table "{node.name}", which the {macro.kind} {macro.name} reads; '
                f"a stored {macro.kind} reads no variables of Python",
                hint=f"CREATE TENSOR or TABLE stores the variable, CREATE TEMP "
                f"{macro.kind.upper()} may read it.",
            )


def refuse_to_store(ctx: Context, macro: Macro, find: Callable[[str], Macro | None]) -> None:
    """Refuses to store a macro that names a variable as a table.

    Raises:
        ProgrammingError: The macro reads a variable; the error has its position.
    """
    for node in free_tables(macro, find):
        if ctx.is_variable(node.name):
            raise of_variable(macro.kind, node.name, position(node))


def of_variable(kind: str, name: str, position: int | None) -> ProgrammingError:
    """The error for a definition in a file that reads a variable."""
    return ProgrammingError(
        f'A {kind} in a file cannot read "{name}", a variable of Python',
        hint=f"Store it by CREATE TENSOR or CREATE TABLE, or CREATE TEMP {kind.upper()}.",
        position=position,
    )
