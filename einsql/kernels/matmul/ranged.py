"""Products over a range of labels that scalars bound: `label <= scalar` in a guard.

Such a range is known when the node runs. A sum of products over the range is the same sum within
narrower bounds, which other kernels compute without a condition at each point. The value of a key
outside the range is arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.records import dataclass
from einsql.core.source_writer import FieldSource, Page
from einsql.ir.einsum.graph import Call, Const, EinSum, Expr, Label, Value, conj, conjuncts
from einsql.kernels.kernel import Arrays, Runner, Tick, WithWriter

KEPT = 64
"""Greatest number of ranges with cached kernels."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A comparison of a label with an integer expression of scalars.

    Attributes:
        label: The label.
        value: The expression.
        upper: Whether it is an upper bound of the label, or a lower bound.
        strict: Whether the label must differ from it.
    """

    label: str
    value: Expr
    upper: bool
    strict: bool

    def cut(self, lo: int, hi: int, operands: Sequence[Arrays]) -> tuple[int, int]:
        """Applies the limit to the bounds of the label."""
        at = _value(self.value, operands)
        if self.upper:
            return lo, max(lo, min(hi, at + (not self.strict)))
        return min(hi, max(lo, at + self.strict)), hi

    def write(self, page: Page, ends: list[str], operands: Sequence[FieldSource]) -> None:
        """Writes `cut`, which updates the names of a label's bounds."""
        lo, hi = ends
        at = _source(self.value, operands)
        if self.upper:
            text = at if self.strict else f"{at} + 1"
            ends[1] = page.line(f"max({lo}, min({hi}, {text}))")
        else:
            text = f"{at} + 1" if self.strict else at
            ends[0] = page.line(f"min({hi}, max({lo}, {text}))")


def limit_of(node: EinSum, term: Expr) -> Limit | None:
    """Converts a term of a guard to a limit of a free label; None if it is not a limit."""
    if not isinstance(term, Call) or term.fn not in ("lt", "le"):
        return None
    a, b = term.args
    for label, value, upper in ((a, b, True), (b, a, False)):
        if isinstance(label, Label) and node.axis(label.name).define is None:
            known = _is_scalar(value, node)
            return Limit(label.name, value, upper, term.fn == "lt") if known else None
    return None


def _is_scalar(e: Expr, node: EinSum) -> bool:
    if isinstance(e, Value):
        return not node.operands[e.operand].labels and e.dtype.is_integer
    if isinstance(e, Call):
        known = e.fn in ("greatest", "least", "cast") and e.dtype.is_integer
        if not known or not all(_is_scalar(a, node) for a in e.args):
            return False
        return e.fn != "cast" or e.dtype.range[1] >= e.args[0].dtype.range[1]
    return isinstance(e, Const) and e.dtype.is_integer


def _value(e: Expr, operands: Sequence[Arrays]) -> int:
    if isinstance(e, Value):
        return int(operands[e.operand][e.field])
    if isinstance(e, Const):
        return int(e.value)
    assert isinstance(e, Call)
    args = [_value(a, operands) for a in e.args]
    return args[0] if e.fn == "cast" else max(args) if e.fn == "greatest" else min(args)


def _source(e: Expr, operands: Sequence[FieldSource]) -> str:
    """Python source of `_value`."""
    if isinstance(e, Value):
        return f"int({operands[e.operand].array(e.field)})"
    if isinstance(e, Const):
        return repr(int(e.value))
    assert isinstance(e, Call)
    args = [_source(a, operands) for a in e.args]
    if e.fn == "cast":
        return args[0]
    return f"{'max' if e.fn == 'greatest' else 'min'}({', '.join(args)})"


def without_limits(node: EinSum) -> tuple[EinSum, tuple[Limit, ...]] | None:
    """Splits the limits from a node's guard; None if there are none."""
    limits: list[Limit] = []
    kept: list[Expr] = []
    for term in conjuncts(node.guard):
        limit = limit_of(node, term)
        if limit is None:
            kept.append(term)
        else:
            limits.append(limit)
    if not limits:
        return None
    return replace(node, guard=conj(*kept)), tuple(limits)


def over_ranges(
    node: EinSum, limits: Sequence[Limit], compile_node: Callable[[EinSum], Runner]
) -> Runner:
    """Creates a runner of sums within limits; kernels are compiled on each range's first use.

    Args:
        node: The node without the limits; its outputs are float sums.
        limits: The limits of its labels. Keys beyond their limits have no terms.
        compile_node: Compiles a node.
    """
    known: dict[tuple[tuple[int, int], ...], Runner] = {}
    summed = [m for m in limits if m.label not in node.keys]
    labels = list(dict.fromkeys(m.label for m in summed))
    keys = [(node.keys.index(m.label), node.axis(m.label), m) for m in limits if m not in summed]

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        fields = within(operands, tick)
        for n, axis, m in keys:
            lo, hi = m.cut(axis.lo, axis.hi, operands)
            for name, array in fields.items():
                beyond = slice(hi - axis.lo, None) if m.upper else slice(0, lo - axis.lo)
                at = (slice(None),) * n
                if array[(*at, beyond)].size:
                    fields[name] = array = array if array.flags.writeable else array.copy()
                    array[(*at, beyond)] = 0
        return fields

    def within(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        bounds = {x: ((a := node.axis(x)).lo, a.hi) for x in labels}
        for m in summed:
            bounds[m.label] = m.cut(*bounds[m.label], operands)
        return chosen(tuple(bounds.values()))(operands, tick)

    def chosen(key: tuple[tuple[int, int], ...]) -> Runner:
        """The runner for specific bounds of the labels."""
        runner = known.get(key)
        if runner is None:
            bounds = dict(zip(labels, key, strict=True))
            axes = tuple(
                replace(a, lo=bounds[a.label][0], hi=bounds[a.label][1]) if a.label in bounds else a
                for a in node.axes
            )
            if len(known) >= KEPT:
                known.pop(next(iter(known)))
            runner = known[key] = compile_node(replace(node, axes=axes))
        return runner

    def write(page: Page, operands: Sequence[FieldSource]) -> dict[str, str] | None:
        if keys:
            return None
        ends = {x: [str((a := node.axis(x)).lo), str(a.hi)] for x in labels}
        for m in summed:
            m.write(page, ends[m.label], operands)
        key = "".join(f"({lo}, {hi}), " for lo, hi in ends.values())
        arguments = "".join(f"{o.whole}, " for o in operands)
        call = page.line(f"{page.held(chosen, 'f')}(({key}))(({arguments}), {page.tick})")
        return {o.name: page.line(f"{call}[{o.name!r}]") for o in node.outputs}

    return WithWriter(run, write)
