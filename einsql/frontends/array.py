"""Arrays that record what is done with them, by NumPy's own protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from einsql.errors import ProgrammingError
from einsql.frontends.constants import constant
from einsql.frontends.elementwise import computed, define, dtype_of
from einsql.frontends.expressions import Apply, Expr, Read, cast, label
from einsql.frontends.source import assigned, place, untraceable
from einsql.frontends.steps import Graph, Step, read

FUNCTIONS: dict[object, Callable[..., Any]] = {}
"""What stands for each of NumPy's functions; the modules of the package fill it."""

F = TypeVar("F", bound=Callable[..., Any])


def implements(*functions: object) -> Callable[[F], F]:
    """Makes a function stand for some of NumPy's."""

    def register(made: F) -> F:
        FUNCTIONS.update(dict.fromkeys(functions, made))
        return made

    return register


class TracedArray(NDArrayOperatorsMixin):
    """An array of which shape and dtype are known, and how it is computed.

    Attributes:
        graph: The program it belongs to.
        step: What it is.
    """

    __hash__ = None  # type: ignore[assignment]  # equality is recorded, not decided

    def __init__(self, graph: Graph, step: Step) -> None:
        self.graph = graph
        self.step = step

    # ---- what is known

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the axes."""
        return self.step.shape

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.step.shape)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return int(np.prod(self.step.shape, dtype=int))

    @property
    def dtype(self) -> np.dtype:
        """NumPy's dtype; bfloat16 is computed as float32."""
        step = self.step.dtype
        return computed(step) if step.name == "BFLOAT16" else step.numpy

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[TracedArray]:
        return (self[n] for n in range(len(self)))

    def __repr__(self) -> str:
        return f"<traced array {self.step.name or ''} {self.shape} {self.dtype}>"

    # ---- protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        if out is not None:
            return _in_place(ufunc, method, inputs, out, options)
        given = {k: v for k, v in options.items() if v is not None and k != "subok"}
        if method == "reduce" and ufunc.__name__ in _REDUCING:
            given = {**given, "axis": options.get("axis", 0)}
            return _done(FUNCTIONS[_REDUCING[ufunc.__name__]](inputs[0], **given))
        dtype = given.pop("dtype", None)
        if method == "outer" and len(inputs) == 2:
            left, right = (lifted(self.graph, i) for i in inputs)
            inputs, method = (left[(..., *[None] * right.ndim)], right), "__call__"
        if method != "__call__" or given:
            how = f".{method}" if method != "__call__" else f" with {', '.join(given)}"
            raise untraceable(f"np.{ufunc.__name__}{how}", "Call the plain function.")
        try:
            found = FUNCTIONS[ufunc](*inputs) if ufunc in FUNCTIONS else apply_(ufunc, *inputs)
        except (TypeError, ValueError) as error:
            raise ProgrammingError(f"np.{ufunc.__name__}: {error}{place()}") from error
        return _done(found if dtype is None else found.astype(dtype))

    def __array_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        implementation = FUNCTIONS.get(func)
        name = f"np.{getattr(func, '__name__', func)}"
        if implementation is None:
            raise untraceable(name, "docs/trace.md lists what can be; or pass its result in.")
        try:
            return _done(implementation(*args, **kwargs))
        except (TypeError, ValueError, IndexError) as error:
            raise ProgrammingError(f"{name}: {error}{place()}") from error

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise untraceable(
            "Making a plain array of a traced one",
            "Leave out np.asarray(x), np.array(x) and functions beyond NumPy's.",
        )

    # ---- what a program cannot do

    def __bool__(self) -> NoReturn:
        raise untraceable(
            "A decision by an array's values",
            "Choose elements with np.where(condition, a, b).",
        )

    def _number(self) -> NoReturn:
        raise untraceable(
            "Making a number of an array's value",
            "Use it as an array: one without axes acts like a number.",
        )

    def __int__(self) -> int:
        self._number()

    def __float__(self) -> float:
        self._number()

    def __index__(self) -> int:
        self._number()

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise untraceable(
            "Assigning to elements of an array",
            "Make a new one with np.where(condition, value, x) or np.concatenate.",
        )

    # ---- methods

    def __getitem__(self, key: Any) -> TracedArray:
        try:
            found: TracedArray = _done(FUNCTIONS["getitem"](self, key))
        except (TypeError, ValueError, IndexError) as error:
            raise ProgrammingError(f"{error}{place()}") from error
        return found

    def _call(self, function: Any, *args: Any, **options: Any) -> TracedArray:
        """One of NumPy's functions of this array."""
        found: TracedArray = self.__array_function__(function, (), (self, *args), options)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _METHODS:
            raise untraceable(f"The attribute {name} of an array", "docs/trace.md lists them.")

        def method(*args: Any, **options: Any) -> Any:
            return _METHODS[name](self, *args, **options)

        return method

    @property
    def T(self) -> TracedArray:  # noqa: N802 - NumPy's name
        """The axes in reverse order."""
        return self._call(np.transpose)

    @property
    def mT(self) -> TracedArray:  # noqa: N802 - NumPy's name
        """The last two axes exchanged."""
        return self._call(np.swapaxes, -1, -2)

    def astype(self, dtype: Any, **options: Any) -> TracedArray:
        """The array in another type; einsql rounds floats to integers, NumPy truncates."""
        target = dtype_of(dtype)

        def convert(e: Expr) -> Expr:
            if e.dtype.is_float and target.is_integer:
                return cast(Apply("trunc", (e,), e.dtype), target)
            return cast(e, target)

        found: TracedArray = _done(combine(convert, self))
        return found

    def transpose(self, *axes: Any) -> TracedArray:
        """The axes in another order."""
        given = axes[0] if len(axes) == 1 else axes or None
        return self._call(np.transpose, given)

    def reshape(self, *shape: Any, order: str = "C") -> TracedArray:
        """The elements in another shape."""
        given = shape[0] if len(shape) == 1 else shape
        return self._call(np.reshape, given, order=order)


