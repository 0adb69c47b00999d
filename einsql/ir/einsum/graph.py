"""Language 1: the EinSum graph, the logical meaning of a statement.

A node evaluates scalar expressions over operand values and keys at every point of its domain
where the guard is true. It reduces them over the labels that are not keys of the result
(extended Einstein summation, EinDecomp §3). Presence and validity are ordinary BOOLEAN
outputs, so NULL and absent keys need no separate mechanism.

The value of a *derived* axis is computed from the other axes. Where the value is outside the
axis's bounds, the point does not exist. An operand read through a derived axis is a gather. A
result keyed by a derived axis is a segment reduction. An affine derived axis is a convolution, a
shift or a pooling window.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING

from einsql.core.dag import producers_first
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.pattern import Pattern
from einsql.core.unknowns import spelling
from einsql.ir.hints import GridAxis

if TYPE_CHECKING:
    from einsql.ir.layout import Tiles

Scalar = bool | int | float

SCALAR = "value"
"""The name of the single field of a `ParameterInput`."""


@dataclass(frozen=True, slots=True)
class Const:
    """A literal. Equality compares type and spelling: -0.0 differs from 0.0, NaN equals NaN."""

    value: Scalar = field(compare=False)
    dtype: DType
    spelling: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelling", spelling(self.value))

    @property
    def integer(self) -> int:
        """The value of a constant of an integer type."""
        return self.value  # type: ignore[return-value]  # of this type


@dataclass(frozen=True, slots=True)
class Label:
    """The value of an axis at the current point, a BIGINT."""

    name: str

    @property
    def dtype(self) -> DType:
        """BIGINT, the type of keys in every expression."""
        return DType.BIGINT


@dataclass(frozen=True, slots=True)
class Value:
    """A field of the node's operand number `operand` at the current point.

    Attributes:
        within: The inclusive bounds of all elements of an integer field; None if only those of its
            type are known.
    """

    operand: int
    field: str
    dtype: DType
    within: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of the statement, numbered from 1, with a value known at run time.

    Only unbound expressions contain it. A node reads the scalar `ParameterInput` instead.
    """

    number: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function of `einsql.ir.functions.SCALARS`; `dtype` is its result type."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType


Expr = Const | Label | Value | Param | Call

TRUE = Const(True, DType.BOOLEAN)
FALSE = Const(False, DType.BOOLEAN)


@dataclass(frozen=True, slots=True)
class Axis:
    """A label of the domain with values in `[lo, hi)`, free or derived."""

    label: str
    lo: int
    hi: int
    define: Expr | None = None

    @property
    def extent(self) -> int:
        """The number of the label's values."""
        return max(0, self.hi - self.lo)


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A stored tensor, a file or an array, by name; other kinds of inputs are subclasses.

    Attributes:
        parts: The declared number of parts of each key over the sites; None if none is
            declared, all 1 for a copy at every site.
        order: Positions of the keys in the order in which the blocks of a declared cut are
            numbered, the slowest first.
        lies: The placement: stored tiles with their sites. They cover every key, once except for
            copies. They take precedence over the declared cut.
        sparse: Whether its fields may be a `Sparse`, which stores only some elements.
        constant: Whether nothing has changed the tensor since it was made. Ranks keep it in the
            tiles of its readers, besides its own; see `keepable`.
        pattern: Where a sparse tensor has elements; None at one site, and if it is not known.
    """

    name: str
    schema: Schema
    parts: tuple[int, ...] | None = None
    order: tuple[int, ...] = ()
    lies: Tiles | None = None
    sparse: bool = False
    constant: bool = False
    pattern: Pattern | None = None

    @property
    def settled(self) -> bool:
        """True if the tensor's sites are fixed; otherwise the readers' sites load it."""
        return self.lies is not None or self.parts is not None


@dataclass(frozen=True, slots=True, eq=False)
class ParameterInput(Input):
    """A scalar that the host computes from parameters before a plan runs."""

    @classmethod
    def of(cls, text: str, dtype: DType) -> ParameterInput:
        """The scalar of an expression of parameters.

        Args:
            text: The expression as EXPLAIN shows it, such as `?1 + 1`.
            dtype: The type of the scalar.
        """
        return cls(text, Schema((), (Field(SCALAR, dtype),)))


@dataclass(frozen=True, slots=True, eq=False)
class PartInput(Input):
    """The result of another part of the statement, which is computed before this part."""


@dataclass(frozen=True, slots=True, eq=False)
class TableInput(Input):
    """A table of DuckDB with one element for each row."""

    @classmethod
    def of(cls, table: str, schema: Schema) -> TableInput:
        """The rows of a table; the name differs from those of tensors."""
        return cls(f"{table.lower()} (table)", schema)


@dataclass(frozen=True, slots=True)
class Operand:
    """A node read with one label per key of its schema; a repeated label is a diagonal.

    The bounds of an axis are within the bounds of every key that it indexes.
    """

    source: Node
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A field of the result: `args` are evaluated where `where` is true, then reduced.

    Without a reduction every free label is a key of the result and `where` is TRUE; a
    derived label may be omitted (a gather: the free labels determine its value).
    Where the point does not exist (guard false, derived label out of bounds) the value
    is arbitrary; a node in which that can happen has a PRESENT output.
    """

    name: str
    args: tuple[Expr, ...]
    dtype: DType
    reduction: str | None = None
    where: Expr = TRUE


