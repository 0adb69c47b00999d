"""Routed nodes: rows choose by a value the block of an operand that they read.

y[i, f] = Σₕ x[i, h] · w[r[i], h, f]: the row i chooses the key e = r[i] of w, its expert. If sites
have blocks of w, the row is sent to the site of its block, and its result comes back. So the rows
are computed apart, and no expression of the node may read the keys of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.records import dataclass
from einsql.ir.einsum.cells import values_read
from einsql.ir.einsum.graph import EinSum, Expr, Operand, Roots, exprs, labels_of, operands_of, walk
from einsql.ir.einsum.graph_rewriting import map_values


@dataclass(frozen=True, slots=True)
class Routing:
    """The choice of a key by the rows of a node.

    Attributes:
        label: The derived label that is read from data.
        chooser: The number of the operand whose values choose.
        rows: The labels of the rows: those of that operand.
        experts: The numbers of the operands that are read at the label.
        lo: The least value of the label that rows may choose.
        hi: The exclusive upper bound of these values.
    """

    label: str
    chooser: int
    rows: tuple[str, ...]
    experts: tuple[int, ...]
    lo: int
    hi: int

    def is_moved(self, operand: Operand) -> bool:
        """Whether an operand is read by rows, so that its elements are sent with them."""
        return not set(self.rows).isdisjoint(operand.labels)


def routing_of(node: EinSum, label: str) -> Routing | None:
    """The routing by a label; None if the node cannot be routed by it.

    Its result may lack keys of its rows, which `optimizer/rewrite/parts/route_rows.py` adds.
    """
    axis = node.axis(label)
    if axis.define is None or label in node.keys or labels_of(axis.define) or node.grid:
        return None
    read = operands_of(axis.define)
    if len(read) != 1:
        return None
    (chooser,) = read
    rows = node.operands[chooser].labels
    experts = tuple(n for n, o in enumerate(node.operands) if label in o.labels)
    lo, hi = values_read(node, label, (), np.zeros((1, 0, 2), np.int64))[0].tolist()
    routing = Routing(label, chooser, rows, experts, lo, hi)
    if not rows or not experts or any(routing.is_moved(node.operands[n]) for n in experts):
        return None
    return routing if _is_by_rows(node, rows) else None


def _is_by_rows(node: EinSum, rows: Sequence[str]) -> bool:
    """Whether the points of each row can be computed apart, and without the keys of the row."""
    axes = {a.label: a for a in node.axes}
    free = all(axes[x].define is None for x in rows) and all(a.extent for a in node.axes)
    keys = all(axes[x].define is None for x in node.keys)
    single = all(o.labels.count(x) <= 1 for o in node.operands for x in rows)
    return free and keys and single and not any(labels_of(e) & {*rows} for e in exprs(node))


def routings(node: EinSum) -> Iterator[Routing]:
    """The routings of a node, by each of its labels."""
    for a in node.axes:
        if a.define is not None and (routing := routing_of(node, a.label)) is not None:
            yield routing


def routed(node: EinSum) -> tuple[Routing, int] | None:
    """The routing that the hint of a node requests, with the number of blocks; None without one."""
    if not node.hint:
        return None
    parts_of = dict(node.hint)
    for routing in routings(node):
        parts = min(parts_of.get(routing.label, 1), routing.hi - routing.lo)
        if parts > 1 and set(routing.rows) <= set(node.keys):
            return routing, parts
    return None


def rows_through(operand: Operand, rows: Sequence[str]) -> tuple[str, ...]:
    """The labels by which an operand's reader names the rows of the operand's source."""
    keys = [k.name for k in operand.source.schema.keys]
    return tuple(operand.labels[keys.index(x)] for x in rows)


@dataclass(frozen=True, slots=True, eq=False)
class RoutedGroup:
    """Nodes whose rows stay at the sites of their experts between the nodes.

    Attributes:
        nodes: The nodes, producers first. Some of them are routed, by one choice of the rows.
        rows: The labels of the rows of each node.
        parts: The number of blocks of experts.
    """

    nodes: tuple[EinSum, ...]
    rows: tuple[tuple[str, ...], ...]
    parts: int

    def home(self) -> int:
        """The number of the row label that the sites of the rows cut: the longest one."""
        extents = [self.nodes[0].axis(x).extent for x in self.rows[0]]
        return extents.index(max(extents))


Choice = tuple[int, Expr, int, int]
"""The relation that chooses, by identity, the expression over its values, and the bounds."""


def choice_of(node: EinSum, routing: Routing) -> Choice:
    """A node's choices for its rows; equal for nodes with equal choices."""
    axis = node.axis(routing.label)
    assert axis.define is not None
    define = map_values(axis.define, lambda v: replace(v, operand=0))
    return id(node.operands[routing.chooser].source), define, routing.lo, routing.hi


def routed_groups(roots: Roots) -> list[RoutedGroup]:
    """The groups of a graph whose nodes have hints to be routed.

    A node between two routed nodes belongs to their group if it computes rows from rows.
    """
    nodes = [n for n in walk(*roots) if isinstance(n, EinSum)]
    return _Groups(nodes).groups() if any(n.hint for n in nodes) else []


class _Groups:
    def __init__(self, nodes: Sequence[EinSum]) -> None:
        self._nodes = nodes
        self._choices: dict[int, tuple[Choice, int]] = {}
        self._rows: dict[int, tuple[str, ...]] = {}
        self._routed: set[int] = set()
        for node in self._nodes:
            self._visit(node)

    def _visit(self, node: EinSum) -> None:
        """Finds the rows of a node that is routed, or that reads rows of such nodes only."""
        routed_by = routed(node)
        if routed_by is not None:
            routing, parts = routed_by
            self._choices[id(node)] = choice_of(node, routing), parts
            self._rows[id(node)] = routing.rows
            self._routed.add(id(node))
            return
        read = [o for o in node.operands if id(o.source) in self._choices]
        choices = {self._choices[id(o.source)] for o in read}
        rows = {rows_through(o, self._rows[id(o.source)]) for o in read}
        if len(choices) == 1 and len(rows) == 1:
            (labels,) = rows
            if set(labels) <= set(node.keys) and _is_by_rows(node, labels) and not node.grid:
                self._choices[id(node)], self._rows[id(node)] = choices.pop(), labels

    def _passes(self, operand: Operand, reader: EinSum) -> bool:
        """Whether a node reads the rows of an operand by the same choice."""
        source = id(operand.source)
        if source not in self._choices or id(reader) not in self._choices:
            return False
        same = self._choices[source] == self._choices[id(reader)]
        return same and rows_through(operand, self._rows[source]) == self._rows[id(reader)]

    def groups(self) -> list[RoutedGroup]:
        wanted = set(self._routed)
        for node in reversed(self._nodes):
            if id(node) in wanted:
                wanted |= {id(o.source) for o in node.operands if self._passes(o, node)}
        leader = {n: n for n in wanted}

        def find(n: int) -> int:
            while leader[n] != n:
                n = leader[n]
            return n

        for node in self._nodes:
            for o in node.operands if id(node) in wanted else ():
                if id(o.source) in wanted and self._passes(o, node):
                    leader[find(id(o.source))] = find(id(node))
        members: dict[int, list[EinSum]] = {}
        for node in self._nodes:
            if id(node) in wanted:
                members.setdefault(find(id(node)), []).append(node)
        return [
            RoutedGroup(
                tuple(nodes),
                tuple(self._rows[id(n)] for n in nodes),
                self._choices[id(nodes[0])][1],
            )
            for nodes in members.values()
        ]
