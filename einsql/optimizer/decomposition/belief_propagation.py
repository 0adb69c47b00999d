"""Choices by min-sum message passing (loopy belief propagation).

Along every edge each end sends the other the least cost of every view, given the messages of
its other edges. On a tree this is dynamic programming, and exact. On other graphs messages are
repeated until they converge. The preferred states are a good start for a search, because
unlike a descent they take the full graph into account.
"""

from __future__ import annotations

import random

import numpy as np

from einsql.optimizer.decomposition.model import Choice, Edge, Model

ROUNDS = 30
"""Passes over all edges; messages that converge do so in far fewer passes."""

DAMPING = 0.5
"""The share of the old message in the new one, which prevents oscillation."""


def propagated(model: Model, chance: random.Random, spread: float = 0.0) -> Choice:
    """The state of each vertex that the messages prefer after convergence.

    Args:
        model: The costs of choices.
        chance: The random generator of the edge order in each round and of the perturbation.
        spread: The relative perturbation of the vertices' own costs, so that several calls
            give several starts.
    """
    return _Messages(model, chance, spread).settle()


class _Messages:
    """The messages of one propagation.

    Attributes:
        forward: For each edge the message from source to target: costs by the target's views.
        backward: The message from target to source: costs by the source's views.
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
        """Passes messages until they converge; returns the states that they prefer."""
        order = list(range(len(self.model.edges)))
        for _ in range(ROUNDS):
            self.chance.shuffle(order)
            for n in order:
                self._pass(n, self.model.edges[n])
        return [int(self._belief(v).argmin()) for v in range(len(self.alone))]

    def _pass(self, n: int, e: Edge) -> None:
        """Updates both messages of an edge."""
        source = _least(self._belief(e.source, n), e.produced, e.costs.shape[0])
        self.forward[n] = _damped(self.forward[n], (source[:, None] + e.costs).min(axis=0))
        target = _least(self._belief(e.target, n), e.consumed, e.costs.shape[1])
        self.backward[n] = _damped(self.backward[n], (e.costs + target).min(axis=1))

    def _belief(self, v: int, without: int | None = None) -> np.ndarray:
        """The estimated cost of each state of a vertex, from the messages of all edges but one."""
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
    # Only differences matter; without the subtraction messages would grow in every round.
    return np.asarray(DAMPING * old + (1 - DAMPING) * (new - new.min()))
