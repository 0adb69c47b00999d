"""The table function EINSUM('ij,jk->ik', x, y), in the notation of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from einsql.core.schema import PRESENT, DType, valid
from einsql.errors import Error, ProgrammingError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
    view,
)
from einsql.ir.einsum.notation import Spec, parse_spec
from einsql.ir.einsum.sharded_notation import Axes, cell_labels, grid_of, parse_sharded
from einsql.ir.layout import Layout, Mesh, placement
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

    With `sharded := true` the labels of the specification carry mesh axes.

    Raises:
        ProgrammingError: Ranks or bounds are incompatible, an argument is not a tensor's name, or
            mesh axes contradict each other.
    """
    at = position(call)
    args = [a for a in call.expressions if not isinstance(a, exp.PropertyEQ)]
    options = [_is_sharded(a) for a in call.expressions if isinstance(a, exp.PropertyEQ)]
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
    text, ranks = args[0].name, [len(_keys(r)) for r in relations]
    try:
        if True in options:
            return _sharded(query, text, relations)
        return einsum_relation(parse_spec(text, ranks), relations, query.catalog.float_stays)
    except Error as error:
        start = position(args[0])
        inside = None if start is None or error.position is None else start + 1 + error.position
        error.position = at if inside is None else inside
        raise


def _is_sharded(option: exp.PropertyEQ) -> bool:
    """The value of the option `sharded := true`.

    Raises:
        ProgrammingError: It is another option, or its value is not TRUE or FALSE.
    """
    setting = option.expression
    if option.name.lower() != "sharded" or not isinstance(setting, exp.Boolean):
        raise ProgrammingError(
            f"EINSUM has no option {option.name} := {setting.sql()}",
            hint="sharded := true reads mesh axes: EINSUM('b_data e, e f -> b_data f', x, w, "
            "sharded := true).",
            position=position(option),
        )
    return bool(setting.this)


def _sharded(query: Binder, text: str, relations: Sequence[Relation]) -> Relation:
    """Binds a specification with mesh axes; at one site the axes have no effect.

    Raises:
        ProgrammingError: See `bind_einsum`; the position is the offset in the specification.
    """
    catalog = query.catalog
    mesh = Mesh(catalog.mesh)
    sharded = parse_sharded(text, [len(_keys(r)) for r in relations], [n for n, _ in mesh.axes])
    if not mesh.axes and catalog.sites > 1:
        raise ProgrammingError(
            f"sharded := true needs a mesh of the {catalog.sites} sites",
            hint=f"SET mesh = 'data={catalog.sites}' names their axes.",
        )
    if not mesh.axes:
        return einsum_relation(sharded.spec, relations, catalog.float_stays)
    spec = sharded.spec
    labels = tuple(dict.fromkeys(x for term in spec.inputs for x in term))
    sizes = [r.node.schema.size for r in relations]
    cells = dict(zip(labels, cell_labels(sharded, [n for n, _ in mesh.axes], sizes), strict=True))
    operands = []
    for relation, term, axes in zip(relations, spec.inputs, sharded.inputs, strict=True):
        is_read_there = axes == tuple(cells[x] for x in term) and len(set(term)) == len(term)
        is_free = isinstance(relation.node, Input) and not relation.node.settled
        if not (is_read_there and is_free):
            relation = _placed(relation, [c.key or "" for c in _keys(relation)], axes, mesh)
        operands.append(relation)
    sums = einsum_relation(spec, operands, catalog.float_stays)
    assert isinstance(sums.node, EinSum)
    grid = grid_of(mesh, labels, tuple(cells.values()))
    summed = replace(sums, node=replace(sums.node, grid=grid))
    return _placed(summed, spec.output, sharded.output, mesh)


def _placed(relation: Relation, keys: Sequence[str], axes: Axes, mesh: Mesh) -> Relation:
    """The relation at the sites that mesh axes of its keys determine."""
    node, labels = relation.node, tuple(k.name for k in relation.node.schema.keys)
    by_key = dict(zip(keys, axes, strict=True))
    in_order = tuple(by_key.get(k, ()) for k in labels)
    grid, layout = grid_of(mesh, labels, in_order), Layout(mesh, placement(mesh, in_order))
    if isinstance(node, Input) and node.lies is not None and node.lies.layout == layout:
        return relation
    if isinstance(node, EinSum) and node.grid == grid:  # it is computed there
        return relation
    bounds = [Axis(k.name, k.lo, k.hi) for k in node.schema.keys]
    copy = view(Operand(node, labels), bounds, labels)
    return replace(relation, node=replace(copy, grid=grid))


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
