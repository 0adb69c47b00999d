"""Kernels of the tensor-relational algebra: EinSums over the axes of tiles.

A kernel is a template, an EinSum over operands that are Inputs; it runs on tiles of any
extents, which take the place of its bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from einsql.core.records import dataclass
from einsql.core.schema import DType, Field, Key, Schema
from einsql.core.units import plural
from einsql.errors import ProgrammingError, suggest
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Expr, Input, Operand, Output, Value, cast
from einsql.ir.einsum.notation import parse_spec
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.ir.tra.lambda_tracing import apply, recorded, trace

VALUE = "val"
"""The name of every tile's field."""

_MERGING = [r for r in REDUCTIONS.values() if r.monoid is not None]
AGGREGATES = {r.name: r.name for r in _MERGING} | {r.monoid: r.name for r in _MERGING}
"""Reductions that merge arrays element by element, by name and by their monoid's name."""


Merge = str | tuple[str, ...]
"""The reduction of a relation with one field, or the reduction of each field of a record.

ARG_MIN and ARG_MAX merge their argument together with the fields of their state.
"""


def reductions(merge: Merge) -> tuple[str, ...]:
    """The reduction of each field."""
    return (merge,) if isinstance(merge, str) else merge


@dataclass(frozen=True, slots=True)
class Tile:
    """The rank and type of an operand, which determine a kernel's template."""

    rank: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel for operands of any types and of the ranks that its notation allows.

    Attributes:
        notation: The notation as in `einsum`; None combines elements at equal positions.
        combine: ⊗, a scalar function's name or a Python function.
        reduce: ⊕, a reduction's name.
    """

    notation: str | None
    combine: str | Callable[..., object]
    reduce: str = "sum"

    def template(self, tiles: Sequence[Tile]) -> EinSum:
        """The EinSum for operands of given ranks and types.

        Raises:
            ProgrammingError: The kernel does not fit the operands.
        """
        notation = self.notation
        if notation is None:
            notation = ",".join(["..."] * len(tiles)) + "->..."
        build = _named if isinstance(self.combine, str) else _template
        return build(notation, self.combine, self.reduce, tuple(tiles))


def einsum(
    notation: str, combine: str | Callable[..., object] = "mul", reduce: str = "sum"
) -> Kernel:
    """A kernel in einsum notation.

    Args:
        notation: Notation such as 'ij,jk->ik'; '...' matches any number of axes.
        combine: ⊗, a scalar function's name or a Python function of one value for each
            operand. A function of two arguments folds over more operands.
        reduce: ⊕, a reduction's name.

    Raises:
        ProgrammingError: There is no such function or reduction.
    """
    reduce = aggregate_of(reduce, f"The kernel '{notation}'")
    return Kernel(notation, _known(combine), reduce)


def elementwise(combine: str | Callable[..., object]) -> Kernel:
    """A kernel that combines the elements at equal positions of operands of equal shapes.

    Raises:
        ProgrammingError: There is no scalar function of that name.
    """
    return Kernel(None, _known(combine))


def _known(combine: str | Callable[..., object]) -> str | Callable[..., object]:
    if isinstance(combine, str) and combine not in SCALARS:
        raise ProgrammingError(
            f"A kernel combines by {combine}, which is not a scalar function",
            hint=suggest(combine, SCALARS, "functions"),
        )
    return combine


def aggregate_of(name: str, what: str) -> str:
    """The reduction with a name, or with a monoid of that name such as `add`.

    Raises:
        ProgrammingError: No reduction of arrays has that name.
    """
    if name not in AGGREGATES:
        raise ProgrammingError(
            f"{what} reduces by {name}, which merges no arrays element by element",
            hint=suggest(str(name), map(str, AGGREGATES), "reductions"),
        )
    return AGGREGATES[name]


@lru_cache(maxsize=512)  # a cached template keeps its compiled kernels
def _named(
    notation: str, combine: str | Callable[..., object], reduce: str, tiles: tuple[Tile, ...]
) -> EinSum:
    return _template(notation, combine, reduce, tiles)


def _template(
    notation: str, combine: str | Callable[..., object], reduce: str, tiles: tuple[Tile, ...]
) -> EinSum:
    spec = parse_spec(notation, [t.rank for t in tiles])
    values = [Value(n, VALUE, t.dtype) for n, t in enumerate(tiles)]
    value = _combined(notation, combine, values)
    labels = tuple(dict.fromkeys(x for term in spec.inputs for x in term))
    output = Output(VALUE, (value,), value.dtype)
    if set(labels) != set(spec.output):
        output = _reduced(value, reduce)
    return EinSum(
        tuple(Axis(x, 0, 1) for x in labels),
        tuple(
            operand(n, x, t.dtype) for n, (t, x) in enumerate(zip(tiles, spec.inputs, strict=True))
        ),
        TRUE,
        spec.output,
        (output,),
    )


def operand(
    number: int,
    labels: Sequence[str],
    record: DType | tuple[Field, ...],
    shape: Sequence[int] | None = None,
) -> Operand:
    """An operand of a kernel: an array read with one label for each axis.

    Args:
        number: The operand's position.
        labels: A label for each axis.
        record: The fields, or the type of the only field VALUE.
        shape: The array's extents; all 1 in templates.
    """
    extents = [1] * len(labels) if shape is None else shape
    keys = tuple(Key(f"d{n}", 0, extent) for n, extent in enumerate(extents))
    fields = (Field(VALUE, record),) if isinstance(record, DType) else record
    return Operand(Input(f"x{number}", Schema(keys, fields)), tuple(labels))


def _combined(notation: str, combine: str | Callable[..., object], values: list[Value]) -> Expr:
    if not isinstance(combine, str):
        what = f"The kernel '{notation}'"
        return recorded(trace(combine, values, {}, what), what)
    if SCALARS[combine].arity == len(values):
        return apply(combine, values)
    if SCALARS[combine].arity != 2:
        raise ProgrammingError(
            f"The kernel '{notation}' has {plural(len(values), 'operand')}, "
            f"{combine} takes {SCALARS[combine].arity}"
        )
    first: Expr = values[0]
    return functools.reduce(lambda total, value: apply(combine, (total, value)), values[1:], first)


def _reduced(value: Expr, reduce: str) -> Output:
    """A reduction with the type of SQL's aggregate, except that FLOAT stays FLOAT."""
    if reduce in ("sum", "product"):
        value = cast(value, _TOTALS[reduce].get(value.dtype, value.dtype))
    check_reduction(reduce, value.dtype, "A kernel")
    return Output(VALUE, (value,), value.dtype, reduce)


