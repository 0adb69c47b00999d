"""Traversals of acyclic graphs of frozen nodes with shared operands, for all languages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

N = TypeVar("N")
R = TypeVar("R")


def producers_first(roots: Sequence[N], children: Callable[[N], Sequence[N]]) -> list[N]:
    """Every node reachable from the roots once, producers before consumers.

    Args:
        roots: The nodes from which the traversal starts.
        children: The operands of a node, in order.
    """
    order: list[N] = []
    seen: set[int] = set()
    stack: list[tuple[N, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((c, False) for c in reversed(children(node)))
    return order


def bottom_up(root: N, children: Callable[[N], Sequence[N]], visit: Callable[[N, list[R]], R]) -> R:
    """Computes a value of a graph from the values of its nodes.

    Args:
        root: The node whose value is computed.
        children: The operands of a node, in order.
        visit: Function of a node and the values of its operands, which returns its value.
    """
    done: dict[int, R] = {}
    for node in producers_first([root], children):
        done[id(node)] = visit(node, [done[id(c)] for c in children(node)])
    return done[id(root)]
