"""Translation of NumPy-style functions and PyTorch modules to SQL.

A program is traced once with arrays that record their operations (`array`). The functions are
defined in `elementwise`, `indexing`, `assignment`, `shapes`, `joins`, `reductions`, `running`,
`products` and `composed`. `views` tracks arrays that share elements, and `steps` merges equal
steps. `statement` and `select` write the steps as SQL, which the session binds, plans and runs
like any other statement; see docs/how-to/trace.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsql.frontends.trace import (  # they define functions
    assignment,
    composed,
    indexing,
    joins,
    products,
    reductions,
    running,
    shapes,
)
from einsql.frontends.trace.program import Dims, Recorded, Traced
from einsql.session.connection import Connection

__all__ = [
    "Traced",
    "assignment",
    "composed",
    "indexing",
    "joins",
    "products",
    "reductions",
    "running",
    "shapes",
    "trace",
]


def trace(
    fn: Callable[..., Any], *arrays: Any, dims: Dims = None, connection: Connection | None = None
) -> Traced:
    """Turns a function of arrays into SQL, by calling it once.

    Args:
        fn: A function of NumPy arrays, or a torch.nn.Module.
        arrays: The arguments of the call; lists, tuples and dicts may contain arrays. Numbers and
            texts become part of the program.
        dims: Names of axes, which become keys: {"x": "batch feature"}, or one entry for each
            argument.
        connection: The session in which calls run; by default a new session in memory.

    Returns:
        A callable program with its SQL and its plan; see docs/how-to/trace.md.

    Raises:
        NotSupportedError: An operation cannot be traced; the message names its line.
        ProgrammingError: Shapes do not match.
        InterfaceError: An argument or `dims` is wrong.
    """
    return Traced(Recorded(fn, arrays, dims), connection)
