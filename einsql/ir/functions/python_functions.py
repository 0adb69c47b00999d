"""Python functions of the user, as scalar functions under names of their own.

Several connections may define different functions of one name, so that each function gets a name
that no other one of the process ever has, such as `f#1`. The name keeps its function: whoever has
the name, an expression or a definition, has the function too.

A function whose operations could be recorded is an expression over its arguments (`expr`). Any
other one is opaque: an entry of the table of scalar functions that runs over arrays of points.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import count
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.typing_rules import Typing
from einsql.errors import DataError, Error, ProgrammingError
from einsql.ir.functions.casts import cast_array, cast_failure
from einsql.ir.functions.derivatives import still
from einsql.ir.functions.functions import SCALARS, Function
from einsql.ir.functions.numeric import Array, Failure, Interval


class Calling(enum.Enum):
    """The arguments with which a function is called; the values are those of DuckDB's `type`."""

    NATIVE = "native"  # numbers
    ARROW = "arrow"  # arrays of Arrow
    NUMPY = "numpy"  # arrays of NumPy


@dataclass(frozen=True, slots=True, eq=False)
class PythonFunction:
    """A Python function with its types.

    Attributes:
        shown: The name that the user gave it.
        fn: The function.
        calling: Its arguments: numbers or arrays.
        arguments: The types of its parameters; empty for a function that only DuckDB can run.
        result: The type of its result.
        laws: The laws that were declared and tested, as EXPLAIN shows them.
        expr: Its operations as an expression of `ir.einsum.graph`, in which the value of operand n
            is argument n; None if they could not be recorded.
        refusal: The reason why only DuckDB runs it; empty for other functions.
        faster: The function of arrays that computes the same, or None.
        native: The arguments of DuckDB's `create_function` after the function.
    """

    shown: str
    fn: Callable[..., Any]
    calling: Calling
    arguments: tuple[DType, ...]
    result: DType
    laws: tuple[str, ...] = ()
    expr: Any = None
    refusal: str = ""
    faster: Callable[..., Array | None] | None = None
    native: Mapping[str, Any] = field(default_factory=dict)

    def at_points(self, *args: Array) -> Array:
        """Returns the results at some points, from one-dimensional arrays of the arguments.

        Raises:
            DataError: The function raised an exception, or returned no number of its type.
        """
        if not len(args[0]):
            return np.zeros(0, self.result.carrier)
        if self.calling is Calling.NATIVE:
            fast = None if self.faster is None else self.faster(*args)
            returned = self._each(args) if fast is None else fast
        else:
            returned = self._together(args)
        return self._typed(returned, len(args[0]))

    def _each(self, args: Sequence[Array]) -> list[Any]:
        values: list[Any] = []
        row: tuple[Any, ...] = ()
        try:
            for row in zip(*(a.tolist() for a in args), strict=True):
                values.append(self.fn(*row))
        except Error:
            raise
        except Exception as error:
            raise self._raised(f"({', '.join(map(repr, row))})", error) from error
        if any(v is None for v in values):
            raise DataError(
                f"{self.shown} returned None for arguments that are not NULL",
                hint="Return a number; nan is a float.",
            )
        return values

    def _together(self, args: Sequence[Array]) -> Any:
        try:
            if self.calling is Calling.ARROW:
                import pyarrow as pa  # imported when used

                return self.fn(*(pa.chunked_array([a]) for a in args))
            return self.fn(*args)
        except Error:
            raise
        except Exception as error:
            raise self._raised("", error) from error

    def _raised(self, arguments: str, error: Exception) -> DataError:
        return DataError(f"{self.shown}{arguments} raised {type(error).__name__}: {error}")

    def _typed(self, returned: Any, points: int) -> Array:
        """The returned values in the carrier of the result's type."""
        wrong = f"{self.shown} has to return {self.result.value}, and returned "
        if self.calling is Calling.ARROW and hasattr(returned, "to_numpy"):
            if returned.null_count:
                raise DataError(f"{self.shown} returned NULL for arguments that are not NULL")
            returned = returned.to_numpy()
        try:
            values = np.asarray(returned)
            if self.result.is_float and values.dtype.kind in "Ou":  # integers beyond 64 bits
                values = values.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{wrong}{type(returned).__name__}: {error}") from error
        if values.dtype.kind not in "biuf":
            kinds = {type(v).__name__ for v in values.reshape(-1).tolist()}
            too_large = " beyond 64 bits" if kinds == {"int"} else ""
            raise DataError(f"{wrong}{', '.join(sorted(kinds))}{too_large}")
        if values.shape not in ((points,), (), (1,)):
            raise DataError(f"{wrong}an array of shape {values.shape} for {points} points")
        if values.dtype.kind in "iu" and DType.of(values.dtype) is None:
            wide = values.astype(np.int64)
            if np.any(wide < 0) and values.dtype.kind == "u":
                raise DataError(f"{wrong}an integer beyond 64 bits")
            values = wide
        source = DType.of(values.dtype) or DType.DOUBLE
        failure = cast_failure(source, self.result)
        if failure is not None and np.any(failure.numpy(values)):
            raise DataError(f"{wrong}a value that it cannot represent")
        typed = cast_array(values, self.result)
        return np.broadcast_to(np.asarray(typed, self.result.carrier), (points,))