def _methods(*names: str) -> dict[str, Any]:
    return {name: getattr(np, name) for name in names}


_METHODS: dict[str, Any] = {
    **_methods(
        "sum", "prod", "mean", "std", "var", "max", "min", "any", "all", "argmax", "argmin",
        "ravel", "squeeze", "swapaxes", "diagonal", "trace", "dot", "take", "repeat", "clip",
        "conjugate", "copy",
    ),
    "conj": np.conjugate,
    "flatten": np.ravel,
    "item": lambda x: x._number(),
    "tolist": lambda x: x._number(),
}  # fmt: skip
_REDUCING: dict[str, object] = {
    "add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min,
    "logical_and": np.all, "logical_or": np.any,
}  # fmt: skip


def _in_place(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], out: Any, options: Mapping[str, Any]
) -> TracedArray:
    """`x += y`: x is what has been computed from now on, if no other array shows its elements."""
    target = out[0] if isinstance(out, tuple) else out
    if not isinstance(target, TracedArray) or not inputs or inputs[0] is not target:
        raise untraceable(f"np.{ufunc.__name__} with out", "Assign its result to a variable.")
    made = target.__array_ufunc__(ufunc, method, *inputs, **options)
    own, shown = target.step, target.graph.steps
    if isinstance(own.expr, Read | None) or any(
        isinstance(s.expr, Read) and s.expr.step is own and s.how is None for s in shown
    ):
        raise untraceable(
            "Changing an array that is an argument or shares elements with another one",
            "Write x = x + y for x += y.",
        )
    if made.shape != target.shape or not np.can_cast(made.dtype, target.dtype, "same_kind"):
        raise ProgrammingError(
            f"np.{ufunc.__name__} gives {made.shape} {made.dtype}, which does not fit into "
            f"{target.shape} {target.dtype}{place()}"
        )
    target.step = made.astype(target.dtype).step
    return target


def _done(found: Any) -> Any:
    """The result of an operation, under the name of the variable it is assigned to."""
    several = isinstance(found, list | tuple)
    made = list(found) if several else [found]
    if any(isinstance(m, TracedArray) and not m.graph.silent and m.step.name is None for m in made):
        for m, name in zip(made, assigned(), strict=False):
            if isinstance(m, TracedArray) and m.step.name is None and not name.startswith("_"):
                m.step.name = name
    return found


# ---- what operations are made of


def graph_of(operands: Sequence[object]) -> Graph:
    """The program that operands belong to.

    Raises:
        ProgrammingError: They belong to several.
    """
    graphs = {id(o.graph): o.graph for o in operands if isinstance(o, TracedArray)}
    if len(graphs) != 1:
        raise ProgrammingError(f"Arrays of two traced programs meet{place()}")
    return next(iter(graphs.values()))


def lifted(graph: Graph, value: object) -> TracedArray:
    """A value as a traced array: an array of the program, or a number.

    Raises:
        NotSupportedError: It is neither.
    """
    if isinstance(value, TracedArray):
        return value
    return TracedArray(graph, constant(graph, value))


def elements(x: TracedArray, shape: Sequence[int]) -> Expr:
    """The element of an array at the labels of a shape that it is broadcast to."""
    skipped = len(shape) - x.ndim
    return read(x.step, [label(skipped + n) for n in range(x.ndim)])


def combine(build: Callable[..., Expr], *operands: object) -> TracedArray:
    """An array whose elements an expression makes of broadcast operands' elements.

    Args:
        build: Called with an expression for each array, and Python numbers as they are.
        operands: Traced arrays, arrays and numbers, at least one of them traced.
    """
    graph = graph_of(operands)
    arrays = [o if _weak(o) else lifted(graph, o) for o in operands]
    shapes = [a.shape for a in arrays if isinstance(a, TracedArray)]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        shown = " and ".join(map(str, shapes))
        raise ProgrammingError(f"Shapes {shown} do not broadcast{place()}") from None
    args = [elements(a, shape) if isinstance(a, TracedArray) else a for a in arrays]
    return TracedArray(graph, graph.map(shape, build(*args)))


def apply_(function: np.ufunc, *operands: object) -> TracedArray:
    """One of NumPy's element-wise functions."""
    return combine(lambda *args: define(function, args), *operands)


def _weak(value: object) -> bool:
    """True for numbers that take the type of what they meet."""
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)