class _Derived:
    """A slot for values derived from a node's fields; copies and pickles derive them again."""

    __slots__ = ("_schema", "_sparse")
    _schema: Schema
    _sparse: bool


@dataclass(frozen=True, slots=True, eq=False)
class EinSum(_Derived):
    """One extended Einstein summation; `keys` are labels of the domain, in result order.

    Attributes:
        hint: Labels with the parts into which several sites cut them; it does not change
            the result.
        grid: The requested grid of all sites, the slowest axis first; empty if placement is free.
            It does not change the result.
        origins: The parts of the statement that it computes, such as "softmax in p", for EXPLAIN;
            empty for a node of its reader's part.
    """

    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    guard: Expr
    keys: tuple[str, ...]
    outputs: tuple[Output, ...]
    hint: tuple[tuple[str, int], ...] = ()
    grid: tuple[GridAxis, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """The schema of the result."""
        try:
            return self._schema
        except AttributeError:
            axes = {a.label: a for a in self.axes}
            keys = tuple(Key(k, axes[k].lo, axes[k].hi) for k in self.keys)
            schema = Schema(keys, tuple(Field(o.name, o.dtype) for o in self.outputs))
            object.__setattr__(self, "_schema", schema)
            return schema

    @property
    def sparse(self) -> bool:
        """Whether its fields may be a `Sparse`: its keys are labels of sparse operands."""
        try:
            return self._sparse
        except AttributeError:
            few = any(o.source.sparse for o in self.operands) and _keeps_sparse(self)
            object.__setattr__(self, "_sparse", few)
            return few

    @property
    def reduced(self) -> tuple[str, ...]:
        """The labels over which the node reduces."""
        return tuple(a.label for a in self.axes if a.label not in self.keys)

    @property
    def points(self) -> int:
        """The number of points of the free domain."""
        return prod(a.extent for a in self.axes if a.define is None)

    @property
    def is_elementwise(self) -> bool:
        """True if nothing is reduced."""
        return all(o.reduction is None for o in self.outputs)

    def axis(self, label: str) -> Axis:
        """The axis of a label.

        Raises:
            KeyError: The domain has no such label.
        """
        for a in self.axes:
            if a.label == label:
                return a
        raise KeyError(label)


Node = Input | EinSum

Roots = tuple[Node, ...]
"""The results of a graph, one for each tensor that its statement changes. No EinSum root is an
operand of another node; see `graph_rewriting.apart`."""


def stored_operands(node: EinSum) -> tuple[int, ...]:
    """The operands that may be sparse and whose absent elements make no point exist."""
    terms = conjuncts(node.guard)
    flags = {t.operand for t in terms if isinstance(t, Value) and t.field == PRESENT}
    return tuple(n for n in _sparse_operands(node) if n in flags)


def filled_operands(node: EinSum) -> tuple[int, ...]:
    """The other operands that may be sparse: every point exists without an element of theirs."""
    return tuple(sorted({*_sparse_operands(node)} - {*stored_operands(node)}))


def constant_labels(node: EinSum) -> set[str]:
    """The labels of a node that have one value, a constant within their bounds."""
    return {
        a.label
        for a in node.axes
        if isinstance(a.define, Const) and a.lo <= a.define.integer < a.hi
    }


def where_absent(expr: Expr, numbers: Container[int], flag: str = PRESENT) -> Expr:
    """An expression where operands have no element, as far as their flags decide it."""

    def folded(e: Expr) -> Expr:
        match e:
            case Value(field=name) if name == flag and e.operand in numbers:
                return FALSE
            case Call(fn="and"):
                return conj(*e.args)
            case Call(fn="or"):
                return disj(*e.args)
            case Call(fn="if", args=(Const() as condition, then, other)):
                return then if condition == TRUE else other
        return e

    return rewrite(expr, folded)


def _followed(axis: Axis) -> str:
    """The label from which an axis has a constant distance; empty if there is none."""
    match axis.define:
        case Call("add" | "sub", (Label() as label, Const())):
            return label.name
    return axis.label if axis.define is None else ""


def is_shift(node: EinSum) -> bool:
    """True for a map that only adds constants to keys of existing elements; see `shift-keys`."""
    if len(node.operands) != 1 or node.guard != Value(0, PRESENT, DType.BOOLEAN):
        return False
    labels, axes = node.operands[0].labels, {a.label: a for a in node.axes}
    free = sorted(x for x, a in axes.items() if a.define is None)
    is_moved = sorted(_followed(axes[x]) for x in labels) == free != sorted(labels)
    is_all = sorted(node.keys) == free and axes.keys() == {*free, *labels}
    return is_moved and is_all and all(map(_renames, node.outputs)) and node.schema.has(PRESENT)


def _renames(o: Output) -> bool:
    if o.name == PRESENT:
        return (o.args, o.where) == ((TRUE,), TRUE)
    return o.reduction is None and isinstance(o.args[0], Value) and o.args[0].field != PRESENT


def _sparse_operands(node: EinSum) -> Iterator[int]:
    """The operands that may be sparse and whose labels are different, and free or constants."""
    free = {a.label for a in node.axes if a.define is None} | constant_labels(node)
    for n, o in enumerate(node.operands):
        is_few = o.source.sparse and len(labels := set(o.labels)) == len(o.labels)
        if is_few and (labels <= free or is_shift(node)):
            yield n


PROJECTED = 2**22
"""Keys from which a projection of elements is sparse: they are sorted by their keys, which takes
longer than adding them in an array of this size (`python -m benchmarks.sparse_keys`)."""


def _keeps_sparse(node: EinSum) -> bool:
    stored, filled = stored_operands(node), filled_operands(node)
    labels = {x for n in stored or filled for x in node.operands[n].labels}
    if not node.keys or not all(k in labels for k in node.keys):
        return is_shift(node)
    if not _has_few_keys(node, stored or filled):
        return False
    if stored:
        return any(o.name == PRESENT for o in node.outputs)
    others = {n for n, o in enumerate(node.operands) if n not in filled and o.labels}
    absent = [where_absent(e, filled) for e in exprs(node)]
    in_filled = all(a.label in labels for a in node.axes)
    return in_filled and not any(labels_of(e) or operands_of(e) & others for e in absent)


def _has_few_keys(node: EinSum, numbers: tuple[int, ...]) -> bool:
    """Whether the elements of sparse operands have few of the keys of a node's result.

    Those of one operand do if the result has its keys, except those that have one value in a map.
    Those of matrices do as a matrix.
    """
    is_map = any(o.reduction is None for o in node.outputs)
    fixed = constant_labels(node) if is_map else set()
    keys = [set(node.operands[n].labels) - fixed for n in numbers]
    if any(own <= set(node.keys) for own in keys):
        return True
    if len(node.keys) < 2:
        return False
    is_of_matrices = len(node.keys) == 2 and all(len(own) == 2 for own in keys)
    return is_of_matrices or prod(node.axis(k).extent for k in node.keys) >= PROJECTED


def call(fn: str, dtype: DType, *args: Expr) -> Expr:
    """Builds a function call."""
    return Call(fn, args, dtype)


def conj(*terms: Expr) -> Expr:
    """AND over conditions, dropping TRUE and stopping at FALSE."""
    kept = dict.fromkeys(t for term in terms for t in conjuncts(term))
    return FALSE if FALSE in kept else _tree("and", list(kept), TRUE)


def cast(expr: Expr, dtype: DType) -> Expr:
    """The expression cast to another type."""
    return expr if expr.dtype is dtype else Call("cast", (expr,), dtype)


def bigint(number: int) -> Const:
    """A constant in the type of keys."""
    return Const(number, DType.BIGINT)


def disj(*terms: Expr) -> Expr:
    """OR over conditions, dropping FALSE and stopping at TRUE."""
    kept = dict.fromkeys(t for t in terms if t != FALSE)
    return TRUE if TRUE in kept else _tree("or", list(kept), FALSE)


def _tree(fn: str, terms: list[Expr], nothing: Expr) -> Expr:
    """A balanced tree of calls over all terms in order."""
    if len(terms) <= 1:
        return terms[0] if terms else nothing
    half = len(terms) // 2
    parts = _tree(fn, terms[:half], nothing), _tree(fn, terms[half:], nothing)
    return Call(fn, parts, DType.BOOLEAN)


def conjuncts(expr: Expr) -> Iterator[Expr]:
    """The terms of a conjunction, except TRUE."""
    if isinstance(expr, Call) and expr.fn == "and":
        for a in expr.args:
            yield from conjuncts(a)
    elif expr != TRUE:
        yield expr


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """The expression and its subexpressions, top down."""
    stack = [expr]
    while stack:
        e = stack.pop()
        yield e
        if isinstance(e, Call):
            stack.extend(reversed(e.args))


def labels_of(expr: Expr) -> set[str]:
    """Labels whose value the expression reads."""
    return {e.name for e in subexpressions(expr) if isinstance(e, Label)}


def operands_of(expr: Expr) -> set[int]:
    """Numbers of the operands whose fields the expression reads."""
    return {e.operand for e in subexpressions(expr) if isinstance(e, Value)}


def rewrite(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """Rebuilds an expression bottom-up, applying `visit` at every level."""
    if isinstance(expr, Call):
        args = tuple(rewrite(a, visit) for a in expr.args)
        if any(a is not b for a, b in zip(args, expr.args, strict=True)):
            expr = Call(expr.fn, args, expr.dtype)
    return visit(expr)


def exprs(node: EinSum) -> Iterator[Expr]:
    """Every top-level expression of a node."""
    for a in node.axes:
        if a.define is not None:
            yield a.define
    yield node.guard
    for o in node.outputs:
        yield from o.args
        yield o.where


def children(node: Node) -> tuple[Node, ...]:
    """The operands' nodes, in order."""
    return tuple(o.source for o in node.operands) if isinstance(node, EinSum) else ()


def walk(*roots: Node) -> list[Node]:
    """Every node of the graph once, producers before consumers."""
    return producers_first(roots, children)
