"""Choices by min-sum message passing (loopy belief propagation).

Along every edge each end tells the other what every view of it would cost at least, as
far as it knows from its other edges. On a tree this is dynamic programming and exact; on
other graphs messages go round until they settle, and the states they agree on are a
good start for a search: unlike a descent they see the whole graph at once.
"""

from __future__ import annotations

import random

import numpy as np

from einsql.optimizer.decomposition.model import Choice, Edge, Model

ROUNDS = 30
"""How often every edge is gone along; messages have settled long before, or never do."""

DAMPING = 0.5
"""Share of the old message in the new one, which keeps messages from swinging."""


def propagated(model: Model, chance: random.Random, spread: float = 0.0) -> Choice:
    """The state of each vertex that the messages end up preferring.

    Args:
        model: What choices cost.
        chance: Gives the order of the edges in each round, and the disturbance.
        spread: How much the vertices' own costs are disturbed, relative to them, so that
            several calls give several starts.
    """
    return _Messages(model, chance, spread).settle()


class _Messages:
    """The messages of one propagation.

    Attributes:
        forward: For each edge the costs that its source tells its target, by the target's
            views.
        backward: What the target tells the source, by the source's views.
    """

    def __init__(self, model: Model, chance: random.Random, spread: float) -> None:
        self.model, self.chance = model, chance
        noise = np.random.default_rng(chance.randrange(2**32))
        self.alone = [a * (1 + spread * noise.standard_normal(len(a))) for a in model.alone]
        self.forward = [np.zeros(e.costs.shape[1]) for e in model.edges]
        self.backward = [np.zeros(e.costs.shape[0]) for e in model.edges]
        self.around: list[list[int]] = [[] for _ in model.states]
        for n, e in enumerate(model.edges):
            self.around[e.source].append(n)
            self.around[e.target].append(n)

    def settle(self) -> Choice:
        """Passes messages and reads the choice off them."""
        order = list(range(len(self.model.edges)))
        for _ in range(ROUNDS):
            self.chance.shuffle(order)
            for n in order:
                self._pass(n, self.model.edges[n])
        return [int(self._belief(v).argmin()) for v in range(len(self.alone))]

    def _pass(self, n: int, e: Edge) -> None:
        """Renews both messages of an edge."""
        source = _least(self._belief(e.source, n), e.produced, e.costs.shape[0])
        self.forward[n] = _damped(self.forward[n], (source[:, None] + e.costs).min(axis=0))
        target = _least(self._belief(e.target, n), e.consumed, e.costs.shape[1])
        self.backward[n] = _damped(self.backward[n], (e.costs + target).min(axis=1))

    def _belief(self, v: int, without: int | None = None) -> np.ndarray:
        """What each state of a vertex seems to cost, as all edges but one tell."""
        total: np.ndarray = self.alone[v].copy()
        for n in self.around[v]:
            if n != without:
                e = self.model.edges[n]
                total += (
                    self.forward[n][e.consumed] if e.target == v else self.backward[n][e.produced]
                )
        return total


def _least(costs: np.ndarray, view: np.ndarray, views: int) -> np.ndarray:
    """The least cost among the states of each view."""
    least = np.full(views, np.inf)
    np.minimum.at(least, view, costs)
    return least


def _damped(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    # Only differences matter; without this the messages would grow from round to round.
    return np.asarray(DAMPING * old + (1 - DAMPING) * (new - new.min()))