_INTEGERS = (DType.TINYINT, DType.INTEGER, DType.BIGINT)
_SHORT = dict.fromkeys((DType.HALF, DType.BFLOAT16), DType.FLOAT)
_TOTALS = {
    "sum": {**dict.fromkeys(_INTEGERS, DType.BIGINT), **_SHORT},
    "product": {**dict.fromkeys(_INTEGERS, DType.DOUBLE), **_SHORT},
}


def check_reduction(reduce: str, dtype: DType, what: str) -> None:
    """Rejects a reduction that does not fit a type.

    Raises:
        ProgrammingError: The reduction does not fit.
    """
    if SCALARS[REDUCTIONS[reduce].monoid or ""].types((dtype, dtype), True) is None:
        other = "bool_or" if dtype is DType.BOOLEAN else "sum"
        raise ProgrammingError(
            f"{what} cannot reduce {dtype.value} by {reduce}", hint=f"Use {other}, min or max."
        )


def element_axes(kinds: Iterable[Tile], what: str = "") -> tuple[str, ...]:
    """Labels of the axes of arrays that are combined element by element.

    Arrays of rank 0 combine with any other.

    Args:
        kinds: Ranks and types of the arrays.
        what: A prefix of errors that names the function, such as `f: `.

    Raises:
        ProgrammingError: Two arrays have different ranks.
    """
    ranks = {k.rank for k in kinds} - {0}
    if len(ranks) > 1:
        few, many = sorted(ranks)[:2]
        raise ProgrammingError(
            f"{what}{'arrays' if what else 'Arrays'} of rank {few} and {many} "
            "do not meet element by element",
            hint="Match axes by labels in tensor_einsum, as in 'ij,i->ij'.",
        )
    return tuple(f".{n}" for n in range(max(ranks, default=0)))
