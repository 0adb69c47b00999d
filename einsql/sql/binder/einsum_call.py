"""The table function EINSUM('ij,jk->ik', x, y), in the notation of NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, valid
from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Expr, Input, Label, Operand, Output, Value
from einsql.ir.einsum.graph_rewriting import fresh, view
from einsql.ir.einsum.kept_sums import (
    PART,
    divided,
    keeps_parts,
    parts_of,
    sum_over_first_key,
    without_true_flags,
)
from einsql.ir.einsum.notation import Spec, parse_spec
from einsql.ir.einsum.sharded_notation import Axes, ShardedSpec, cell_labels, grid_of, parse_sharded
from einsql.ir.layout import Layout, Mesh, placement
from einsql.sql.binder.aggregates import Aggregation
from einsql.sql.binder.context import Binder
from einsql.sql.binder.domain import Domain
from einsql.sql.binder.einsum_algebra import SUM_OF_PRODUCTS, Algebra
from einsql.sql.binder.project import project
from einsql.sql.macros.expansion import MacroExpander
from einsql.sql.parser.positions import position, positioned
from einsql.sql.parser.sql_text import as_sql
from einsql.sql.scope.relation import Column, Relation, as_elements, known_bounds
from einsql.sql.typing.typed_expr import Typed


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

    `combine := 'add'` and `reduce := 'min'` set other operations than product and sum. With
    `sharded := true` the labels of the specification carry mesh axes, and a mesh axis without a
    label leaves the result unreduced.

    Raises:
        ProgrammingError: Ranks or bounds are incompatible, an argument is not a tensor's name, an
            operation is unknown or does not accept the values, or mesh axes contradict each other.
        NotSupportedError: A reduction other than a sum stays unreduced.
    """
    at = position(call)
    args = [a for a in call.expressions if not isinstance(a, exp.PropertyEQ)]
    settings = [a for a in call.expressions if isinstance(a, exp.PropertyEQ)]
    options = _Options.of(settings, query.macros)
    if not args or not isinstance(args[0], exp.Literal) or not args[0].is_string:
        raise ProgrammingError("EINSUM needs its expression as text first", position=at)
    relations: list[Relation] = []
    for arg in args[1:]:
        if isinstance(arg, exp.Subquery):
            relations.append(query.bind(arg))
        elif isinstance(arg, exp.Column) and not arg.table:
            relation = query.named(arg.name, arg)
            relations.append(as_elements(relation, f"{arg.name} in EINSUM", arg))
        elif isinstance(arg, exp.Func):
            relations.append(as_elements(query.table_function(arg), "A call in EINSUM", arg))
        else:
            raise ProgrammingError(
                "EINSUM takes names of tensors or subqueries", position=position(arg) or at
            )
    text, ranks = args[0].name, [len(_keys(r)) for r in relations]
    try:
        if options.sharded:
            return _sharded(query, text, relations, options.algebra)
        spec = parse_spec(text, ranks)
        return einsum_relation(spec, relations, query.catalog.float_stays, options.algebra)
    except Error as error:
        start = position(args[0])
        inside = None if start is None or error.position is None else start + 1 + error.position
        error.position = at if inside is None else inside
        raise


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a call.

    Attributes:
        sharded: Whether labels carry mesh axes.
        algebra: The operations.
    """

    sharded: bool = False
    algebra: Algebra = SUM_OF_PRODUCTS

    @classmethod
    def of(cls, options: Sequence[exp.PropertyEQ], macros: MacroExpander) -> _Options:
        """Returns the options that a call sets.

        Args:
            options: The options.
            macros: Expands calls of the user's functions.

        Raises:
            ProgrammingError: There is no such option, or its value has the wrong type.
        """
        known = cls()
        for option in options:
            name, setting = option.name.lower(), option.expression
            with positioned(option):
                if name == "sharded" and isinstance(setting, exp.Boolean):
                    known = replace(known, sharded=bool(setting.this))
                elif name in ("combine", "reduce") and _is_text(setting):
                    names = known.algebra.combine, known.algebra.reduce
                    by = dict(zip(("combine", "reduce"), names, strict=True)) | {name: setting.name}
                    known = replace(known, algebra=Algebra.named(**by, macros=lambda: macros))
                else:
                    raise ProgrammingError(
                        f"EINSUM has no option {option.name} := {as_sql(setting)}",
                        hint="combine := 'add', reduce := 'min' set the operations; "
                        "sharded := true reads mesh axes: EINSUM('b_data e, e f -> b_data f', x, "
                        "w, sharded := true).",
                    )
        return known


def _is_text(setting: exp.Expr) -> bool:
    return isinstance(setting, exp.Literal) and bool(setting.is_string)


def _sharded(query: Binder, text: str, relations: Sequence[Relation], algebra: Algebra) -> Relation:
    """Binds a specification with mesh axes; at one site the axes have no effect.

    Raises:
        ProgrammingError: See `bind_einsum`; the position is the offset in the specification.
        NotSupportedError: A reduction other than a sum stays unreduced.
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
        return einsum_relation(sharded.spec, relations, catalog.float_stays, algebra)
    waiting = [u for u in (sharded.unreduced, *sharded.unreduced_inputs) if u.axes]
    if waiting and algebra != SUM_OF_PRODUCTS:
        raise NotSupportedError(
            "Only a sum of products stays unreduced",
            hint="Complete the result: leave its axis out.",
            position=waiting[0].at,
        )
    sharded, relations = _over_parts(sharded, relations, mesh)
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
    sums = einsum_relation(spec, operands, catalog.float_stays, algebra)
    assert isinstance(sums.node, EinSum)
    grid = grid_of(mesh, labels, tuple(cells.values()))
    if not sharded.unreduced.axes:
        summed = replace(sums, node=replace(sums.node, grid=grid))
        return _placed(summed, spec.output, sharded.output, mesh)
    query.keeps_sums = True
    plain = without_true_flags(replace(sums.node, grid=grid))
    return _unreduced(replace(sums, node=plain), sharded, cells, mesh)


