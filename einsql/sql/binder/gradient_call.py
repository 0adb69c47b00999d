"""GRADIENT(loss, w): the derivative of a loss by the elements of a tensor."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from einsql.core.mappings import memoized
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import (
    OF_A_TABLE,
    ForeignNameError,
    NotSupportedError,
    ProgrammingError,
    UnknownHere,
)
from einsql.ir.autodiff import Backward
from einsql.ir.einsum.graph import EinSum, Input, Node, PartInput, walk
from einsql.sql.binder.context import Binder
from einsql.sql.parameters.host_expr import NeedsValuesError
from einsql.sql.parser.positions import locate, position
from einsql.sql.parser.sql_text import as_sql
from einsql.sql.scope.relation import Column, Relation, as_elements, known_bounds


def bind_gradient(
    query: Binder, call: exp.Anonymous, passes: dict[tuple[int, str], Backward]
) -> Relation:
    """Binds GRADIENT(loss, w): a relation with the rows, keys and float columns of w.

    Args:
        query: The statement's binder.
        call: The call.
        passes: The statement's backward passes by the node and the field of the loss; a new pass
            is added.

    Raises:
        ProgrammingError: The loss is not a single float, the loss does not read w, w has no float
            column, or an operation between them has no derivative.
    """
    args = call.expressions
    if len(args) != 2:
        raise ProgrammingError(
            f"GRADIENT(loss, w) takes a loss and a tensor, not {plural(len(args), 'argument')}",
            hint="Each is a name or a SELECT in parentheses of its own; of several tensors there "
            "is a GRADIENT each, which share their work.",
            position=position(call),
        )
    loss, source = _relation(query, args[0]), known_bounds(_relation(query, args[1]))
    within = query.windows.over(source.node)
    if within:  # a read within a window is another node, without a path to this node
        raise NeedsValuesError(within)
    field = _loss_field(loss, args[0])
    columns = _columns(source, args[1])
    backward = memoized(passes, (id(loss.node), field), lambda: Backward(loss.node, field))
    if not _reads(passes, backward, source.node):
        raise _not_read(loss, args)
    if any(isinstance(n, PartInput) for n in walk(loss.node)):
        raise ProgrammingError(
            "There is no gradient through tiles",
            hint="Write the inputs of the loss over elements.",
            position=position(args[0]),
        )
    try:
        node = backward.gradient(source.node)
    except ProgrammingError as error:
        raise locate(error, call) from None
    return Relation(node, columns)


def _reads(passes: Mapping[tuple[int, str], Backward], backward: Backward, source: Node) -> bool:
    """True if a loss reads a source, directly or through a constant gradient."""
    if backward.reads(source):
        return True
    return any(
        other is not backward and backward.uses(other) and _reads(passes, other, source)
        for other in passes.values()
    )


def _relation(query: Binder, arg: exp.Expr) -> Relation:
    try:
        if isinstance(arg, exp.Subquery):
            return query.bind(arg)
        if isinstance(arg, exp.Column) and not arg.table:
            return as_elements(query.named(arg.name, arg), f"{arg.name} in GRADIENT", arg)
    except (NotSupportedError, UnknownHere) as error:
        raise _no_tensor_work(query, error) from None
    raise ProgrammingError(
        "GRADIENT takes names of tensors, views and WITH, or subqueries",
        hint="Write a name without quotes, or a SELECT in parentheses of its own.",
        position=position(arg),
    )


def _no_tensor_work(query: Binder, error: NotSupportedError | UnknownHere) -> ProgrammingError:
    """The error for a query that only DuckDB can run, or for a name that is not a tensor's.

    For the name itself the error remains UnknownHere, so that DuckDB's tables are searched.
    """
    chain = error.chain if isinstance(error, ForeignNameError) else [error]
    root, within = chain[-1], [e.name for e in chain if isinstance(e, ForeignNameError)]
    reason, hint = root.reason, root.hint
    place = error.position if root.position is None else root.position
    if isinstance(root, UnknownHere):
        name = reason.split('"')[1] if '"' in reason else ""
        if not name or not query.catalog.has_table(name):
            return UnknownHere(reason, hint=hint, position=place)
        reason, view = f'"{name}" is a table', hint.partition("This is in the view ")
        hint = " ".join(["".join(view[1:]), OF_A_TABLE]).strip()
    read = f", and {within[-1]}, which it reads, is not" if len(within) > 1 else ""
    kind = UnknownHere if isinstance(error, UnknownHere) else ProgrammingError
    return kind(
        f"GRADIENT supports tensor work only{read}: {reason}",
        hint=hint or 'The page "The SQL language" defines tensor work.',
        position=place,
    )


def _loss_field(loss: Relation, at: exp.Expr) -> str:
    name = as_sql(at)
    keys = [k.name for k in loss.node.schema.keys]
    if keys:
        raise ProgrammingError(
            f"{name} has a value for each {', '.join(keys)}, and a loss is one value",
            hint=f"Aggregate it: SELECT SUM({_some_value(loss)}) AS val FROM {name}.",
            position=position(at),
        )
    values = [c for c in loss.columns if c.field is not None]
    if len(values) != 1:
        shown = ", ".join(c.name for c in loss.columns)
        raise ProgrammingError(
            f"A loss is one value, and {name} has {len(values)}: {shown}",
            hint="Select one of them.",
            position=position(at),
        )
    (value,) = values
    if not value.dtype.is_float:
        raise ProgrammingError(
            f"{name} is a {value.dtype.value}, and a loss is a float",
            hint="CAST its operands to FLOAT or DOUBLE.",
            position=position(at),
        )
    assert value.field is not None
    return value.field


def _some_value(relation: Relation) -> str:
    return next((c.name for c in relation.columns if c.field is not None), "val")


def _columns(source: Relation, at: exp.Expr) -> tuple[Column, ...]:
    """The columns of a gradient: the keys and float columns of the source."""
    columns = []
    for c in source.columns:
        if c.field is None:
            columns.append(c)
        elif c.dtype.is_float:
            dtype = DType.FLOAT if c.dtype.is_short else c.dtype
            columns.append(Column(c.name, dtype, field=c.field))
    if all(c.field is None for c in columns):
        types = ", ".join(dict.fromkeys(c.dtype.value for c in source.columns if c.field))
        raise ProgrammingError(
            f"{as_sql(at)} has no float values to take a gradient by"
            + (f", only {types}" if types else ""),
            hint="CAST them to FLOAT in a WITH query that the loss reads.",
            position=position(at),
        )
    return tuple(columns)


def _not_read(loss: Relation, args: list[exp.Expr]) -> ProgrammingError:
    """The error for a source on which the loss does not depend."""
    names = [n.name for n in walk(loss.node) if isinstance(n, Input)]
    shown = f"It reads {', '.join(names)}." if names else ""
    if isinstance(loss.node, EinSum) and names:
        shown += " A WITH query counts only where the loss reads it by its name."
    return ProgrammingError(
        f"{as_sql(args[0])} does not read {as_sql(args[1])}",
        hint=shown,
        position=position(args[1]),
    )
