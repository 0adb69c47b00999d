"""The extension of IPython and Jupyter: `%load_ext einsql`, then `%%einsql`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsql.errors import InterfaceError
from einsql.session.connection import Connection
from einsql.session.relation import Relation
from einsql.session.sources import Source
from einsql.session.tracebacks import guarded
from einsql.sql.parser.tokens import tokenize


class Magic:
    """The magic function, for lines and for cells.

    Args:
        shell: IPython's shell.
        default: Returns the connection of statements that name none.
    """

    def __init__(self, shell: Any, default: Callable[[], Connection]) -> None:
        self._shell = shell
        self._default = default

    @guarded
    def __call__(self, line: str, cell: str | None = None) -> Relation | None:
        """Runs statements over the variables of the notebook.

        Args:
            line: The statement; before a cell, the name of a variable with a connection, or
                nothing for `einsql.default_connection()`.
            cell: The statements of a cell.

        Returns:
            The relation of the last statement; None if it has no rows.

        Raises:
            InterfaceError: The variable has no connection.
            Error: A statement is wrong or fails.
        """
        variables: dict[str, object] = self._shell.user_ns
        connection, text = self._default(), line if cell is None else cell
        if cell is not None and line.strip():
            named = variables.get(line.strip())
            if not isinstance(named, Connection):
                raise InterfaceError(
                    f"{line.strip()} is no connection of einsql",
                    hint="%%einsql takes the name of a variable, as of con = einsql.connect().",
                )
            connection = named
        words = {token.text for token in tokenize(text)}
        words |= {word.lower() for word in words}
        known = {n: v for n, v in variables.items() if n in words}
        relation = Relation(connection, Source(text, known), None)
        return None if relation.description is None else relation


def load(shell: Any, default: Callable[[], Connection]) -> None:
    """Registers `%einsql` and `%%einsql`; see `Magic`."""
    shell.register_magic_function(Magic(shell, default), "line_cell", "einsql")
