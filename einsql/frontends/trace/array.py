"""Traced arrays, which record operations through NumPy's dispatch protocols."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from einsql.errors import InternalError, NotSupportedError, ProgrammingError
from einsql.frontends.trace.arguments import bound_arguments
from einsql.frontends.trace.constants import constant
from einsql.frontends.trace.elementwise import computed, define, dtype_of
from einsql.frontends.trace.expressions import cast, label
from einsql.frontends.trace.nodes import Apply, Expr, Literal, Step
from einsql.frontends.trace.refusals import way_out
from einsql.frontends.trace.source import assigned, place, untraceable
from einsql.frontends.trace.steps import Graph, read
from einsql.frontends.trace.views import View, whole, write

FUNCTIONS: dict[object, Callable[..., Any]] = {}
"""The implementations of NumPy's functions; the modules of the package register them."""

F = TypeVar("F", bound=Callable[..., Any])


def implements(*functions: object) -> Callable[[F], F]:
    """Registers the implementation of NumPy functions."""

    def register(function: F) -> F:
        FUNCTIONS.update(dict.fromkeys(functions, function))
        return function

    return register


class TracedArray(NDArrayOperatorsMixin):
    """An array with a known shape and dtype that records its computation.

    Attributes:
        graph: The program of the array.
        shape: Extents of the axes.
        view: The array's view of a buffer.
        number: Whether NumPy has an immutable number here: `x += 1` creates another one.
    """

    __hash__ = None  # type: ignore[assignment]  # equality is recorded, not decided

    def __init__(
        self, graph: Graph, step: Step, view: View | None = None, number: bool | None = None
    ) -> None:
        self.graph = graph
        self.shape = step.shape
        self.number = not self.shape if number is None else number
        self.show(view or whole(step), step)

    def show(self, view: View, step: Step) -> None:
        """Sets the array's view and the step of its present elements."""
        self.view, self._step, self._seen = view, step, view.buffer.step
        view.buffer.shown.append(weakref.ref(self, view.buffer.shown.remove))

    @property
    def step(self) -> Step:
        """The array's present state, with writes through other views."""
        now = self.view.buffer.step
        if now is not self._seen:
            self._seen = now
            self._step = self.graph.map(self.shape, read(now, self.view.places))
        return self._step

    # ---- attributes

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=int))

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
        out, chosen = options.pop("out", None), options.pop("where", True)
        name = f"np.{ufunc.__name__}"
        if chosen is not True and (out is None or method != "__call__"):
            raise untraceable(f"{name} with where", "Choose elements with np.where.")
        answer = _answered(name, lambda: self._ufunc(ufunc, method, inputs, options))
        if out is None:
            return answer
        target = out[0] if isinstance(out, tuple) else out
        return _written(name, target, answer, chosen, options.get("casting", "same_kind"))

    def _ufunc(
        self, ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        keywords = {
            k: v for k, v in options.items() if v is not None and k not in ("subok", "order")
        }
        dtype = keywords.pop("dtype", None)
        casting = keywords.pop("casting", "same_kind")
        name = ufunc.__name__
        if method == "reduce" and name in _REDUCING:
            typed = {} if dtype is None else {"dtype": dtype}
            axis = options.get("axis", 0)
            return FUNCTIONS[_REDUCING[name]](inputs[0], **{**keywords, **typed, "axis": axis})
        if method == "accumulate" and name == "add":
            return FUNCTIONS[np.cumsum](inputs[0], **{"axis": 0, **keywords}, dtype=dtype)
        if method == "outer" and len(inputs) == 2:
            left, right = (lifted(self.graph, i) for i in inputs)
            inputs, method = (left[(..., *[None] * right.ndim)], right), "__call__"
        if method != "__call__" or keywords:
            how = f".{method}" if method != "__call__" else f" with {', '.join(keywords)}"
            raise untraceable(f"np.{name}{how}", way_out(f"{name}.{method}"))
        if not any(isinstance(i, TracedArray) for i in inputs):
            inputs = [lifted(self.graph, i) for i in inputs]
        if ufunc not in FUNCTIONS:
            return apply_(ufunc, *inputs, dtype=dtype, casting=casting)
        if dtype is not None:
            inputs = [lifted(self.graph, i).astype(dtype) for i in inputs]
        return FUNCTIONS[ufunc](*inputs)

    def __array_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        implementation = FUNCTIONS.get(func)
        name = f"np.{getattr(func, '__name__', func)}"
        if implementation is None:
            raise untraceable(name, way_out(name.removeprefix("np.")))
        target: Any = None

        def run() -> Any:
            nonlocal target
            positional, named = bound_arguments(func, args, dict(kwargs))
            target = named.pop("out", None)
            if positional and isinstance(positional[0], np.ndarray):
                positional = [lifted(self.graph, positional[0]), *positional[1:]]
            first = next(iter(named), "")
            if not positional and isinstance(named[first], np.ndarray):
                named[first] = lifted(self.graph, named[first])
            return implementation(*positional, **named)

        returned = _answered(name, run)
        return returned if target is None else _written(name, target, returned, True, "same_kind")

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise untraceable(
            "Making a plain array of a traced one",
            "Leave out np.asarray(x) and functions beyond NumPy's; np.stack(list) stands for "
            "np.array(list); what is filled starts as np.zeros_like(x, shape=…); and a table that "
            "x indexes is passed in as an argument.",
        )

    # ---- unsupported operations

    def __bool__(self) -> NoReturn:
        raise untraceable(
            "A decision by an array's values",
            "Choose elements with np.where(condition, a, b).",
        )

    def _number(self) -> NoReturn:
        raise untraceable(
            "Making a number of an array's value",
            "Use it as an array: one without axes acts like a number. What is filled by numbers "
            "starts as np.zeros_like(x, shape=…).",
        )

    def __int__(self) -> int:
        self._number()

    def __float__(self) -> float:
        self._number()

    def __index__(self) -> int:
        self._number()

    def __setitem__(self, key: Any, value: Any) -> None:
        _answered("Assigning", lambda: FUNCTIONS["setitem"](self, key, value))

    # ---- methods

    def __getitem__(self, key: Any) -> TracedArray:
        part: TracedArray = _answered("Indexing", lambda: FUNCTIONS["getitem"](self, key))
        return part

    def _call(self, function: Any, *args: Any, **options: Any) -> TracedArray:
        array: TracedArray = self.__array_function__(function, (), (self, *args), options)
        return array

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _METHODS:
            raise untraceable(f"The attribute {name} of an array", way_out(name))

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

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: Any = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> TracedArray:
        """The array in another type; einsql rounds floats to integers, NumPy truncates."""
        if casting != "unsafe" and not np.can_cast(self.dtype, dtype, casting):
            raise ProgrammingError(f"{self.dtype} cannot become {dtype} {casting}ly{place()}")
        target = dtype_of(dtype)
        if not copy and target is self.step.dtype:
            return self

        def convert(e: Expr) -> Expr:
            if e.dtype.is_float and target.is_integer:
                return cast(Apply("trunc", (e,), e.dtype), target)
            return cast(e, target)

        converted: TracedArray = _done(combine(convert, self))
        converted.number = self.number
        return converted

    def transpose(self, *axes: Any) -> TracedArray:
        """The axes in another order."""
        order = axes[0] if len(axes) == 1 else axes or None
        return self._call(np.transpose, order)

    def reshape(self, *shape: Any, order: str = "C") -> TracedArray:
        """The elements in another shape."""
        extents = shape[0] if len(shape) == 1 else shape
        return self._call(np.reshape, extents, order=order)


def _augmented(name: str) -> Callable[[TracedArray, Any], Any]:
    shared = getattr(NDArrayOperatorsMixin, name)

    def changed(self: TracedArray, other: Any) -> Any:
        return NotImplemented if self.number else shared(self, other)

    return changed


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "xor",
    "or",
    "matmul",
):
    setattr(TracedArray, f"__i{_name}__", _augmented(f"__i{_name}__"))


