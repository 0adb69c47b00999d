"""Improves a choice by solving random forests exactly, for graphs of any shape.

Each step picks vertices at random whose subgraph is a forest. Dynamic programming finds their
best states while the states of all other vertices are fixed. The cost never grows, and each
step changes about half of the graph. The start matters most, so several starts are tried, most
of them from message passing.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from einsql.optimizer.decomposition.belief_propagation import propagated
from einsql.optimizer.decomposition.model import Choice, Edge, Model

ROUNDS = 8
"""Picks without a gain after which a descent ends; a pick covers about half of the graph."""

SPREADS = (0.0, 0.1, 0.2, 0.4)
"""The relative perturbation of the costs for each start by message passing."""

KICKS = 24
"""Descents from a perturbed choice without a gain after which the search ends."""


def search(model: Model, seed: int = 0) -> Choice:
    """A good choice: the best of descents from several starts and from its perturbations."""
    chance = random.Random(seed)
    around = model.around
    starts = [greedy(model), *(propagated(model, chance, spread) for spread in SPREADS)]
    ends = [_descend(model, around, start, chance) for start in starts]
    return _improved(
        model,
        min(ends, key=model.cost),
        lambda best: _descend(model, around, _kicked(model, around, best, chance), chance),
        KICKS,
    )


def _descend(
    model: Model, around: list[list[Edge]], start: Choice, chance: random.Random
) -> Choice:
    """A choice at least as good as `start`, after ROUNDS picks without a gain."""
    return _improved(
        model,
        start,
        lambda best: _solve_forest(model, around, best, _forest(model, around, chance)),
        ROUNDS,
    )


def _improved(
    model: Model, start: Choice, propose: Callable[[Choice], Choice], patience: int
) -> Choice:
    """The best of a chain of proposals; the chain ends after a number of them without a gain."""
    choice, best, idle = list(start), model.cost(start), 0
    while idle < patience:
        trial = propose(choice)
        cost = model.cost(trial)
        idle = 0 if cost < best - 1e-12 * abs(best) else idle + 1
        if cost <= best:
            choice, best = trial, cost
    return choice


def _kicked(
    model: Model, around: list[list[Edge]], choice: Choice, chance: random.Random
) -> Choice:
    """The choice with random states in a random region, from one edge to the full graph."""
    result = list(choice)
    region = {chance.randrange(len(choice))}
    for _ in range(chance.randrange(1, 5)):
        region |= {_other(e, v) for v in region for e in around[v]}
    for v in sorted(region):
        result[v] = chance.randrange(len(model.states[v]))
    return result


def greedy(model: Model) -> Choice:
    """The best states if every vertex were the only reader of its producers."""
    around = model.around
    reach: list[np.ndarray] = []
    for v, alone in enumerate(model.alone):
        total = alone.copy()
        for e in around[v]:
            if e.target == v:
                total += _message(e, reach[e.source], e.source)[0]
        reach.append(total)
    choice = [-1] * len(reach)
    for v in reversed(range(len(reach))):
        total = reach[v].copy()
        for e in around[v]:
            if e.source == v:
                total += e.costs[e.produced, e.consumed[choice[e.target]]]
        choice[v] = int(total.argmin())
    return choice


def _forest(model: Model, around: list[list[Edge]], chance: random.Random) -> list[int]:
    """Vertices, in random order, whose edges form no cycle."""
    order = list(range(len(model.states)))
    chance.shuffle(order)
    root = list(range(len(order)))

    def find(v: int) -> int:
        while root[v] != v:
            root[v] = root[root[v]]
            v = root[v]
        return v

    picked: set[int] = set()
    for v in order:
        near = {_other(e, v) for e in around[v]} & picked
        roots = [find(u) for u in near]
        if len(set(roots)) == len(roots):
            picked.add(v)
            for r in roots:
                root[r] = v
    return [v for v in order if v in picked]


def _other(e: Edge, v: int) -> int:
    return e.target if e.source == v else e.source


def _solve_forest(
    model: Model, around: list[list[Edge]], choice: Choice, picked: list[int]
) -> Choice:
    inside = set(picked)
    totals = {v: model.alone[v].copy() for v in picked}
    for v in picked:
        for e in around[v]:
            if _other(e, v) not in inside:
                totals[v] += _fixed(e, v, choice)
    order: list[tuple[int, int | None]] = []
    seen: set[int] = set()
    for top in picked:
        if top in seen:
            continue
        stack: list[tuple[int, int | None]] = [(top, None)]
        seen.add(top)
        while stack:
            v, parent = stack.pop()
            order.append((v, parent))
            for u in sorted({_other(e, v) for e in around[v]} & inside - seen):
                seen.add(u)
                stack.append((u, v))
    back: dict[int, np.ndarray] = {}
    for v, parent in reversed(order):
        if parent is not None:
            between = [e for e in around[v] if _other(e, v) == parent]
            message, back[v] = _messages(between, totals[v], v, len(model.alone[parent]))
            totals[parent] += message
    result = list(choice)
    for v, parent in order:
        result[v] = int(totals[v].argmin() if parent is None else back[v][result[parent]])
    return result


def _fixed(e: Edge, v: int, choice: Choice) -> np.ndarray:
    """The cost of an edge for each state of v, with the other end fixed."""
    if e.source == v:
        return np.asarray(e.costs[e.produced, e.consumed[choice[e.target]]])
    return np.asarray(e.costs[e.produced[choice[e.source]], e.consumed])


def _messages(
    between: list[Edge], total: np.ndarray, v: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the messages of several edges between two vertices (see `_message`)."""
    if len(between) == 1:
        return _message(between[0], total, v)
    table = np.broadcast_to(total[:, None], (len(total), size)).copy()
    for e in between:
        pairs = e.costs[np.ix_(e.produced, e.consumed)]
        table += pairs if e.source == v else pairs.T
    at = table.argmin(axis=0)
    return table[at, np.arange(size)], at


def _message(e: Edge, total: np.ndarray, v: int) -> tuple[np.ndarray, np.ndarray]:
    """For each state of the other end the least total of v and the edge, and v's state."""
    mine, other = (e.produced, e.consumed) if e.source == v else (e.consumed, e.produced)
    table = e.costs if e.source == v else e.costs.T
    order = np.lexsort((total, mine))
    first = np.concatenate(([True], mine[order][1:] != mine[order][:-1]))
    lead = order[first]  # the cheapest state of each view, in the order of the views
    sums = total[lead][:, None] + table[mine[lead]]  # no state may have some of the views
    at = sums.argmin(axis=0)
    return sums[at, np.arange(sums.shape[1])][other], lead[at][other]
