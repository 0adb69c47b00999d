"""`einsql.trace`: traces a Python function over arrays into SQL, and runs it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core import forks
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import (
    DataError,
    Error,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    suggest,
)
from einsql.frontends.trace.arguments import leaves, mapped, rebuilt
from einsql.frontends.trace.array import TracedArray, lifted
from einsql.frontends.trace.nodes import Step
from einsql.frontends.trace.statement import write
from einsql.frontends.trace.steps import Graph
from einsql.frontends.trace.views import whole
from einsql.session.connection import Connection
from einsql.session.multi_query import fetch_together
from einsql.storage.array_ownership import separate
from einsql.storage.host_arrays import array_relation, as_numpy, is_array, is_sparse
from einsql.storage.relation import Relation as Stored
from einsql.storage.widened_fields import wider

if TYPE_CHECKING:
    from einsql.explain.explanation import Explanation

Dims = Mapping[str, Sequence[str] | str] | Sequence[Sequence[str] | str | None] | None


class Traced:
    """A traced program, with its SQL and its plan; a call runs it.

    Attributes:
        sql: The SELECT that computes the result; of several results, one after the other.
        statements: The SELECT of each result.
        tensors: Every array that the SQL reads, by its name there: arguments as they were when
            the program was traced, weights, and arrays that the function brought along.
        dims: The names of each tensor's keys.
    """

    def __init__(self, recorded: Recorded, connection: Connection | None) -> None:
        graph, outputs = recorded.graph, recorded.outputs
        program = self._written = write(graph, outputs)
        for name, (step, _) in graph.tensors.items():
            step.dims = program.keys[name]  # checks and derivatives use these names of keys, too
        self._pack: Callable[[list[np.ndarray]], Any] = recorded.packed
        self.statements = program.statements
        self.sql = ";\n\n".join(program.statements)
        self.dims = program.keys
        self.tensors: dict[str, Any] = {name: a for name, (_, a) in graph.tensors.items()}
        self._weights = [
            (name, weight, self.tensors[name].ctypes.data) for name, weight in graph.weights.items()
        ]
        self._shared = connection
        self._own = forks.PerProcess(partial(_session, self.tensors, self.dims))
        self._recorded = recorded
        self._shapes = [o.shape for o in outputs]
        self._checks = _checks(recorded)
        self.register(self.connection)

    @property
    def connection(self) -> Connection:
        """The session in which calls run; settings may be changed there.

        A child of a fork makes the program's own session anew, with the same settings.
        """
        return self._own.get() if self._shared is None else self._shared

    def __call__(self, *arrays: Any) -> Any:
        """Runs the program.

        Args:
            arrays: As when it was traced: arrays of the same shapes and dtypes in the same
                places, and the same of everything else.

        Returns:
            NumPy arrays as the function gives them: one, or several in the same containers.

        Raises:
            InterfaceError: An array has another shape or dtype.
            DataError: An index is out of bounds, an integer overflows.
        """
        relations = self._recorded.given(arrays, self.dims)
        with self.connection.context.lock:  # another thread may call it with other arrays
            self._refresh_weights()
            if self._shared is not None:  # another program may have an array of the same name
                self.register(self.connection)
            for name, relation in relations.items():
                self.connection.register(name, relation)
            self._check(relations)
            if len(self.statements) == 1:
                results = [self.connection.execute(self.sql).fetch_numpy()]
            else:
                results = fetch_together(self.connection, self.statements)
        shaped = [np.reshape(f, s) for f, s in zip(results, self._shapes, strict=True)]
        return self._pack(separate(f if f.flags.writeable else f.copy() for f in shaped))

    def _refresh_weights(self) -> None:
        """Registers the tensors that a module has in place of those it had when it was traced.

        Raises:
            InterfaceError: A tensor has another shape or dtype.
        """
        for n, (name, weight, place) in enumerate(self._weights):
            tensor = weight()
            if tensor.data_ptr() == place:
                continue
            array, before = as_numpy(tensor), self.tensors[name]
            if (array.shape, array.dtype) != (before.shape, before.dtype):
                raise InterfaceError(
                    f"{name} is {array.dtype} of {array.shape}, and was {before.dtype} of "
                    f"{before.shape} when the module was traced",
                    hint="Trace the module again.",
                )
            self.tensors[name] = array
            self._weights[n] = name, weight, array.ctypes.data
            _register(self.connection, {name: array}, self.dims)

    def _check(self, relations: Mapping[str, Stored]) -> None:
        """Checks the bounds of index arrays."""
        for name, sql, extent in self._checks:
            if sql is None:
                indexes = np.asarray(
                    relations[name].fields["val"] if name in relations else self.tensors[name]
                )
            else:
                indexes = np.asarray(self.connection.execute(sql).fetch_numpy())
            least, most = (int(indexes.min()), int(indexes.max())) if indexes.size else (0, 0)
            if least < -extent or most >= extent:
                wrong = least if least < -extent else most
                what = f" in {name}" if name else ""
                raise DataError(
                    f"The index {wrong}{what} is outside of an axis of {plural(extent, 'element')}"
                )

    def register(self, connection: Connection) -> None:
        """Registers every tensor in a session, so that the SQL runs there.

        Args:
            connection: The session.
        """
        _register(connection, self.tensors, self.dims)

    def gradient(self, *names: str) -> Traced:
        """The program that computes the result, a single number, and its derivatives.

        Args:
            names: The tensors to differentiate by, as `tensors` has them; those of floats
                among the arguments and parameters without.

        Returns:
            A program whose calls give (result, {name: derivative}); see docs/reference/gradient.md.

        Raises:
            InterfaceError: A name is no tensor of floats.
            ProgrammingError: The result is not one float, or does not depend on a tensor.
        """
        if self._shapes != [()] or not self._recorded.outputs[0].dtype.is_float:
            raise ProgrammingError(
                "Derivatives are those of one float",
                hint="Give one result without axes, such as a mean.",
            )
        steps = {n: step for n, (step, _) in self._recorded.graph.tensors.items()}
        floats = [n for n, step in steps.items() if step.dtype.is_float]
        for name in names:
            if name not in floats:
                raise InterfaceError(
                    f"{name} is no tensor of floats", hint=suggest(name, floats, "tensors")
                )
        wanted = names or tuple(floats)
        program = copy(self)
        program.statements = [self.sql, *(self._written.gradient(0, n) for n in wanted)]
        program.sql = ";\n\n".join(program.statements)
        program._shapes = [(), *(steps[n].shape for n in wanted)]
        program._pack = lambda arrays: (arrays[0][()], dict(zip(wanted, arrays[1:], strict=True)))
        return program

    def explain(self, **options: Any) -> Explanation:
        """The plan, as `Connection.explain` gives it; of the last of several results.

        Args:
            options: Such as sites=8, analyze=True, simulate=True.
        """
        return self.connection.explain(self.statements[-1], **options)

    def __str__(self) -> str:
        return self.sql

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}({', '.join(d)})" for n, d in self.dims.items())
        return f"<traced program of {shown}>"


def _session(
    tensors: Mapping[str, Any], dims: Mapping[str, Sequence[str]], inherited: Connection | None
) -> Connection:
    """A session in memory for one program.

    Args:
        tensors: The tensors to register.
        dims: The keys of each.
        inherited: The program's session in the parent process, if this one was forked.
    """
    settings = None if inherited is None else replace(inherited.settings)
    connection = Connection(settings=settings)
    _register(connection, tensors, dims)
    return connection


def _register(
    connection: Connection, tensors: Mapping[str, Any], dims: Mapping[str, Sequence[str]]
) -> None:
    for name, array in tensors.items():
        connection.register(name, array, dims[name], fill=_fill(array))


def _fill(array: object) -> int | None:
    return 0 if is_sparse(array) else None


def _checks(recorded: Recorded) -> list[tuple[str, str | None, int]]:
    """The index arrays whose bounds are checked before a run, as tensors or SELECTs."""
    graph = recorded.graph
    unique = {(s.number, extent): s for s, extent in graph.checks}
    return [
        (s.name or "", None if s.expr is None else write(graph, [s]).statements[0], extent)
        for (_, extent), s in unique.items()
    ]


class Recorded:
    """The recording of a function's operations on its arguments.

    Attributes:
        graph: The steps.
        outputs: The results among them.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], dims: Dims) -> None:
        self.graph = Graph()
        self._names = argument_names(fn, args)
        self._dims = named_dims(dims, self._names)
        self._slots: list[tuple[str, tuple[int, ...], DType]] = []
        traced = [self._argument(a, n) for a, n in zip(args, self._names, strict=True)]
        numbers = count()  # in the order in which tensors are traced
        self._taken = mapped(list(args), lambda a: _Numbered(next(numbers)) if _is_given(a) else a)
        unknown = [n for n in self._dims if n not in {s[0] for s in self._slots}]
        if unknown:
            known = ", ".join(s[0] for s in self._slots)
            raise InterfaceError(
                f"dims names {unknown[0]}, which is no array", hint=f"Arrays are {known}."
            )
        if is_module(fn):
            from einsql.frontends.trace.modules.graph import run_module  # needs PyTorch

            returned = run_module(fn, args, traced, self.graph)
        else:
            returned = _called(fn, traced)
        self.outputs: list[Step] = []
        self._form = mapped(returned, self._unpacked)
        if not self.outputs:
            raise ProgrammingError(
                "The function gives no array of its arguments",
                hint="Return arrays computed from them: one, or a tuple, list or dict.",
            )

    def _argument(self, value: Any, name: str) -> Any:
        if isinstance(value, list | tuple) and any(map(_is_given, leaves(value))):
            many = [self._argument(v, f"{name}_{n}") for n, v in enumerate(value)]
            return rebuilt(value, many)
        if isinstance(value, dict):
            return {k: self._argument(v, self._leaf(str(k), name)) for k, v in value.items()}
        if not _is_given(value):
            return value
        _refuse_type(name, value)
        relation = array_relation(value, fill=_fill(value))
        (field,) = relation.schema.values
        shape = relation.schema.shape
        dims = self._dims.get(name)
        if dims is not None and len(dims) != len(shape):
            raise InterfaceError(
                f"{name} has {plural(len(shape), 'axis', 'axes')}, and dims names {len(dims)}",
                hint="Give one name for each axis, as in dims={'x': 'i j'}.",
            )
        step = self.graph.tensor(name, value, shape, field.dtype, dims)
        self._slots.append((str(step.name), shape, field.dtype))
        return TracedArray(self.graph, step, whole(step, given=True), isinstance(value, np.generic))

    def _leaf(self, key: str, name: str) -> str:
        """The name of an array in a dict: its key, where no other has that."""
        taken = {t.lower() for t in self.graph.tensors} | {n.lower() for n in self._names}
        return f"{name}_{key}" if key.lower() in taken or not key.isidentifier() else key

    def _unpacked(self, value: Any) -> Any:
        """The form of a leaf of the result: the number of the output in the place of an array."""
        if isinstance(value, TracedArray):
            if value.graph is not self.graph:
                raise ProgrammingError("The function gives an array of another traced program")
            self.outputs.append(value.step)
            return _Numbered(len(self.outputs) - 1)
        if value is None or isinstance(value, str):
            return value
        return self._unpacked(lifted(self.graph, value))

    def given(
        self, arrays: Sequence[Any], dims: Mapping[str, tuple[str, ...]]
    ) -> dict[str, Stored]:
        """The arrays of a call by their names, over keys of given names.

        Raises:
            InterfaceError: They are not as they were traced.
        """
        if len(arrays) != len(self._names):
            raise InterfaceError(
                f"The program takes {plural(len(self._names), 'argument')}, not {len(arrays)}",
                hint=f"They are {', '.join(self._names)}.",
            )
        taken: dict[int, Any] = {}
        if not _taken(self._taken, list(arrays), taken):
            raise InterfaceError(
                "The program was traced with other arguments",
                hint="Numbers, texts and containers are part of the program; trace it anew.",
            )
        result: dict[str, Stored] = {}
        for n, (name, shape, dtype) in enumerate(self._slots):
            value = taken[n]
            _refuse_type(name, value)
            relation = array_relation(value, dims[name], _fill(value))
            (field,) = relation.schema.values
            if relation.schema.shape != shape or field.dtype is not dtype:
                raise InterfaceError(
                    f"{name} is {relation.schema.shape} {field.dtype.numpy_name}, and the program "
                    f"was traced with {shape} {dtype.numpy_name}",
                    hint="Trace it anew for other shapes and types.",
                )
            result[name] = relation
        return result

    def packed(self, arrays: Sequence[np.ndarray]) -> Any:
        """The results in the containers that the function returned."""

        def filled(leaf: Any) -> Any:
            if not isinstance(leaf, _Numbered):
                return leaf
            array = arrays[leaf.number]
            return array if array.shape else array[()]

        return mapped(self._form, filled)


