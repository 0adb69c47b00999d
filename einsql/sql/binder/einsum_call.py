"""The table function EINSUM('ij,jk->ik', x, y), in the notation of NumPy."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from einsql.core.schema import PRESENT, DType, valid
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import TRUE, Expr, Output, Value
from einsql.ir.einsum.notation import Spec, parse_spec
from einsql.sql.binder.aggregates import Aggregation
from einsql.sql.binder.context import Binder
from einsql.sql.binder.domain import Domain
from einsql.sql.parser.positions import position
from einsql.sql.scope.relation import Column, Relation, as_elements, known_bounds
from einsql.sql.typing.typed_expr import Typed, apply


def _column(label: str, output: Sequence[str]) -> str:
    """The column name of a label: the label, or d0, d1, … for the axes of '...'."""
    if not label.startswith("."):
        return label
    name = f"d{label[1:]}"
    while name in output:
        name += "_"
    return name


def bind_einsum(query: Binder, call: exp.Anonymous) -> Relation:
    """Binds EINSUM(spec, tensor, …): the sum of products, one row per output key.

    Raises:
        ProgrammingError: Ranks or bounds are incompatible, or an argument is not a tensor's name.
    """
    at = position(call)
    args = call.expressions
    if not args or not isinstance(args[0], exp.Literal) or not args[0].is_string:
        raise ProgrammingError("EINSUM needs its expression as text first", position=at)
    relations: list[Relation] = []
    for arg in args[1:]:
        if isinstance(arg, exp.Subquery):
            relations.append(query.bind(arg))
        elif isinstance(arg, exp.Column) and not arg.table:
            relation = query.named(arg.name, arg)
            relations.append(as_elements(relation, f"{arg.name} in EINSUM", arg))
        else:
            raise ProgrammingError(
                "EINSUM takes names of tensors or subqueries", position=position(arg) or at
            )
    try:
        spec = parse_spec(args[0].name, [len(_keys(r)) for r in relations])
        return einsum_relation(spec, relations, query.catalog.float_stays)
    except ProgrammingError as error:
        error.position = at
        raise


def _keys(relation: Relation) -> list[Column]:
    return [c for c in relation.columns if c.key is not None]


def einsum_relation(spec: Spec, relations: Sequence[Relation], float_stays: bool) -> Relation:
    """Builds the relation of a parsed einsum expression.

    Raises:
        ProgrammingError: A label has different bounds, or an operand has hidden keys.
    """
    domain = Domain()
    factors: list[Typed] = []
    for labels, relation in zip(spec.inputs, relations, strict=True):
        bounds = {k.name: (k.lo, k.hi) for k in known_bounds(relation).node.schema.keys}
        keys, values = _keys(relation), [c for c in relation.columns if c.field is not None]
        if relation.hidden or len(values) != 1:
            raise ProgrammingError(
                "An EINSUM operand needs its keys and one value column",
                hint="Select them in a subquery.",
            )
        for label, key in zip(labels, keys, strict=True):
            assert key.key is not None
            lo, hi = bounds[key.key]
            known = domain.axes.setdefault(label, (lo, hi))
            if known != (lo, hi):
                written = "..." if label.startswith(".") else label
                raise ProgrammingError(
                    f"EINSUM label '{written}' has the bounds [{known[0]}, {known[1]}) "
                    f"and [{lo}, {hi})"
                )
        index = {key.key: label for label, key in zip(labels, keys, strict=True)}
        order = tuple(index[k.name] for k in relation.node.schema.keys)
        number = domain.attach(relation.node, order)
        field = values[0].field
        assert field is not None
        present: Expr = TRUE
        if relation.node.schema.has(valid(field)):
            present = Value(number, valid(field), DType.BOOLEAN)
        dtype = values[0].dtype
        factors.append(Typed(Value(number, field, dtype), dtype, present))
    product = factors[0]
    for factor in factors[1:]:
        product = apply("mul", [product, factor], float_stays)
    output = spec.output
    aggregation = Aggregation(domain, output, bool(output), float_stays)
    total = aggregation.bind("sum", [product], TRUE)
    node = aggregation.finish()[0]
    assert isinstance(total.value, Value)
    renamed = tuple(
        Output("val", o.args, o.dtype, o.reduction, o.where)
        if o.name == total.value.field
        else Output(valid("val"), o.args, o.dtype, o.reduction, o.where)
        if o.name != PRESENT
        else o
        for o in node.outputs
    )
    summed = domain.node(output, renamed)
    columns = [Column(_column(k, output), DType.BIGINT, key=k) for k in output]
    return Relation(summed, (*columns, Column("val", summed.schema.dtype("val"), field="val")))
