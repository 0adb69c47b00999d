"""Conversion of a SELECT's columns to keys and values of the result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, valid
from einsql.errors import InternalError
from einsql.ir.einsum.graph import TRUE, Call, Const, Expr, Label, Output, bigint
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

    A column of the form ±label + constant becomes a key, also of a label that a join derives, as
    in `a.i = b.i + 1`, and so do the digits of a label that determine it. Every other column
    becomes a value. Labels without a column become hidden keys.

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
            continue
        shift = domain.shift_of_free(value) if n not in shown else None
        if shift is not None and shift[0] not in {*taken, *over.values()}:
            interval = domain.interval(value)
            shown[n] = label = domain.rekey(*shift, hint=columns[n][0])
            if interval is not None:  # the derived label may have narrower bounds
                lo, hi = domain.axes[label]
                lo = max(lo, interval[0])
                domain.axes[label] = lo, max(lo, min(hi, interval[1] + 1))
    values = {n: value for n, value in key_values.items() if n not in shown}
    taken = {*shown.values(), *correlated, *over.values()}
    shown |= _keys_of_digits(domain, values, [name for name, _, _ in columns], taken)
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


@dataclass(frozen=True, slots=True)
class _Digit:
    """`label // stride % modulus`; a modulus of 0 is none."""

    label: str
    stride: int
    modulus: int


def _keys_of_digits(
    domain: Domain, columns: Mapping[int, Expr], names: Sequence[str], shown: set[str]
) -> dict[int, str]:
    """Replaces each free label that columns cover by their digits by a label for each digit.

    Args:
        domain: The domain, which is changed.
        columns: The values of integer columns by their numbers.
        names: The names of all columns.
        shown: The labels that stay, because they are keys or belong to an enclosing SELECT.

    Returns:
        The labels of the digits by the numbers of their columns.
    """
    digits: dict[str, dict[_Digit, int]] = {}
    for number, expr in columns.items():
        digit = _digit_of(expr)
        if digit is not None and digit.label in domain.free and digit.label not in shown:
            digits.setdefault(digit.label, {}).setdefault(digit, number)
    keys: dict[int, str] = {}
    for label, numbers in digits.items():
        ordered = sorted(numbers, key=lambda d: -d.stride)
        lo, hi = domain.axes[label]
        if lo < 0 or domain.edges_of(label) or not _cover(ordered, hi):
            continue
        number_of: Expr | None = None
        for digit in ordered:
            bounds = (0, digit.modulus) if digit.modulus else _bounds(lo, hi, digit.stride)
            key = keys[numbers[digit]] = domain.fresh(names[numbers[digit]], *bounds)
            term: Expr = Label(key)
            if digit.stride > 1:
                term = Call("mul", (term, bigint(digit.stride)), DType.BIGINT)
            number_of = term if number_of is None else Call("add", (number_of, term), DType.BIGINT)
        assert number_of is not None
        domain.defines[label] = number_of
        if label in domain.hint:
            domain.hint[keys[numbers[ordered[0]]]] = domain.hint.pop(label)
    return keys


def _bounds(lo: int, hi: int, stride: int) -> tuple[int, int]:
    return lo // stride, max(lo, hi - 1) // stride + 1


def _cover(digits: Sequence[_Digit], hi: int) -> bool:
    """True if digits, the highest one first, determine every number below `hi`."""
    top, last = digits[0], digits[-1]
    if len(digits) < 2 or last.stride != 1 or (top.modulus and top.stride * top.modulus < hi):
        return False
    return all(low.modulus * low.stride == high.stride for high, low in pairwise(digits))


def _digit_of(expr: Expr) -> _Digit | None:
    """The digit that an expression of `//` and `%` is; None for other expressions."""
    if isinstance(expr, Label):
        return _Digit(expr.name, 1, 0)
    if not isinstance(expr, Call) or expr.fn not in ("idiv", "mod"):
        return None
    inner, constant = expr.args
    digit = _digit_of(inner)
    if digit is None or not isinstance(constant, Const) or not constant.dtype.is_integer:
        return None
    by = constant.integer
    if by <= 0 or digit.modulus % by:
        return None
    if expr.fn == "mod":
        return _Digit(digit.label, digit.stride, by)
    return _Digit(digit.label, digit.stride * by, digit.modulus // by)
