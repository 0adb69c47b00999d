"""Sharing: equal nodes become one, up to the names of labels and fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from einsql.ir.einsum.graph import (
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Param,
    Roots,
    Value,
    walk,
)
from einsql.ir.einsum.graph_rewriting import map_exprs, map_values
from einsql.ir.einsum.states import has_order
from einsql.ir.functions import SCALARS
from einsql.optimizer.rewrite.rules import Rule

_Key = tuple[object, ...]
_Fields = Mapping[str, str]


def share(roots: Roots) -> tuple[Roots, int]:
    """Merges equal nodes, operands and outputs.

    Nodes are compared in a canonical form: labels are numbered in order of first use by keys
    and operands, operands and the arguments of commutative functions are sorted, and fields
    are named by their expressions. A root keeps its names of fields and keys.
    """
    done: dict[int, tuple[Node, _Fields]] = {}
    known: dict[_Key, tuple[Node, dict[_Key, str]]] = {}
    fired = 0
    numbers: dict[_Key, int] = {}
    shown: dict[int, Node] = {id(r): r for r in roots}
    for node in walk(*roots):
        if not isinstance(node, EinSum):
            first, _ = known.setdefault(("input", node.name, node.schema), (node, {}))
            fired += first is not node
            done[id(node)] = first, {}
            continue
        over = _read_shared(node, done)
        fired += len(over.operands) < len(node.operands)
        if id(node) in shown:  # the root has no reader
            shown[id(node)] = over
            continue
        canonical = _Canonical(over, numbers)
        keys = {o.name: canonical.output(o) for o in over.outputs}
        over = _unique_outputs(over, keys)
        identity = (*canonical.key, frozenset(keys.values()))
        first, names = known.setdefault(
            identity, (over, {keys[o.name]: o.name for o in reversed(over.outputs)})
        )
        merged = len(set(keys.values())) < len(keys)
        fired += first is not over or merged
        done[id(node)] = first, {old: names[k] for old, k in keys.items() if names[k] != old}
    return (tuple(shown[id(r)] for r in roots) if fired else roots), fired


def _read_shared(node: EinSum, done: Mapping[int, tuple[Node, _Fields]]) -> EinSum:
    """The node over shared sources, with equal operands merged."""
    operands: list[Operand] = []
    at: dict[tuple[int, tuple[str, ...]], int] = {}
    numbers: list[int] = []
    renamed: list[_Fields] = []
    for o in node.operands:
        source, fields = done[id(o.source)]
        place = at.setdefault((id(source), o.labels), len(operands))
        if place == len(operands):
            operands.append(o if source is o.source else Operand(source, o.labels))
        numbers.append(place)
        renamed.append(fields)
    same = all(a is b for a, b in zip(operands, node.operands, strict=False))
    if same and len(operands) == len(node.operands):
        return node
    node = replace(node, operands=tuple(operands))
    if numbers == list(range(len(numbers))) and not any(renamed):
        return node

    def shared(v: Value) -> Value:
        name = renamed[v.operand].get(v.field, v.field)
        return replace(v, operand=numbers[v.operand], field=name)

    return map_exprs(node, lambda e: map_values(e, shared))


def _unique_outputs(node: EinSum, keys: Mapping[str, _Key]) -> EinSum:
    first: dict[_Key, Output] = {}
    for o in node.outputs:
        first.setdefault(keys[o.name], o)
    return node if len(first) == len(node.outputs) else replace(node, outputs=tuple(first.values()))


class _Canonical:
    """Canonical names, which are equal for equal nodes.

    Args:
        node: The node.
        numbers: A number for each argument of a call; new arguments are added. Names are
            comparable if they use the same numbers.
    """

    def __init__(self, node: EinSum, numbers: dict[_Key, int]) -> None:
        self._numbers = numbers
        order = sorted(range(len(node.operands)), key=lambda n: id(node.operands[n].source))
        self._operands = {n: place for place, n in enumerate(order)}
        mentions = [*node.keys, *(x for n in order for x in node.operands[n].labels)]
        mentions += [a.label for a in node.axes]
        self._labels = {x: n for n, x in enumerate(dict.fromkeys(mentions))}
        axes = sorted(
            (
                self._labels[a.label],
                a.lo,
                a.hi,
                () if a.define is None else self.expr(a.define),
            )
            for a in node.axes
        )
        read = tuple(
            (id(o.source), *(self._labels[x] for x in o.labels))
            for o in (node.operands[n] for n in order)
        )
        hint = tuple(sorted((self._labels[x], parts) for x, parts in node.hint))
        grid = tuple((self._labels.get(g.label, -1), g.size, g.depth) for g in node.grid)
        merged = tuple(self._labels[x] for x in node.reduced) if has_order(node) else ()
        self.key: _Key = (
            merged,
            tuple(axes),
            read,
            self.expr(node.guard),
            len(node.keys),
            hint,
            grid,
        )

    def expr(self, e: Expr) -> _Key:
        """An expression with labels and operands by number."""
        match e:
            case Const():
                return "const", e.spelling, e.dtype.value
            case Label():
                return "label", str(self._labels[e.name]), ""
            case Value():
                return "value", f"{self._operands[e.operand]}.{e.field}", e.dtype.value
            case Param():
                return "param", str(e.number), e.dtype.value
        # Numbers keep the names of a long chain short; without them, names take quadratic space.
        args = [self._numbers.setdefault(a, len(self._numbers)) for a in map(self.expr, e.args)]
        if e.fn in SCALARS and SCALARS[e.fn].commutative:
            args.sort()
        return "call", e.fn, e.dtype.value, *args

    def output(self, o: Output) -> _Key:
        """The computation of an output, without its name."""
        args = tuple(self.expr(a) for a in o.args)
        return args, o.dtype.value, o.reduction, self.expr(o.where)


SHARE = Rule("share", "let X = e in f(X, X)  for  f(e, e)", graph=share)
