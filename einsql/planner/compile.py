"""Compilation of a graph under a session's settings: kernels, groups, sites."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from einsql import kernels
from einsql.core.schema import DType
from einsql.core.settings import Settings
from einsql.engine.executor import Program
from einsql.engine.step import Compile, FindGroups
from einsql.errors import DataError, NotSupportedError, OperationalError
from einsql.ir.einsum.graph import (
    Call,
    EinSum,
    Expr,
    Node,
    Value,
    exprs,
    stored_operands,
    subexpressions,
    walk,
)
from einsql.ir.functions import is_rounded
from einsql.optimizer import GROUP_NODES
from einsql.storage.relation import MAX_AXES

if TYPE_CHECKING:
    from einsql.engine.fused_steps import Join
    from einsql.storage.memory import Memory

_COMPARISONS = ("eq", "ne", "lt", "le")
MOST_POINTS = 2**62
"""Greatest number of points of a domain; a larger one is taken for a mistake."""


def at_sites(settings: Settings) -> str:
    """Returns the mode of compilation of the steps at virtual sites and on devices.

    A step waits for its kernel. With `auto` a whole run at sites is of one tier
    (`engine/tiered_sites.py`, `engine/tiered_ranks.py`), so that equal cells at different
    sites have equal results.
    """
    return "wait" if settings.jit == "auto" else settings.jit


def compiler(settings: Settings) -> Compile:
    """Returns the function that compiles a node to a kernel under the current settings."""
    return lambda node: kernels.compile_node(node, settings.jit)


def compiled(
    root: Node,
    settings: Settings,
    memory: Memory | None = None,
    more: Sequence[Node] = (),
    tiled: Set[str] = frozenset(),
) -> Program:
    """Compiles a graph to a program under the current settings, within a session's memory.

    Args:
        root: The graph.
        settings: The settings.
        memory: The memory limits.
        more: Further roots.
        tiled: The names of the inputs that are in files, in several tiles.

    Raises:
        Error: See `check_domains`.
    """
    check_domains(root, *more)
    if settings.jit in ("auto", "wait") and compares_rounded(root, *more):
        settings = replace(settings, jit="always")
    hurries = settings.jit == "auto"
    return Program(root, compiler(settings), grouping(settings), memory, more, hurries, tiled)


def compares_rounded(*roots: Node) -> bool:
    """True if a comparison reads functions such as EXP that different nodes compute.

    Kernels of different kinds round these functions differently, so one kind has to compute
    both sides: otherwise `EXP(val) = m.val` could miss the row of a maximum m.
    """
    rounding: dict[tuple[int, str], frozenset[int]] = {}

    def nodes_of(node: EinSum, expr: Expr) -> frozenset[int]:
        """The nodes that compute such functions for an expression of a node."""
        parts = list(subexpressions(expr))
        own = any(isinstance(e, Call) and is_rounded(e.fn) for e in parts)
        read = (e for e in parts if isinstance(e, Value))
        values = (rounding.get((id(node.operands[e.operand].source), e.field)) for e in read)
        return frozenset({id(node)} if own else ()).union(*filter(None, values))

    for node in walk(*roots):
        if not isinstance(node, EinSum):
            continue
        for e in (e for top in exprs(node) for e in subexpressions(top)):
            if isinstance(e, Call) and e.fn in _COMPARISONS:
                left, right = (nodes_of(node, a) for a in e.args)
                if left and right and left != right:
                    return True
        for o in node.outputs:
            computed = frozenset[int]().union(*(nodes_of(node, a) for a in o.args))
            if computed:
                rounding[id(node), o.name] = computed
    return False


def grouping(settings: Settings) -> FindGroups | None:
    """Returns the function that groups nodes; None without compilation, or if grouping is off."""
    if settings.jit == "never" or GROUP_NODES.name in settings.disabled_rules:
        return None
    plain = compiler(replace(settings, jit="never")) if settings.jit == "auto" else None
    return lambda roots: kernels.find_groups(roots, compiler(settings), plain)


def joining(settings: Settings) -> Join:
    """Returns the function that joins given nodes at a site."""
    return lambda nodes, visible: kernels.join(nodes, visible, compiler(settings))


def check_domains(*roots: Node, by_elements: bool = True) -> None:
    """Rejects graphs with keys beyond the limits of arrays and counters.

    Args:
        roots: The results of the graph.
        by_elements: Whether a node visits the elements of sparse operands, whatever their bounds.

    Raises:
        NotSupportedError: A node has more labels than an array can have axes.
        DataError: A key exceeds the range of BIGINT.
        OperationalError: A node has more points than the limit.
    """
    least, most = DType.BIGINT.range
    for node in walk(*roots):
        if not isinstance(node, EinSum):
            continue
        if len(node.axes) > MAX_AXES:
            raise NotSupportedError(
                f"The statement ranges over {len(node.axes)} keys at once; {MAX_AXES} are the most",
                hint="Aggregate keys away in a subquery first.",
            )
        for a in node.axes:
            if a.lo < least or a.hi > most:  # exclusive bounds are BIGINTs too
                raise DataError(f"Overflow: the key {a.label} ranges over [{a.lo}, {a.hi})")
        points = _visited(node) if by_elements else node.points
        if points > MOST_POINTS:
            raise OperationalError(
                f"The statement ranges over {points:,} combinations of keys",
                hint="Narrow the keys with WHERE, or join them.",
            )


def _visited(node: EinSum) -> int:
    """The points of a node, or those of its result and of one element of each sparse operand.

    Positions in key order of a sparse operand are counted, too.
    """
    numbers = stored_operands(node)
    largest = max((node.operands[n].source.schema.size for n in numbers), default=0)
    if not numbers or largest > MOST_POINTS:
        return node.points
    stored = {x for n in numbers for x in node.operands[n].labels}
    others = prod(a.extent for a in node.axes if a.define is None and a.label not in stored)
    return max(others, node.schema.size)
