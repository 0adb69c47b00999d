"""Reverse mode over a graph: the adjoint of every field that a loss depends on.

The adjoint of a field is the derivative of the loss by each of its elements: a node with
the same keys and one value, or a constant. It is the sum of the contributions of every
operand that reads the field, and 0 for elements that no point reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.errors import ProgrammingError
from einsql.ir.autodiff import domains
from einsql.ir.autodiff.domains import VALUE, Points, summed
from einsql.ir.autodiff.expressions import derivative
from einsql.ir.autodiff.forms import factored, is_contraction
from einsql.ir.autodiff.parts import as_node, in_parts, replaced
from einsql.ir.autodiff.paths import refuse_choices, shown
from einsql.ir.autodiff.shifts import cancels
from einsql.ir.autodiff.signs import FINITE, POSITIVE, Knowledge
from einsql.ir.autodiff.terms import Term, added, wider
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Node,
    Operand,
    Output,
    Value,
    conjuncts,
    subexpressions,
    walk,
)
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.ir.functions import REDUCTIONS, is_rounded

Adjoint = Const | EinSum
"""A node with one field, or the constant that is the adjoint of every element."""


@dataclass(frozen=True, slots=True)
class Seed:
    """The adjoint of an output's argument at each point of its node.

    Attributes:
        adjoint: The adjoint of the output's argument at the point.
        of_output: The adjoint of the output.
        operands: The node's operands and the operands of the adjoint.
        itself: The number of the operand for the node itself.
    """

    adjoint: Term
    of_output: Term
    operands: tuple[Operand, ...]
    itself: int


@dataclass
class Backward:
    """The backward pass of one loss, shared by the gradients of all its sources.

    Attributes:
        loss: A node without keys.
        value: The loss's float field.
        gradients: The gradients computed so far.
    """

    loss: Node
    value: str
    gradients: list[EinSum] = field(default_factory=list)
    _nodes: list[Node] = field(init=False)
    _readers: dict[int, list[EinSum]] = field(init=False)
    _forms: dict[int, EinSum] = field(default_factory=dict)
    _adjoints: dict[tuple[int, str], Adjoint | None] = field(default_factory=dict)
    _seeds: dict[tuple[int, str], Seed | None] = field(default_factory=dict)
    _known: Knowledge = field(default_factory=Knowledge)

    def __post_init__(self) -> None:
        self._nodes = []
        self._readers = {}
        for node in walk(self.loss):
            factorization = factored(node) if isinstance(node, EinSum) else None
            if factorization is not None:
                self._forms[id(node)] = factorization[1]
                self._nodes += factorization[0]
            self._nodes.append(node)
        for node in self._nodes:
            if isinstance(node, EinSum):
                for o in node.outputs:  # producers first, which avoids deep recursion
                    self._known.of_field(node, o.name)
                form = self._forms.get(id(node), node)
                for source in {id(o.source): o.source for o in form.operands}.values():
                    self._readers.setdefault(id(source), []).append(node)

    def reads(self, source: Node) -> bool:
        """True if the loss is computed from a node."""
        return any(n is source for n in self._nodes)

    def uses(self, other: Backward) -> bool:
        """True if the loss is computed from a gradient of another loss."""
        return any(n is gradient for gradient in other.gradients for n in self._nodes)

    def gradient(self, source: Node) -> EinSum:
        """The derivative of the loss by every element of a node that it reads.

        Returns:
            A node with the source's keys and float fields; fields of 16-bit types become FLOAT.
            It has the same elements as the source.

        Raises:
            ProgrammingError: An operation between the source and the loss has no derivative.
        """
        refuse_choices(self._nodes, self.loss, self.value, source)
        after = {id(source)}
        for node in self._nodes:
            form = self._forms.get(id(node), node)
            if isinstance(form, EinSum) and any(id(o.source) in after for o in form.operands):
                after.add(id(node))
        for node in reversed(self._nodes):  # readers first, which avoids deep recursion
            if id(node) in after:
                for f in node.schema.fields:
                    if f.dtype.is_float:
                        self._adjoint(node, f.name)
        self.gradients.append(self._shown(source))
        return self.gradients[-1]

    def _shown(self, source: Node) -> EinSum:
        axes, labels = _axes(source)
        operands: list[Operand] = []
        outputs: list[Output] = []
        for f in source.schema.values:
            if f.dtype.is_float:
                dtype = wider(f.dtype, f.dtype)
                adjoint = self._adjoint(source, f.name) or Const(0.0, dtype)
                outputs.append(Output(f.name, (_read(adjoint, labels, operands),), dtype))
        guard: Expr = TRUE
        if source.schema.has(PRESENT):
            guard = Value(len(operands), PRESENT, DType.BOOLEAN)
            operands.append(Operand(source, labels))
            outputs.append(Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or"))
        of = source.name if isinstance(source, Input) else " and ".join(source.origins)
        origins = (f"gradient by {of}",)
        return EinSum(axes, tuple(operands), guard, labels, tuple(outputs), origins=origins)

    # ---- adjoints of fields

    def _adjoint(self, node: Node, name: str) -> Adjoint | None:
        """The adjoint of a node's field; None is 0 everywhere."""

        def total() -> Adjoint | None:
            dtype = wider(node.schema.dtype(name), node.schema.dtype(name))
            parts = [] if self._cancels(node, name) else list(self._parts(node, name))
            if node is self.loss and name == self.value:
                parts.append(Const(1.0, dtype))
            adjoint = _added(node, parts, dtype)
            if isinstance(adjoint, EinSum):
                self._known.trust(adjoint, VALUE, FINITE)
            return adjoint

        return memoized(self._adjoints, (id(node), name), total)

    def _cancels(self, node: Node, name: str) -> bool:
        """True for an extreme that shifts terms of the loss by an amount that cancels."""
        if not isinstance(node, EinSum) or node is self.loss:
            return False
        output = next(o for o in node.outputs if o.name == name)
        shift = output.reduction in ("max", "min")
        return shift and cancels(self._nodes, node, name, self.loss, self.value)

    def _parts(self, node: Node, name: str) -> Iterator[Adjoint]:
        """The contributions to the adjoint of a field, one for each operand that reads it."""
        dtype = node.schema.dtype(name)
        for reader in self._readers.get(id(node), []):
            form = self._forms.get(id(reader), reader)
            for operand in dict.fromkeys(o for o in form.operands if o.source is node):
                same = [n for n, o in enumerate(form.operands) if o == operand]
                for o in form.outputs:
                    points = self._through(reader, form, o, [Value(n, name, dtype) for n in same])
                    contribution = None if points is None else summed(points, operand)
                    if contribution is not None:
                        yield contribution

    def _through(self, node: EinSum, form: EinSum, o: Output, leaves: list[Value]) -> Points | None:
        """The contributions of a node's points to the adjoint of an operand.

        Args:
            node: The node.
            form: An equal node over other operands (see `factored`).
            o: An output of `form`.
            leaves: The values of the operand.

        Returns:
            The contributions; None if the output does not depend on the operand.
        """
        if not o.dtype.is_float or not any(e in leaves for e in subexpressions(o.args[0])):
            return None
        seed = self._seed(node, form, o)
        if seed is None:
            return None
        terms = (derivative(o.args[0], leaf, seed.adjoint) for leaf in leaves)
        total = added(t for t in terms if t is not None)
        if total is None:
            return None
        if o.reduction is None:  # reading the stored result costs no more than computing it
            stored = Value(seed.itself, o.name, o.dtype)
            total = Term(replaced(total.expr, o.args[0], stored))
        is_product = o.reduction is not None and is_contraction(total.expr, seed.operands)
        finite = is_product or self._known.of_expr(total.expr, seed.operands).finite
        if seed.of_output.number is None and not finite:
            # Elements that a later filter drops have adjoint 0, even if this yields 0 · inf.
            nothing = seed.of_output.equal(0).both(total.is_nan())
            total = nothing.choose(0, total)
        return in_parts(Points(node.axes, seed.operands, node.guard, total, o.where))

    # ---- adjoints of reduced values

    def _seed(self, node: EinSum, form: EinSum, o: Output) -> Seed | None:
        """The adjoint of an output's expression at every point of its node."""
        known = (id(node), o.name)
        if known not in self._seeds:
            adjoint = self._adjoint(node, o.name)
            self._seeds[known] = (
                None if adjoint is None else _seed(node, form, o, adjoint, self._known)
            )
        return self._seeds[known]


