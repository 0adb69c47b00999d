"""PARTITION hints in a problem: how many parts of a label are not for a strategy to choose."""

from __future__ import annotations

from dataclasses import replace

from einsql.optimizer.decomposition.problem import Problem, Vertex


def within(problem: Problem, sites: int) -> Problem:
    """The problem with hints that ask for no more calls than there are sites.

    A single statement block that asks for more is refused before; hints of several blocks
    that became one operation are kept in their order as far as the sites go.
    """
    if not any(v.fixed for v in problem.vertices):
        return problem
    return Problem(tuple(_within(v, sites) for v in problem.vertices))


def _within(v: Vertex, sites: int) -> Vertex:
    if v.stored or not v.fixed:
        return v
    left, kept = sites, []
    for parts in v.fixed:
        kept.append(parts if parts is None or parts <= left else None)
        left //= kept[-1] or 1
    return replace(v, fixed=tuple(kept))
