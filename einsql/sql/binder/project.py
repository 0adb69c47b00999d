"""Conversion of a SELECT's columns to keys and values of the result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from sqlglot import exp

from einsql.core.schema import PRESENT, DType, valid
from einsql.errors import InternalError
from einsql.ir.einsum.graph import TRUE, Const, Label, Output
from einsql.sql.binder.domain import Domain
from einsql.sql.parser.positions import unsupported
from einsql.sql.scope.relation import Column, Relation
from einsql.sql.typing.casts import Decimal
from einsql.sql.typing.typed_expr import Typed


def project(
    domain: Domain,
    columns: list[tuple[str, Typed, exp.Expr]],
    correlated: Collection[str],
    over: Mapping[int, str] = MappingProxyType({}),
) -> Relation:
    """The relation of a SELECT's columns over its domain.

    A column of the form ±label + constant becomes a key; every other column becomes a value. Labels
    without a column become hidden keys.

    Args:
        domain: The domain of the columns.
        columns: The name, bound value and syntax of each SELECT item.
        correlated: The labels that represent keys of an enclosing SELECT.
        over: The label of the places of each LIST, by the number of its column. It is the last one.

    Raises:
        NotSupportedError: A column is a DECIMAL.
    """
    shown: dict[int, str] = {}
    key_values = {n: domain.canonical(t.value) for n, (_, t, _) in enumerate(columns) if _is_key(t)}
    for n, value in key_values.items():
        if not isinstance(value, Label) or value.name not in domain.free:
            continue
        if value.name not in shown.values():
            shown[n] = value.name
    for n, value in key_values.items():
        shift = domain.shift(value) if n not in shown else None
        taken = {*shown.values(), *correlated}
        if shift is not None and shift[0] in domain.free and shift[0] not in taken:
            shown[n] = domain.rekey(*shift, hint=columns[n][0])
    single: set[str] = set()
    for label in domain.free:  # a hidden key of extent 1 adds no duplicates
        (lo, hi), window = domain.axes[label], domain.window_of(label)
        if label in {*shown.values(), *correlated, *over.values()}:
            continue
        if window is not None and window.extent == 1:
            single.add(label)
        elif hi - lo <= 1:
            domain.defines[label] = Const(lo, DType.BIGINT)
    visible = [shown[n] for n in sorted(shown)]
    keys = visible + [label for label in domain.free if label not in visible]

    outputs: list[Output] = []
    shown_columns: list[Column] = []
    for n, (name, typed, node) in enumerate(columns):
        if n in shown:
            shown_columns.append(Column(name, DType.BIGINT, key=shown[n]))
            continue
        typed = _storable(typed, node)
        assert isinstance(typed.type, DType)
        field = _unused(name, {o.name for o in outputs})
        outputs.append(Output(field, (typed.value,), typed.type))
        if typed.valid != TRUE:
            outputs.append(Output(valid(field), (typed.valid,), DType.BOOLEAN))
        shown_columns.append(Column(name, typed.type, field=field, over=over.get(n)))
    if not domain.total:
        outputs.append(Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or"))
    elif not outputs:
        outputs.append(Output(PRESENT, (TRUE,), DType.BOOLEAN))
    edges = tuple((k, e) for k in keys if k not in single for e in domain.edges_of(k))
    projected = domain.windows.without(domain.node(keys, outputs), single)
    return Relation(projected, tuple(shown_columns), edges)


def _is_key(typed: Typed) -> bool:
    """Whether a value can be a key: a BIGINT that is never NULL."""
    return typed.type is DType.BIGINT and typed.valid == TRUE


def _storable(typed: Typed, node: exp.Expr) -> Typed:
    if typed.type is None:
        return Typed(Const(0, DType.INTEGER), DType.INTEGER, typed.valid)
    if isinstance(typed.type, Decimal):
        raise unsupported(
            "A DECIMAL result", node, "CAST it to DOUBLE, or write 0.5::FLOAT for 0.5."
        )
    if typed.value.dtype is not typed.type:
        raise InternalError(f"{typed.type.value} is held as {typed.value.dtype.value}")
    return typed


def _unused(name: str, taken: set[str]) -> str:
    base = name.lstrip(".") or "column"
    candidate, n = base, 1
    while candidate in taken:
        candidate, n = f"{base}_{n}", n + 1
    return candidate
