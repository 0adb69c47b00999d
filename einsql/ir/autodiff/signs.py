"""Facts about values: values that are never 0 and values that are finite.

Data may be infinite, as masks often are, and so may element-wise functions of them. Sums of
products are assumed to be finite: a matrix product over infinite elements gives NaN in both
passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from einsql.core.records import dataclass
from einsql.ir.autodiff.forms import is_contraction
from einsql.ir.autodiff.parts import once_each
from einsql.ir.einsum.graph import TRUE, Call, Const, EinSum, Expr, Node, Operand, Value
from einsql.ir.functions import REDUCTIONS


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about a number.

    Attributes:
        positive: The number is above 0.
        not_negative: The number is 0 or above.
        finite: The number is finite, assuming that sums of products are finite.
        maximum: The number is the largest of a group.
        below: The number is the distance to such a maximum. Its exponential never overflows, and at
            least one exponential of the group does not vanish.
    """

    positive: bool = False
    not_negative: bool = False
    finite: bool = False
    maximum: bool = False
    below: bool = False


FINITE = Known(finite=True)
POSITIVE = Known(positive=True, not_negative=True, finite=True)
_INCREASING = frozenset({"add", "mul", "div", "sqrt", "if", "greatest", "least"})
"""Functions whose result is positive if all their numeric arguments are positive."""
_NEVER_NEGATIVE = frozenset({"sqrt", "abs", "acosh"})
_UNSURE = frozenset(
    {
        "pow",
        "asin",
        "acos",
        "acosh",
        "atanh",
        "mod",
        "fmod",
        "tan",
        "lgamma",
        "sinh",
        "cosh",
        "exp",
    }
)
"""Functions that may be infinite, in addition to the cases of `_of_call`."""


@dataclass
class Knowledge:
    """Facts about the fields of a graph's nodes, inferred once per field.

    Sums have at least one summand, because empty groups have no rows.
    """

    _fields: dict[tuple[int, str], Known] = field(default_factory=dict)
    _nodes: list[Node] = field(default_factory=list)

    def trust(self, node: Node, name: str, known: Known) -> None:
        """Records facts about a field without proof."""
        self._nodes.append(node)
        self._fields[id(node), name] = known

    def of_field(self, node: Node, name: str) -> Known:
        """The facts about a field."""
        if not isinstance(node, EinSum):
            return Known(finite=not node.schema.dtype(name).is_float)
        if (id(node), name) not in self._fields:
            output = next(o for o in node.outputs if o.name == name)
            known = self.of_expr(output.args[0], node.operands)
            if output.reduction == "sum" and is_contraction(output.args[0], node.operands):
                known = replace(known, finite=True)
            if output.reduction is not None and output.where != TRUE:  # the group may be empty
                sums = output.reduction == "sum"
                known = Known(
                    not_negative=sums and known.not_negative, finite=sums and known.finite
                )
            if output.reduction is not None:
                known = replace(known, maximum=output.reduction == "max")
                if REDUCTIONS[output.reduction].reads_several:
                    known = Known()
            self._nodes.append(node)
            self._fields[id(node), name] = known
        return self._fields[id(node), name]

    def of_expr(self, expr: Expr, operands: Sequence[Operand]) -> Known:
        """The facts about an expression.

        Args:
            expr: An expression of any type; only numeric expressions have signs.
            operands: The operands to which the expression's values refer.
        """
        known: dict[int, Known] = {}
        for e in once_each(expr):
            if isinstance(e, Value):
                known[id(e)] = self.of_field(operands[e.operand].source, e.field)
            elif isinstance(e, Call):
                known[id(e)] = _of_call(e, [known[id(a)] for a in e.args])
            else:
                number = float(e.value) if isinstance(e, Const) else -1.0
                finite = abs(number) < float("inf")
                known[id(e)] = Known(positive=number > 0, not_negative=number >= 0, finite=finite)
        return known[id(expr)]


def _of_call(e: Call, args: Sequence[Known]) -> Known:
    if e.fn == "if":
        args = args[1:]
    finite = all(a.finite for a in args) and e.fn not in _UNSURE
    match e.fn:
        case "exp":
            return POSITIVE if args[0].finite and args[0].below else Known(not_negative=True)
        case "cosh":
            return Known(positive=True, not_negative=True)
        case "cast" | "stop_gradient":
            return args[0]
        case "div" | "idiv":
            finite &= args[1].positive
        case "ln" | "log2" | "log10":
            finite &= args[0].positive
        case "sqrt":
            finite &= args[0].not_negative
    both = e.fn in _INCREASING
    positive = both and all(a.positive for a in args)
    not_negative = e.fn in _NEVER_NEGATIVE or (both and all(a.not_negative for a in args))
    if e.fn == "add":
        positive = any(a.positive for a in args) and not_negative
    elif e.fn == "mul" and e.args[0] == e.args[1]:
        not_negative = True
    elif e.fn == "pow" and isinstance(e.args[1], Const) and e.args[1].value % 2 == 0:
        not_negative = True
        finite = args[0].finite and e.args[1].value >= 0
    below = e.fn == "sub" and args[1].maximum
    return Known(
        positive=positive, not_negative=not_negative or positive, finite=finite, below=below
    )
