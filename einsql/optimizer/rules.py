"""What a rewrite rule is, and what is kept of its firing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from einsql.einsum import EinSum, Node, walk, with_sources
from einsql.printer import format_graph

NodeRewrite = Callable[[EinSum], EinSum]
"""Returns the very same object where it does not apply; may look at what lies below."""
GraphRewrite = Callable[[Node], tuple[Node, int]]
"""Returns the new root and how often the rule fired; the same root where it did not."""
Settled = dict[int, EinSum]
"""Nodes, by id, which a node rewrite is known to leave alone; they stay alive in here."""

_AT_ONE_NODE = 64  # a rewrite that still fires here is circular; later rounds may go on


@dataclass(frozen=True, slots=True)
class Rule:
    """A named law of the EinSum language, as a rewrite of one node or of a whole graph.

    Attributes:
        name: Unique, in kebab case; what switches the rule off.
        law: One line of algebra.
        node: The rewrite of a single node, for laws that look only downwards.
        graph: The rewrite of a graph, for laws that must know who reads a node.
        drops_flags: Whether a flag of the root may go because the rule proved it TRUE.
    """

    name: str
    law: str
    node: NodeRewrite | None = None
    graph: GraphRewrite | None = None
    drops_flags: bool = False

    def apply(self, root: Node, settled: Settled) -> tuple[Node, int]:
        """Rewrites a graph; returns the new root and how often the rule fired."""
        fired = 0
        if self.node is not None:
            root, fired = _everywhere(root, self.node, settled)
        if self.graph is not None:
            root, more = self.graph(root)
            fired += more
        return root, fired


@dataclass(frozen=True, slots=True)
class Step:
    """One rule that changed the graph; the texts are made when somebody reads them."""

    rule: Rule
    fired: int
    seconds: float
    old: Node
    new: Node

    @property
    def before(self) -> str:
        """The printed graph the rule saw."""
        return format_graph(self.old)

    @property
    def after(self) -> str:
        """The printed graph the rule left."""
        return format_graph(self.new)


@dataclass(frozen=True, slots=True)
class Optimized:
    """An optimized graph and how it came about."""

    root: Node
    trace: tuple[Step, ...]


def rebuild(root: Node, visit: Callable[[EinSum, EinSum], EinSum]) -> tuple[Node, int]:
    """Rewrites a graph bottom-up; `visit` sees each node as it was and over new sources.

    Returns:
        The new root and at how many nodes `visit` returned another object.
    """
    done: dict[int, Node] = {}
    fired = 0
    for node in walk(root):
        if not isinstance(node, EinSum):
            done[id(node)] = node
            continue
        over = with_sources(node, [done[id(o.source)] for o in node.operands])
        new = visit(node, over)
        fired += new is not over
        done[id(node)] = new
    return done[id(root)], fired


def _everywhere(root: Node, change: NodeRewrite, settled: Settled) -> tuple[Node, int]:
    def visit(_: EinSum, node: EinSum) -> EinSum:
        if id(node) in settled:
            return node
        for _turn in range(_AT_ONE_NODE):
            new = change(node)
            if new is node:
                settled[id(node)] = node
                break
            node = new
        return node

    return rebuild(root, visit)
