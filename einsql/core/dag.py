"""Graphs of frozen nodes whose operands may be shared: every language's are walked alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

N = TypeVar("N")
R = TypeVar("R")


def producers_first(roots: Sequence[N], children: Callable[[N], Sequence[N]]) -> list[N]:
    """Every node below some roots once, producers before consumers.

    Args:
        roots: The nodes to start from.
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
        root: The last node.
        children: The operands of a node, in order.
        visit: Takes a node and the values of its operands, and returns the value of the node.
    """
    done: dict[int, R] = {}
    for node in producers_first([root], children):
        done[id(node)] = visit(node, [done[id(c)] for c in children(node)])
    return done[id(root)]