class _Numbered:
    """Stands for an array in the form of the arguments or of a result."""

    def __init__(self, number: int) -> None:
        self.number = number


def _is_given(value: Any) -> bool:
    return is_array(value) or isinstance(value, np.generic) or is_sparse(value)


def _called(fn: Callable[..., Any], traced: Sequence[Any]) -> Any:
    """The return value of a function; replaces NumPy's errors by the reason not to trace it."""
    try:
        return fn(*traced)
    except (TypeError, ValueError) as error:
        if isinstance(error.__cause__, Error):  # as y[n] = x of a plain y has it
            raise error.__cause__ from None
        raise


def _refuse_type(name: str, value: Any) -> None:
    """Refuses an array of integers that tensors would widen, so that they wrap otherwise.

    Raises:
        NotSupportedError: The array is of int16 or of an unsigned type.
    """
    if isinstance(value, Stored) or is_sparse(value) or wider(as_numpy(value).dtype) is None:
        return
    raise NotSupportedError(
        f"{name} is {as_numpy(value).dtype}, in which tensors do not compute",
        hint="Convert it: x.astype(np.int32) or x.astype(np.int64).",
    )


def _taken(form: Any, value: Any, taken: dict[int, Any]) -> bool:
    """Returns True if an argument matches the traced form; puts its tensors into `taken`."""
    if isinstance(form, _Numbered):
        taken[form.number] = value
        return _is_given(value)
    if isinstance(form, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(form)
            and all(_taken(f, v, taken) for f, v in zip(form, value, strict=True))
        )
    if isinstance(form, dict):
        return (
            isinstance(value, dict)
            and value.keys() == form.keys()
            and all(_taken(f, value[k], taken) for k, f in form.items())
        )
    if _is_given(value) or type(value) is not type(form):
        return value is form
    return bool(value is form or value == form or (value != value and form != form))


