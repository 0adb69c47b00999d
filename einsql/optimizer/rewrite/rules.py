"""Rewrite rules, and the trace of their applications."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, Node, Roots, walk
from einsql.ir.einsum.graph_rewriting import with_sources

if TYPE_CHECKING:
    from einsql.ir.einsum import printer as _printer
else:  # loaded for EXPLAIN VERBOSE and for errors
    _printer = LazyModule("einsql.ir.einsum.printer")

NodeRewrite = Callable[[EinSum], EinSum]
"""Rewrites a node, or returns the same object; may inspect the operands' nodes."""
GraphRewrite = Callable[[Roots], tuple[Roots, int]]
"""Returns the new roots and the number of rewrites; the same tuple if there are none."""
Settled = dict[int, EinSum]
"""Nodes that a node rewrite does not change, by id; the reference keeps the id valid."""

_AT_ONE_NODE = 64
"""The maximum of rewrites of one node by one rule in a round; more indicate a cycle."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A named law of the EinSum language, as a rewrite of one node or of a whole graph.

    Attributes:
        name: The unique name in kebab case, as in `disabled_rules`.
        law: One line of algebra.
        node: The rewrite of a single node, for laws that depend only on its operands.
        graph: The rewrite of a graph, for laws that depend on the readers of a node.
        drops_flags: Whether the rule may drop a flag of the root that it proved TRUE.
    """

    name: str
    law: str
    node: NodeRewrite | None = None
    graph: GraphRewrite | None = None
    drops_flags: bool = False

    def apply(self, roots: Roots, settled: Settled) -> tuple[Roots, int]:
        """Rewrites a graph; returns the new roots and the number of rewrites."""
        fired = 0
        if self.node is not None:
            roots, fired = _everywhere(roots, self.node, settled)
        if self.graph is not None:
            roots, more = self.graph(roots)
            fired += more
        return roots, fired


@dataclass(frozen=True, slots=True)
class Step:
    """One rule that changed the graph; the texts are created on demand."""

    rule: Rule
    fired: int
    seconds: float
    old: Roots
    new: Roots

    @property
    def before(self) -> str:
        """The printed graph before the rule."""
        return _printer.format_graph(*self.old)

    @property
    def after(self) -> str:
        """The printed graph after the rule."""
        return _printer.format_graph(*self.new)


@dataclass(frozen=True, slots=True)
class Optimized:
    """An optimized graph and the steps of its optimization."""

    roots: Roots
    trace: tuple[Step, ...]

    @property
    def root(self) -> Node:
        """The first root; most graphs have a single root."""
        return self.roots[0]


def rebuild(roots: Roots, visit: Callable[[EinSum, EinSum], EinSum]) -> tuple[Roots, int]:
    """Rewrites a graph bottom-up; `visit` takes each old node and the node over new sources.

    Returns:
        The new roots and the number of nodes for which `visit` returned another object.
    """
    done: dict[int, Node] = {}
    fired = 0
    for node in walk(*roots):
        if not isinstance(node, EinSum):
            done[id(node)] = node
            continue
        over = with_sources(node, [done[id(o.source)] for o in node.operands])
        new = visit(node, over)
        fired += new is not over
        done[id(node)] = new
    new_roots = tuple(done[id(r)] for r in roots)
    same = all(a is b for a, b in zip(new_roots, roots, strict=True))
    return (roots if same else new_roots), fired


def _everywhere(roots: Roots, change: NodeRewrite, settled: Settled) -> tuple[Roots, int]:
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

    return rebuild(roots, visit)