_METHODS: dict[str, Any] = {
    **{
        name: getattr(np, name)
        for name in (
            "sum",
            "prod",
            "mean",
            "std",
            "var",
            "max",
            "min",
            "any",
            "all",
            "argmax",
            "argmin",
            "ravel",
            "squeeze",
            "swapaxes",
            "diagonal",
            "trace",
            "dot",
            "take",
            "repeat",
            "clip",
            "copy",
            "round",
            "cumsum",
        )
    },
    **dict.fromkeys(("conj", "conjugate"), lambda x: x),  # nothing here is complex
    "flatten": lambda x, order="C": np.copy(np.ravel(x, order)),
    "item": lambda x: x.__index__(),
    "tolist": lambda x: x.__index__(),
}
_REDUCING: dict[str, object] = {
    "add": np.sum,
    "multiply": np.prod,
    "maximum": np.max,
    "minimum": np.min,
    "logical_and": np.all,
    "logical_or": np.any,
}


def _answered(name: str, run: Callable[[], Any]) -> Any:
    """The result of an operation under the name of the user's variable.

    Raises:
        ProgrammingError: NumPy rejects the arguments as well.
        NotSupportedError: SQL has no function for arrays of these types.
    """
    try:
        return _done(run())
    except InternalError as error:
        raise NotSupportedError(
            f"{name}: {error.reason}{place()}", hint="Convert with .astype(…) before."
        ) from error
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise ProgrammingError(f"{name}: {error}{place()}") from error


