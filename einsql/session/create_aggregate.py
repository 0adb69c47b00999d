"""`Connection.create_aggregate`: CREATE AGGREGATE with clauses of SQL or Python functions.

A clause that is a Python function becomes one scalar function for each of its values. Those of
MERGE are recorded as expressions, which kernels compile.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import InterfaceError, ProgrammingError
from einsql.ir.functions.python_functions import (
    Calling,
    FunctionName,
    Laws,
    PythonFunction,
    add_opaque,
    unique_name,
)
from einsql.ir.tra.lambda_tracing import Traced
from einsql.ir.tra.math_names import recording
from einsql.session.create_function import parameter_names, type_text
from einsql.session.function_operations import prepared, type_of_recorded
from einsql.session.state_fields import StateFields
from einsql.sql.macros.macros import Macro
from einsql.sql.parser.aggregate_law import EARLIER, LATER, NEW, OLD
from einsql.sql.parser.create.parameter_lists import TYPE_NAMES
from einsql.storage.objects import Definition, macro_key

if TYPE_CHECKING:
    from einsql.planner.context import Context

Clause = str | Sequence[str] | Mapping[str, Any] | Callable[..., Any]
"""A clause: its text, the text of each expression, texts by field, or a Python function."""


@dataclass(frozen=True, slots=True)
class Clauses:
    """The arguments of `create_aggregate`, by their names."""

    state: Mapping[str, Any]
    lift: Clause
    merge: Clause
    finish: Clause
    rescale: Clause | None = None
    parameters: Any = None
    ordered_by: str | Sequence[str] = ()


def create_aggregate(
    ctx: Context, execute: Callable[[str], object], name: str, clauses: Clauses
) -> None:
    """Creates an aggregate; see `Connection.create_aggregate`.

    Args:
        ctx: The session.
        execute: Runs a statement.
        name: The name.
        clauses: The clauses.

    Raises:
        Error: A clause is wrong, the name is taken, or a law does not hold.
    """
    if not isinstance(name, str):
        raise InterfaceError("create_aggregate takes a name first")
    writer = _Writer(name, clauses)
    text = writer.text()
    execute(text)
    definition = ctx.store.get(macro_key(name))
    assert isinstance(definition, Definition)
    macro = definition.body.tree
    assert isinstance(macro, Macro)
    law = macro.law
    assert law is not None  # the statement was CREATE AGGREGATE
    for tree in (*law.lift, *law.merge, *law.rescale.values(), macro.body):
        for call in tree.find_all(exp.Anonymous):
            if call.name in writer.functions:
                call.set("this", writer.functions[call.name])  # keeps the function


def remove_aggregate(ctx: Context, execute: Callable[[str], object], name: str) -> None:
    """Removes an aggregate; see `Connection.remove_aggregate`.

    Raises:
        ProgrammingError: `create_aggregate` has created no aggregate of that name.
    """
    definition = ctx.store.get(macro_key(str(name)))
    tree = definition.body.tree if isinstance(definition, Definition) else None
    is_aggregate = isinstance(tree, Macro) and tree.law is not None
    if definition is None or not is_aggregate or not definition.temporary:
        raise ProgrammingError(
            f'There is no aggregate "{name}" of create_aggregate()',
            hint=f"DROP AGGREGATE {name} removes one of SQL." if is_aggregate else "",
        )
    execute(f"DROP AGGREGATE {in_quotes(str(name))}")


class _Writer:
    """Writes CREATE AGGREGATE for the arguments of `create_aggregate`.

    Attributes:
        functions: The scalar functions of clauses that are Python functions, by their names.
    """

    def __init__(self, name: str, clauses: Clauses) -> None:
        self.name, self.clauses = name, clauses
        self.functions: dict[str, FunctionName] = {}
        self._state = StateFields(name, clauses.state)
        self._parameters = _parameters(name, clauses)

    def text(self) -> str:
        """The statement.

        Raises:
            Error: A clause has the wrong form.
        """
        clauses, fields = self.clauses, self._state
        declared = ", ".join(f"{in_quotes(p)} {t}" for p, t in self._parameters.items())
        lines = [f"CREATE TEMP AGGREGATE {in_quotes(self.name)}({declared})"]
        lines.append(f"STATE ({fields.declaration})")
        arguments = [(in_quotes(p), TYPE_NAMES.get(t)) for p, t in self._parameters.items()]
        lines.append(f"LIFT ({self._clause('lift', clauses.lift, arguments, lambda args: args)})")
        two = [*fields.read(EARLIER), *fields.read(LATER)]
        count = len(two) // 2
        merge = self._clause(
            "merge",
            clauses.merge,
            two,
            lambda a: (fields.value(a[:count]), fields.value(a[count:])),
        )
        lines.append(f"MERGE ({merge})")
        if clauses.rescale is not None:
            lines.append(f"RESCALE ({self._rescale(clauses.rescale)})")
        lines.append(f"FINISH ({self._finish(clauses.finish)})")
        order = clauses.ordered_by
        keys = [order] if isinstance(order, str) else order
        if not isinstance(keys, Sequence) or not all(isinstance(k, str) for k in keys):
            raise InterfaceError(f"ordered_by of {self.name} takes a name or a list of names")
        if keys:
            lines.append(f"ORDERED BY {', '.join(map(in_quotes, keys))}")
        return "\n".join(lines)

    def _clause(
        self,
        word: str,
        clause: Clause,
        arguments: Sequence[tuple[str, DType | None]],
        arrange: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> str:
        """The expressions of LIFT or MERGE, one for each field."""
        state = self._state
        if isinstance(clause, str):
            return clause
        if not callable(clause):
            return ", ".join(_texts(self.name, word, clause, list(state.sizes)))
        returned = _returned(clause, arrange, [[1] * len(arguments)])
        if returned is not None:
            state.flat(returned)  # checks their number
        pick = _parts(clause, arrange, state.flat)
        calls = [
            self._call(f"{word}.{f}", pick(n), arguments, dtype)
            for n, (f, dtype) in enumerate(zip(state.names, state.dtypes, strict=True))
        ]
        return ", ".join(state.grouped(calls))

    def _rescale(self, clause: Clause) -> str:
        if isinstance(clause, str):
            return clause
        if callable(clause) or not isinstance(clause, Mapping):
            return ", ".join(_texts(self.name, "rescale", clause, []))
        fields, texts = self._state, []
        for name, changed in clause.items():
            if not callable(changed):
                texts.append(str(changed))
                continue
            own = [(n, t) for n, t in fields.read("") if n == in_quotes(name.lower())]
            if not own:
                raise ProgrammingError(f'The state of {self.name} has no field "{name}"')
            states = [*fields.read(OLD), *fields.read(NEW)]
            count = len(states) // 2

            def arrange(args: Sequence[Any], count: int = count) -> Sequence[Any]:
                return args[0], fields.value(args[1 : 1 + count]), fields.value(args[1 + count :])

            part = _parts(changed, arrange, lambda value: [value])
            texts.append(self._call(f"rescale.{name}", part(0), [*own, *states], own[0][1]))
        return ", ".join(texts)

    def _finish(self, clause: Clause) -> str:
        if isinstance(clause, str):
            return clause
        if isinstance(clause, Mapping) and not any(map(callable, clause.values())):
            return ", ".join(f"{text} AS {in_quotes(name)}" for name, text in clause.items())
        if not callable(clause):
            return ", ".join(_texts(self.name, "finish", clause, []))
        fields = self._state
        arguments = fields.read("")

        def arrange(args: Sequence[Any]) -> Sequence[Any]:
            return (fields.value(args),)

        returned = _returned(clause, arrange, [[1] * len(arguments), fields.starts])
        names = [str(name) for name in returned] if isinstance(returned, Mapping) else []
        pick = _parts(clause, arrange, lambda v: [v[n] for n in names] if names else [v])
        calls = [
            self._call(f"finish.{n}", pick(n), arguments, None) for n in range(max(1, len(names)))
        ]
        if not names:
            return calls[0]
        return ", ".join(f"{c} AS {in_quotes(n)}" for c, n in zip(calls, names, strict=True))

    def _call(
        self,
        shown: str,
        fn: Callable[..., Any],
        arguments: Sequence[tuple[str, DType | None]],
        result: DType | None,
    ) -> str:
        """The call of a new scalar function.

        Args:
            shown: The name of the function's result in errors.
            fn: The Python function.
            arguments: The arguments and their types.
            result: The type of its result; None for that of the recorded expression.
        """
        dtypes = [dtype or DType.DOUBLE for _, dtype in arguments]
        shown = f"{self.name}.{shown}"
        result = result or type_of_recorded(fn, dtypes, shown) or DType.DOUBLE
        function = PythonFunction(shown, fn, Calling.NATIVE, tuple(dtypes), result)
        function = prepared(function, True, Laws())
        unique = unique_name(function)
        if function.expr is None:
            add_opaque(unique, Laws())
        self.functions[str(unique)] = unique
        return f"{in_quotes(str(unique))}({', '.join(text for text, _ in arguments)})"


def _parts(
    fn: Callable[..., Any],
    arrange: Callable[[Sequence[Any]], Sequence[Any]],
    flat: Callable[[Any], list[Any]],
) -> Callable[[int], Callable[..., Any]]:
    """Returns functions of numbers, one for each value that a Python function returns.

    Args:
        fn: The function of a clause.
        arrange: Returns the function's arguments, from numbers.
        flat: Returns the numbers that the function returned.
    """
    recordable = recording(fn)

    def pick(n: int) -> Callable[..., Any]:
        def part(*args: Any) -> Any:
            traced = any(isinstance(a, Traced) for a in args)
            return flat((recordable if traced else fn)(*arrange(args)))[n]

        return part

    return pick


def _returned(
    fn: Callable[..., Any],
    arrange: Callable[[Sequence[Any]], Sequence[Any]],
    tried: Sequence[Sequence[Any]],
) -> Any:
    """The result of a function for the first arguments at which it is defined, or None."""
    for values in tried:
        try:
            return fn(*arrange(values))
        except Exception:  # the function may be defined for other values only
            continue
    return None


def _texts(aggregate: str, word: str, clause: Any, fields: list[str]) -> Iterator[str]:
    """The texts of a clause's expressions, those of a dictionary in the order of the fields."""
    if isinstance(clause, Mapping) and fields:
        by_name = {str(k).lower(): v for k, v in clause.items()}
        if set(by_name) != set(fields):
            raise ProgrammingError(
                f"{word} of {aggregate} has the fields {', '.join(by_name)}, "
                f"and the state has {', '.join(fields)}"
            )
        clause = [by_name[name] for name in fields]
    if not isinstance(clause, Sequence) or not all(isinstance(t, str) for t in clause):
        raise InterfaceError(
            f"{word} of {aggregate} is a text of SQL, texts, or a Python function",
            hint=f"{word}='a.n + b.n'." if word == "merge" else "",
        )
    yield from clause


def _parameters(name: str, clauses: Clauses) -> dict[str, str]:
    """The types of the parameters by their names; empty for any type."""
    declared, lift = clauses.parameters, clauses.lift
    if isinstance(declared, Mapping):
        return {str(p): type_text(t) if t else "" for p, t in declared.items()}
    if not callable(lift):
        raise InterfaceError(
            f"{name} needs the names and types of its parameters",
            hint="parameters={'x': 'DOUBLE'}.",
        )
    try:
        known = typing.get_type_hints(lift)
    except Exception:  # annotations may contain undefined names
        known = {}
    count = None if declared is None else len(declared)
    names = parameter_names(lift, count)
    types = [known.get(p, "DOUBLE") for p in names] if declared is None else list(declared)
    return {p: type_text(t) for p, t in zip(names, types, strict=True)}