class FunctionName(str):
    """The unique name of a function, which keeps the function; `shipping` sends it to ranks."""

    __slots__ = ("__weakref__", "function", "laws")
    function: PythonFunction
    laws: Laws


_numbers = count(1)  # its next number is safe in several threads
_named: weakref.WeakValueDictionary[str, FunctionName] = weakref.WeakValueDictionary()


def function_name(text: str) -> FunctionName | None:
    """The unique name with a text; None if no function of that name is in use."""
    return _named.get(text)


def shown_name(fn: str) -> str:
    """The name of a scalar function as the user wrote it."""
    return fn.partition("#")[0]


def unique_name(function: PythonFunction, text: str = "") -> FunctionName:
    """Gives a function a name of its own.

    Args:
        function: The function.
        text: Its name at the process that sent it; a new one if it is empty.
    """
    name = FunctionName(text or f"{function.shown.lower()}#{next(_numbers)}")
    name.function = function
    _named[str(name)] = name
    return name


@dataclass(frozen=True, slots=True)
class Laws:
    """The declared laws of an opaque function, see `Function`, and its derivative.

    Attributes:
        monotone: "increasing" or "decreasing" for a function of one argument; else empty.
        derivative: The derivative, see `Function`; None if there is none.
    """

    commutative: bool = False
    associative: bool = False
    identity: float | bool | None = None
    annihilator: float | bool | None = None
    monotone: str = ""
    derivative: Callable[..., Any] | None = field(default=None, compare=False)


def add_opaque(name: FunctionName, laws: Laws) -> None:
    """Makes an opaque function an entry of the table of scalar functions, while its name is used.

    It may fail for every argument. So rules and kernels compute it for selected points only. The
    table finds the function by its name and does not keep it, because the function's module may
    refer to a connection.
    """
    f, text = name.function, str(name)
    name.laws = laws
    failure = Failure(f"{f.shown} failed", lambda *args: np.zeros((), bool), "False")
    typing = Typing(f.arguments, f.result)
    is_bounded = laws.monotone and f.result.is_integer and f.arguments[0].is_integer
    SCALARS[text] = Function(
        text,
        lambda types, _: typing,
        lambda *args: _used(text).function.at_points(*args),
        "",
        len(f.arguments),
        fails=dict.fromkeys(DType, failure),
        interval=(lambda a: _bounds(_used(text).function, a)) if is_bounded else None,
        commutative=laws.commutative,
        associative=laws.associative,
        identity=laws.identity,
        annihilator=laws.annihilator,
        opaque=True,
        derivative=still if laws.derivative is still else lambda *terms: _adjoints(text, *terms),
    )
    weakref.finalize(name, SCALARS.pop, text, None).atexit = False


def _used(text: str) -> FunctionName:
    name = function_name(text)
    assert name is not None, "an expression with a name keeps it"
    return name


def _adjoints(text: str, *terms: Any) -> Any:
    """The derivative of a function, see `Derivative`."""
    name = _used(text)
    if name.laws.derivative is None:
        raise ProgrammingError(
            f"There is no gradient through {name.function.shown}: a Python function without a "
            "derivative",
            hint="create_function(…, derivative=…) declares one; STOP_GRADIENT(…) around its "
            "result makes the result a constant.",
        )
    return name.laws.derivative(*terms)


def _bounds(f: PythonFunction, a: Interval) -> Interval:
    """The interval of a monotone function of integers."""
    if a is None:
        return None
    try:
        ends = f.at_points(np.asarray(a, f.arguments[0].numpy)).tolist()
    except Error:
        return None
    return min(ends), max(ends)


def at_selected(function: Function, args: Sequence[Array], mask: Array | None) -> Array:
    """Runs an opaque function over the selected points of broadcastable arrays.

    Args:
        function: The function.
        args: Its arguments.
        mask: The selected points; None for all points.

    Returns:
        An array that is broadcastable to the points; arbitrary where no point is selected.
    """
    shape = np.broadcast_shapes(*(a.shape for a in args))
    if mask is None:
        flat = (np.broadcast_to(a, shape).reshape(-1) for a in args)
        return function.numpy(*flat).reshape(shape)
    own = (1,) * (mask.ndim - len(shape)) + shape
    repeated = tuple(n for n, extent in enumerate(own[len(own) - mask.ndim :]) if extent == 1)
    chosen = mask.any(axis=repeated, keepdims=True) if repeated else mask
    shape = np.broadcast_shapes(shape, chosen.shape)
    chosen = np.broadcast_to(chosen, shape)
    values = function.numpy(*(np.broadcast_to(a, shape)[chosen] for a in args))
    spread = np.zeros(shape, values.dtype)
    spread[chosen] = values
    return spread
