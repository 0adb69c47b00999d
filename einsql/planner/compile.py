"""From a graph to what runs it under a session's settings: kernels, groups, sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from einsql import kernels
from einsql.core.schema import DType
from einsql.core.settings import Settings
from einsql.engine.executor import Program
from einsql.engine.step import Compile, FindGroups
from einsql.errors import DataError, NotSupportedError, OperationalError
from einsql.ir.einsum.graph import EinSum, Node, walk
from einsql.optimizer import GROUP_NODES
from einsql.storage.relation import MAX_AXES

if TYPE_CHECKING:
    from einsql.engine.fused_steps import Join
    from einsql.storage.memory import Memory

MOST_POINTS = 2**62
"""A domain larger than this is a mistake; no machine visits it."""


def compiler(settings: Settings) -> Compile:
    """What turns a node into a kernel's name and runner under the current settings."""
    return lambda node: kernels.compile_node(node, settings.jit)


def compiled(
    root: Node, settings: Settings, memory: Memory | None = None, more: Sequence[Node] = ()
) -> Program:
    """The program of a graph under the current settings, within a session's memory.

    Raises:
        Error: As `check_domains`.
    """
    check_domains(root, *more)
    return Program(root, compiler(settings), grouping(settings), memory, more)


def grouping(settings: Settings) -> FindGroups | None:
    """What says which nodes run together; None where nothing is compiled, or it is off."""
    if settings.jit == "never" or GROUP_NODES.name in settings.disabled_rules:
        return None
    return lambda roots: kernels.find_groups(roots, compiler(settings))


def joining(settings: Settings) -> Join:
    """What runs chosen nodes together at a site."""
    return lambda nodes, visible: kernels.join(nodes, visible, compiler(settings))


def check_domains(*roots: Node) -> None:
    """Refuses graphs over keys that no array and no counter can hold.

    Raises:
        NotSupportedError: A node has more labels than an array can have axes.
        DataError: A key leaves BIGINT.
        OperationalError: A node has more points than can be counted.
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
            if a.lo < least or a.hi > most:  # an exclusive bound is a BIGINT itself
                raise DataError(f"Overflow: the key {a.label} ranges over [{a.lo}, {a.hi})")
        if node.points > MOST_POINTS:
            raise OperationalError(
                f"The statement ranges over {node.points:,} combinations of keys",
                hint="Narrow the keys with WHERE, or join them.",
            )