def is_module(fn: object) -> bool:
    """True for PyTorch's modules."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(fn, torch.nn.Module)


def argument_names(fn: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """The names of a function's positional arguments.

    Raises:
        ProgrammingError: It takes others.
    """
    try:
        bound = inspect.signature(getattr(fn, "forward", fn)).bind(*args)
    except TypeError as error:
        raise ProgrammingError(
            f"The function does not take {plural(len(args), 'argument')}: {error}"
        ) from None
    except ValueError:  # a builtin has no signature
        return [f"x{n}" for n in range(len(args))]
    names: list[str] = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}_{n}" for n in range(len(value))]
        else:
            names.append(name)
    return names


def named_dims(dims: Dims, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Names of axes by tensor.

    Raises:
        InterfaceError: An entry is not a valid name.
    """
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        if isinstance(dims, str) or len(dims) != len(names):
            raise InterfaceError(
                "dims names the axes of every argument", hint="As in dims={'x': 'i j', 'w': 'j k'}."
            )
        dims = {name: d for name, d in zip(names, dims, strict=True) if d is not None}
    dims_of: dict[str, tuple[str, ...]] = {}
    for name, spec in dims.items():
        axes = tuple(spec.replace(",", " ").split() if isinstance(spec, str) else spec)
        if len({a.lower() for a in axes}) != len(axes) or "val" in (a.lower() for a in axes):
            raise InterfaceError(
                f"dims names axes of {name} {', '.join(axes)}",
                hint="Names differ from each other, and from val, the value.",
            )
        dims_of[str(name)] = axes
    return dims_of
