"""Fused nodes that run together, block by block over their common keys.

Intermediate results stay in the cache and are never materialized. Modules by theme:

* Choice of nodes: `find`, `classes` (labels of one key), `limits` (guards).
* Plan: `members`, `orders` (of keys), `plan`, `weights` (softmax-like weights and their sums).
* Source text: `places`, `online`, `driver`; `tiles` has the functions that it calls.
* Runs: `group`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.core.lazy_module import lazy_modules
from einsql.ir.einsum.graph import EinSum, Node, walk
from einsql.kernels.groups.grouping import Grouping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from einsql.kernels.groups import find as _find
    from einsql.kernels.groups import group as _group
    from einsql.kernels.groups.group import Group
    from einsql.kernels.kernel import Compile
else:  # loaded for large nodes
    _find, _group = lazy_modules(__name__, "find", "group")

LEAST = 2**18
"""Points from which a node may be fused with others; smaller nodes do not pay."""
LONG = 2**22
"""Points of a graph from which its small nodes are fused, too. It takes milliseconds, of which the
calls of NumPy for its small nodes may be the most (`python -m benchmarks.encoder --only 1x6`)."""
SMALL = 2**8
"""Points from which a node of such a graph may be fused: less work than the call of a kernel."""


def find_groups(
    roots: Sequence[Node], compile_node: Compile, plain: Compile | None = None
) -> Grouping:
    """Chooses the nodes of a graph that run together.

    Args:
        roots: The roots of the graph.
        compile_node: Compiles a single node, for groups that fall back to single nodes.
        plain: Compiles a single node without a kernel, for groups that run node by node while
            their kernel is being compiled; None if they wait for it.
    """
    nodes = walk(*roots)
    computed = [n for n in nodes if isinstance(n, EinSum)]
    least = SMALL if sum(n.points for n in computed) >= LONG else LEAST
    heavy = [n for n in computed if n.points >= least]
    if len(heavy) < 2:
        return Grouping()
    return _find.groups_of(nodes, roots, heavy, least, compile_node, plain)


def join(nodes: Sequence[EinSum], visible: Sequence[bool], compile_node: Compile) -> Group | None:
    """Creates a group from chosen nodes; None if they cannot run together.

    Args:
        nodes: At least two, producers first; no other node is between them.
        visible: For each node, whether it is read outside the group.
        compile_node: Compiles a single node, for groups that fall back to single nodes.
    """
    return _group.make_group(nodes, visible, compile_node)
