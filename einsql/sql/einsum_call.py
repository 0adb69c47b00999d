"""EINSUM('ij,jk->ik', x, y): the notation of NumPy as a table function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.einsum import TRUE, Expr, Output, Value
from einsql.errors import ProgrammingError
from einsql.schema import PRESENT, DType, valid
from einsql.sql.aggregates import Aggregation
from einsql.sql.domain import Domain
from einsql.sql.scalar import position
from einsql.sql.scope import Column, Relation
from einsql.sql.typed import Typed, apply

if TYPE_CHECKING:
    from einsql.sql.query import QueryBinder


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed expression: one label per axis of each operand, and the output's labels."""

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]


def parse_spec(text: str, ranks: Sequence[int]) -> Spec:
    """Parses an einsum expression over operands of the given ranks.

    Labels are single letters, or words separated by spaces as in 'b s h, b t h -> b h s t'.
    Without `->` the output is every label that occurs once, in alphabetical order, behind
    the ellipsis's axes.

    Raises:
        ProgrammingError: The expression does not fit the operands.
    """
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ProgrammingError(
            f"EINSUM '{text}' has {len(terms)} operands, but {len(ranks)} are given"
        )
    long = any(len(part.split()) > 1 for part in (*terms, right))
    split = [_labels(t, long, text) for t in terms]
    covered = [_covered(labels, rank, text) for labels, rank in zip(split, ranks, strict=True)]
    widest = max(covered, default=0)
    dots = tuple(f".{n}" for n in range(widest))  # no label a user can write
    inputs = tuple(
        _spread(labels, dots[widest - n :]) for labels, n in zip(split, covered, strict=True)
    )
    known = [label for term in inputs for label in term]
    if arrow:
        output = _spread(_labels(right, long, text), dots)
        if "..." not in _labels(right, long, text) and widest:
            raise ProgrammingError(f"EINSUM '{text}' drops the axes of '...'")
    else:
        once = sorted({k for k in known if known.count(k) == 1 and k not in dots})
        output = (*dots, *once)
    for label in output:
        if label not in known:
            raise ProgrammingError(f"EINSUM output label '{label}' is in no operand of '{text}'")
        if output.count(label) > 1:
            raise ProgrammingError(f"EINSUM output label '{label}' is given twice in '{text}'")
    return Spec(inputs, output)


def _labels(term: str, long: bool, text: str) -> list[str]:
    before, dots, after = term.partition("...")
    parts: list[str] = []
    for n, piece in enumerate((before, after)):
        labels = piece.split() if long else list(piece.strip())
        for label in labels:
            if not (label.isalpha() or (long and label.isidentifier())):
                raise ProgrammingError(f"EINSUM '{text}' has the label '{label}'; use letters")
        parts += labels
        if n == 0 and dots:
            parts.append("...")
    return parts


def _covered(labels: list[str], rank: int, text: str) -> int:
    named = len([x for x in labels if x != "..."])
    if named > rank or (named < rank and "..." not in labels):
        raise ProgrammingError(
            f"EINSUM '{text}' names {named} axes of an operand of rank {rank}",
            hint="Give each axis a label, or write '...' for the rest.",
        )
    return rank - named


def _spread(labels: list[str], dots: tuple[str, ...]) -> tuple[str, ...]:
    out: list[str] = []
    for label in labels:
        out += dots if label == "..." else [label]
    return tuple(out)


def _column(label: str, output: Sequence[str]) -> str:
    """The column of a label: its own name, or d0, d1, … for the axes of '...'."""
    if not label.startswith("."):
        return label
    name = f"d{label[1:]}"
    while name in output:
        name += "_"
    return name


def bind_einsum(query: QueryBinder, call: exp.Anonymous) -> Relation:
    """Binds EINSUM(spec, tensor, …): the sum of products, one row per output key.

    Raises:
        ProgrammingError: Ranks or bounds do not fit, or an argument is no tensor name.
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
            relations.append(query.named(arg.name, arg))
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
    """Builds the relation of a parsed expression.

    Raises:
        ProgrammingError: A label has two bounds, or an operand has hidden keys.
    """
    domain = Domain()
    factors: list[Typed] = []
    for labels, relation in zip(spec.inputs, relations, strict=True):
        bounds = {k.name: (k.lo, k.hi) for k in relation.node.schema.keys}
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
    made = domain.node(output, renamed)
    columns = [Column(_column(k, output), DType.BIGINT, key=k) for k in output]
    return Relation(made, (*columns, Column("val", made.schema.dtype("val"), field="val")))