def _over_parts(
    sharded: ShardedSpec, relations: Sequence[Relation], mesh: Mesh
) -> tuple[ShardedSpec, list[Relation]]:
    """Replaces an operand that is unreduced by its parts, with a label that numbers them.

    Raises:
        ProgrammingError: The operand is reduced along the axes, or is no sum of floats.
        NotSupportedError: Several operands are unreduced; their product is no sum of products of
            parts.
    """
    unreduced = [(n, u) for n, u in enumerate(sharded.unreduced_inputs) if u.axes]
    if len(unreduced) > 1:
        raise NotSupportedError(
            "A product of two unreduced tensors is no sum over their parts",
            hint="Complete one of them first: leave its axis out.",
            position=unreduced[1][1].at,
        )
    known = list(relations)
    for n, wanted in unreduced:
        parts = parts_of(relations[n].node, mesh)
        if parts is None or set(parts[1]) != set(wanted.axes):
            names = "nothing" if parts is None else ", ".join(parts[1])
            raise ProgrammingError(
                f"Operand {n + 1} is not unreduced over {', '.join(wanted.axes)}, but over {names}",
                hint="PARTIAL(SUM) OVER, or _axis after the arrow of an EINSUM, leaves a sum of "
                "FLOAT or DOUBLE values unreduced.",
                position=wanted.at,
            )
        node, over = parts
        key = Column(node.keys[0], DType.BIGINT, key=node.keys[0])
        known[n] = replace(relations[n], node=node, columns=(key, *relations[n].columns))
        spec = sharded.spec
        label = fresh(PART, (x for term in spec.inputs for x in term))
        terms, axes = list(spec.inputs), list(sharded.inputs)
        terms[n], axes[n] = (label, *terms[n]), (over, *axes[n])
        sharded = replace(sharded, spec=replace(spec, inputs=tuple(terms)), inputs=tuple(axes))
    return sharded, known


