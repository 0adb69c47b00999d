"""Positions of syntax nodes in a statement's text, and of errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlglot import exp

from einsql.errors import Error, NotSupportedError


def position(node: exp.Expr) -> int | None:
    """The offset of the first token of a syntax node for which sqlglot has a position."""
    starts: list[int] = [
        n.meta["start"] for n in node.walk() if isinstance(n, exp.Expr) and "start" in n.meta
    ]
    return min(starts) if starts else None


def locate(error: Error, node: exp.Expr) -> Error:
    """Sets an error's position to the node's, unless it has one already."""
    if error.position is None:
        error.position = position(node)
    return error


@contextmanager
def positioned(node: exp.Expr) -> Iterator[None]:
    """Sets the position of errors to the node's, unless they have one already."""
    try:
        yield
    except Error as error:
        raise locate(error, node) from None


def unsupported(what: str, node: exp.Expr, hint: str = "") -> NotSupportedError:
    """The error for SQL that tensor programs do not support."""
    return NotSupportedError(
        f"{what} is outside the tensor fragment", hint=hint, position=position(node)
    )
