"""Python functions of the user in DuckDB, with the results that they have in einsql."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from einsql.errors import OperationalError
from einsql.hybrid.split.prelude import ERF
from einsql.ir.functions import SCALARS
from einsql.ir.functions.python_functions import PythonFunction, function_name
from einsql.kernels.vectorized.scalar import over_arrays

if TYPE_CHECKING:
    from einsql.storage.duckdb.connection import Duck


def register(duck: Duck, name: str) -> None:
    """Registers a function, once.

    Args:
        duck: The session's connection to DuckDB.
        name: ERF's name in DuckDB, or the unique name of a Python function.
    """
    python, name = function_name(name), str(name)
    if name == ERF:
        duck.functions.register(ERF, SCALARS["erf"].numpy, lasts=True)
    elif python is not None and python.function.refusal:
        run = _by_name(name, lambda function: function.fn)
        duck.functions.register_native(name, run, **python.function.native)
    elif python is not None:
        function = python.function
        run = _by_name(name, lambda function: function.at_points)
        if function.expr is not None:
            run = over_arrays(function.expr)
        duck.functions.register(name, run, function.arguments, function.result)


def _by_name(
    name: str, chosen: Callable[[PythonFunction], Callable[..., Any]]
) -> Callable[..., Any]:
    """A function that finds the user's at each call.

    DuckDB's connection then does not refer to the user's function, whose module may refer to the
    connection: Python's collector does not see such a cycle.
    """

    def run(*args: Any) -> Any:
        python = function_name(name)
        if python is None:
            raise OperationalError(f"The Python function {name} has been removed")
        return chosen(python.function)(*args)

    return run