def _unreduced(
    summed: Relation, sharded: ShardedSpec, cells: Mapping[str, tuple[str, ...]], mesh: Mesh
) -> Relation:
    """The result of an expression whose sums over mesh axes wait for a reader.

    A sum of integers, or of values that may be NULL or absent, is completed if the result is not
    where the calls leave it.

    Raises:
        ProgrammingError: No label that the output lacks is cut along the axes.
        NotSupportedError: The sum over another label cannot be told from theirs.
    """
    spec, wanted, node = sharded.spec, sharded.unreduced, summed.node
    assert isinstance(node, EinSum)
    pending = {x: names for x, names in cells.items() if names and x not in spec.output}
    waiting = {name for names in pending.values() for name in names}
    reduced = [name for name in wanted.axes if name not in waiting]
    if reduced:
        raise ProgrammingError(
            f'The result is not unreduced over "{reduced[0]}"',
            hint="Only a label that the result lacks leaves a sum along its axis.",
            position=wanted.at,
        )
    label = next((x for x, names in pending.items() if set(wanted.axes) <= set(names)), None)
    if label is None:
        raise NotSupportedError(
            f"{' and '.join(wanted.axes)} cut different labels, and one sum can stay unreduced",
            hint="Complete the result over one of them: leave its axis out after the arrow.",
            position=wanted.at,
        )
    axes = [cells[key] for key in node.keys]
    by_name = dict(zip(spec.output, sharded.output, strict=True))
    asked = [by_name[key] for key in node.keys]
    over = tuple(name for name in cells[label] if name in wanted.axes)
    if len(pending) == 1 and over == cells[label] and axes == asked:
        return summed
    if not keeps_parts(node):
        return _placed(summed, spec.output, sharded.output, mesh)
    split = divided(node, label, prod(size for name, size in mesh.axes if name in over))
    part, *others = (a.label for a in split.axes if a.label not in cells or a.label == label)
    within = tuple(name for name in cells[label] if name not in over)
    cut = {**cells, label: (), part: over} | dict.fromkeys(others[:-1], within)
    labels = tuple(a.label for a in split.axes)
    grid_axes = [cut.get(x, ()) for x in labels]
    parts = replace(summed, node=replace(split, grid=grid_of(mesh, labels, grid_axes)))
    placed = _placed(parts, split.keys, (over, *asked), mesh)
    return replace(summed, node=sum_over_first_key(placed.node, mesh, (over, *asked)))


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


def einsum_relation(
    spec: Spec,
    relations: Sequence[Relation],
    float_stays: bool,
    algebra: Algebra = SUM_OF_PRODUCTS,
) -> Relation:
    """Builds the relation of a parsed einsum expression.

    Args:
        spec: The labels.
        relations: The operands.
        float_stays: Whether sums of FLOAT are FLOAT.
        algebra: The operations.

    Raises:
        ProgrammingError: A label has different bounds, an operand has hidden keys, or an operation
            does not accept the values.
    """
    domain, factors = _operands(spec, relations)
    output = spec.output
    aggregation = Aggregation(domain, output, bool(output), float_stays)
    total = algebra.reduced(algebra.combined(factors, float_stays), aggregation)
    first, *later = aggregation.finish()
    if algebra.has_state:
        return _projected(domain, output, total, [first, *later])
    assert isinstance(total.value, Value)
    renamed = tuple(
        Output("val", o.args, o.dtype, o.reduction, o.where)
        if o.name == total.value.field
        else Output(valid("val"), o.args, o.dtype, o.reduction, o.where)
        if o.name != PRESENT
        else o
        for o in first.outputs
    )
    summed = domain.node(output, renamed)
    columns = [Column(_column(k, output), DType.BIGINT, key=k) for k in output]
    return Relation(summed, (*columns, Column("val", summed.schema.dtype("val"), field="val")))


def _operands(spec: Spec, relations: Sequence[Relation]) -> tuple[Domain, list[Typed]]:
    """The domain of an expression's labels, and the value of each operand at a point.

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
    return domain, factors


def _projected(
    domain: Domain, output: tuple[str, ...], total: Typed, passes: Sequence[EinSum]
) -> Relation:
    """The relation of an aggregate that is computed from the results of one or two passes."""
    groups = Domain({k: domain.axes[k] for k in output})
    groups.attach(passes[0], output)
    for node in passes[1:]:
        groups.lookup(node, output)
    nowhere = exp.Null()  # the columns have no syntax of their own
    columns = [(_column(k, output), Typed(Label(k), DType.BIGINT), nowhere) for k in output]
    return project(groups, [*columns, ("val", total, nowhere)], ())