def _seed(node: EinSum, form: EinSum, o: Output, adjoint: Adjoint, known: Knowledge) -> Seed:
    operands = [*form.operands, Operand(node, node.keys)]
    term = Term(_read(adjoint, node.keys, operands))
    itself = len(form.operands)
    if o.reduction is None:
        return Seed(term, term, tuple(operands), itself)
    rule = REDUCTIONS[o.reduction].derivative
    if isinstance(rule, str):
        raise ProgrammingError(
            f"There is no gradient through {shown(o.reduction)}: {rule}",
            hint="STOP_GRADIENT(…) around it makes it count as a constant.",
        )
    group = Group(form, o, term, operands, itself)
    if o.reduction in ("min", "max") and any(
        isinstance(e, Call) and is_rounded(e.fn) for e in subexpressions(o.args[0])
    ):
        group.store()
    of_argument = rule(group)
    assert isinstance(of_argument, Term)
    return Seed(of_argument, term, group.finish(known), itself)


@dataclass
class Group:
    """A reduced output at a point of its node, the argument of derivatives of reductions.

    Attributes:
        adjoint: The adjoint of the reduced value.
    """

    _node: EinSum
    _output: Output
    adjoint: Term
    _operands: list[Operand]
    _itself: int
    _totals: list[Output] = field(default_factory=list)
    _stored: tuple[Term, Term] | None = None

    @property
    def value(self) -> Term:
        """The point's contribution to the reduction."""
        return Term(self._output.args[0]) if self._stored is None else self._stored[0]

    @property
    def result(self) -> Term:
        """The reduced value."""
        if self._stored is not None:
            return self._stored[1]
        return Term(Value(self._itself, self._output.name, self._output.dtype))

    def store(self) -> None:
        """Computes the contributions once, so that one of them equals the extreme bit by bit.

        Kernels of different kinds round functions such as EXP differently.
        """
        n, o, operands = self._node, self._output, self._operands
        points = domains.Points(n.axes, tuple(operands), n.guard, Term(o.args[0]), o.where)
        if can_raise(o.args[0], bounds_of(points)):
            return
        contribution = as_node(points, o.args[0], operands)
        output = Output("extreme", (contribution,), o.dtype, o.reduction, o.where)
        extreme = domains.node(n.axes, operands, n.guard, n.keys, [output])
        reduced = Value(len(operands), output.name, o.dtype)
        operands.append(Operand(extreme, n.keys))
        self._stored = Term(contribution), Term(reduced)

    def asks(self, condition: Term) -> bool:
        """True if the output reduces only points that satisfy a condition."""
        return condition.expr in conjuncts(self._output.where)

    def total(self, reduction: str, value: Term | int, where: Term) -> Term:
        """Another reduction of the group's points with a condition; ints are BIGINT summands."""
        e = value.expr if isinstance(value, Term) else Const(value, DType.BIGINT)
        dtype = self._output.dtype if isinstance(value, Term) else DType.BIGINT
        condition = where.expr
        if self._output.where != TRUE:
            condition = Call("and", (self._output.where, condition), DType.BOOLEAN)
        name = f"{reduction}_{len(self._totals)}"
        self._totals.append(Output(name, (e,), dtype, reduction, condition))
        return Term(Value(len(self._operands), name, dtype))

    def finish(self, known: Knowledge) -> tuple[Operand, ...]:
        """The operands that the value's adjoint may read."""
        if not self._totals:
            return tuple(self._operands)
        n = self._node
        totals = domains.node(n.axes, self._operands, n.guard, n.keys, self._totals)
        for o in self._totals:
            if o.dtype.is_integer:  # counts are divisors only in groups with counted points
                known.trust(totals, o.name, POSITIVE)
        return (*self._operands, Operand(totals, n.keys))