def _written(name: str, target: Any, array: Any, chosen: Any, casting: Any) -> TracedArray:
    """Writes an array into the target of `out`, as `x += y` does, where `where` chooses it."""
    if not isinstance(target, TracedArray) or target.number:
        raise untraceable(
            f"{name} into a plain array",
            "Assign its result to a variable, as in y = y + x, or let what is written start as "
            "np.zeros_like(x, shape=…).",
        )
    shape = np.broadcast_shapes(array.shape, target.shape if chosen is not True else array.shape)
    if shape != target.shape or not np.can_cast(array.dtype, target.dtype, casting):
        raise ProgrammingError(
            f"{name} gives {array.shape} {array.dtype}, which does not fit into "
            f"{target.shape} {target.dtype}{place()}"
        )
    written = array.astype(target.dtype)
    if chosen is not True:
        written = FUNCTIONS[np.where](chosen, written, target)
    write(target, written.step)
    return target


def _done(returned: Any) -> Any:
    """The result of an operation, under the name of the variable it is assigned to."""
    several = isinstance(returned, list | tuple)
    arrays = list(returned) if several else [returned]
    if any(
        isinstance(m, TracedArray) and not m.graph.silent and m.step.name is None for m in arrays
    ):
        for m, name in zip(arrays, assigned(), strict=False):
            if isinstance(m, TracedArray) and m.step.name is None and not name.startswith("_"):
                m.step.name = name
    return returned


# ---- building blocks of operations


def graph_of(operands: Sequence[object]) -> Graph:
    """The program that operands belong to.

    Raises:
        ProgrammingError: The operands belong to several programs.
    """
    graphs = {id(o.graph): o.graph for o in operands if isinstance(o, TracedArray)}
    if len(graphs) != 1:
        raise ProgrammingError(f"Arrays of two traced programs meet{place()}")
    return next(iter(graphs.values()))


def lifted(graph: Graph, value: object) -> TracedArray:
    """A value as a traced array: an array of the program, or a number.

    Raises:
        NotSupportedError: The value is neither an array nor a number.
    """
    if isinstance(value, TracedArray):
        return value
    return TracedArray(graph, constant(graph, value))


def elements(x: TracedArray, shape: Sequence[int]) -> Expr:
    """The element of an array at the labels of a shape that it is broadcast to."""
    if x.ndim == 0 and isinstance(x.step.expr, Literal):
        return x.step.expr
    skipped = len(shape) - x.ndim
    return read(x.step, [label(skipped + n) for n in range(x.ndim)])


def combine(build: Callable[..., Expr], *operands: object) -> TracedArray:
    """Computes an expression of operands' elements, broadcast to a common shape.

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


def apply_(
    function: np.ufunc, *operands: object, dtype: Any = None, casting: Any = "same_kind"
) -> TracedArray:
    """One of NumPy's element-wise functions, computed in a type if one is given."""
    return combine(lambda *args: define(function, args, dtype, casting), *operands)


def viewed(
    x: TracedArray,
    shape: Sequence[int],
    places: Sequence[Expr],
    *,
    exact: bool = True,
    locked: bool = False,
    number: bool = False,
) -> TracedArray:
    """A view of another array's elements; a view of a number shares nothing.

    Args:
        x: The other array.
        shape: Extents of the view.
        places: The index of an element, one entry for each axis of the other one.
        exact: Whether NumPy always shares the elements.
        locked: Whether NumPy refuses to write through it.
        number: Whether a number stays one.
    """
    step = x.graph.map(shape, read(x.step, places))
    if x.number:
        return TracedArray(x.graph, step, number=number)
    return TracedArray(x.graph, step, x.view.through(places, exact, locked), False)


def _weak(value: object) -> bool:
    """True for Python numbers, which take the type of the other operand."""
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)
