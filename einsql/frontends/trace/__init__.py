"""Programs from elsewhere as SQL: NumPy-style functions and PyTorch modules.

A program is traced once with arrays: they record what is done with them (`array`, with what
each function means in `elementwise`, `indexing`, `assignment`, `shapes`, `joins`, `reductions`,
`running`, `products`, `composed`; which arrays show the same elements, in `views`), equal
steps being one (`steps`). `statement` and `select` write the steps as SQL, which the session
binds, plans and runs as any other; docs/trace.md.
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
        connection: The session in which calls run; one of its own in memory without.

    Returns:
        What runs it, with the SQL and the plan; docs/trace.md.

    Raises:
        NotSupportedError: The function does what cannot be traced; it names its line.
        ProgrammingError: Shapes do not fit.
        InterfaceError: An argument or `dims` is wrong.
    """
    return Traced(Recorded(fn, arrays, dims), connection)