def _read(adjoint: Adjoint, labels: tuple[str, ...], operands: list[Operand]) -> Expr:
    """An adjoint as an expression; a node becomes an additional operand."""
    if isinstance(adjoint, Const):
        return adjoint
    operands.append(Operand(adjoint, labels))
    return Value(len(operands) - 1, VALUE, adjoint.outputs[0].dtype)


def _axes(node: Node) -> tuple[tuple[Axis, ...], tuple[str, ...]]:
    """An axis for each key of a node, and the axes' labels."""
    keys = node.schema.keys
    return tuple(Axis(k.name, k.lo, k.hi) for k in keys), tuple(k.name for k in keys)


def _added(node: Node, parts: list[Adjoint], dtype: DType) -> Adjoint | None:
    """The sum of adjoints of a node's field, in one node and in the field's type."""
    axes, labels = _axes(node)
    operands: list[Operand] = []
    terms = [Term(_read(part, labels, operands)) for part in parts]
    if len(parts) == 1 and terms[0].dtype is dtype:
        return parts[0]
    total = added(terms)
    if total is None:
        return None
    value = total.cast(dtype).expr
    if isinstance(value, Const):
        return value
    return EinSum(axes, tuple(operands), TRUE, labels, (Output(VALUE, (value,), dtype),))
