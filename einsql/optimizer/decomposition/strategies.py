"""The strategies a user can ask for by name; each one gives every operation a vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from einsql.errors import InterfaceError, OperationalError, suggest
from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.elimination import eliminate
from einsql.optimizer.decomposition.integer import solve
from einsql.optimizer.decomposition.model import Model, free_candidates, model_of
from einsql.optimizer.decomposition.objective import Objective, fitting
from einsql.optimizer.decomposition.paper import paper_candidates, solve_paper
from einsql.optimizer.decomposition.problem import Problem, Vertex, with_published
from einsql.optimizer.decomposition.refinement import refine

SMALL = 64
"""Up to so many vertices descents from random choices are worth their time."""

Vectors = list[np.ndarray]
"""For each vertex of a problem how many parts each label is cut into."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to cut a graph.

    Attributes:
        law: What it does, in one line.
        choose: Gives vectors for a problem's operations; from the problem, the number of
            sites, what follows the colon in the strategy's name, and what to minimise.
    """

    name: str
    law: str
    choose: Callable[[Problem, int, str, Objective], Vectors]


def _picked(model: Model, choice: Sequence[int]) -> Vectors:
    return [s[c] for s, c in zip(model.states, choice, strict=True)]


def _operations(problem: Problem, vectors: Vectors) -> Vectors:
    """The vectors without those of publishing vertices."""
    return [x for v, x in zip(problem.vertices, vectors, strict=True) if not v.publishes]


def _eindecomp(problem: Problem, sites: int, _: str, objective: Objective) -> Vectors:
    shared = with_published(problem)
    model = model_of(shared, free_candidates(sites, objective.memory), objective)
    choice = eliminate(model)
    if choice is None and len(model.states) <= SMALL:
        choice = search(model)
    vectors = refine(shared, sites, objective) if choice is None else _picked(model, choice)
    return _operations(shared, vectors)


def _exact(problem: Problem, sites: int, _: str, objective: Objective) -> Vectors:
    shared = with_published(problem)
    model = model_of(shared, free_candidates(sites, objective.memory), objective)
    choice = eliminate(model)
    if choice is None:
        found = solve(model)
        if found is None or not found[1]:
            raise OperationalError(
                "The best cut of this graph could not be proven within a minute",
                hint="SET strategy = 'eindecomp' finds a good one.",
            )
        choice = found[0]
    return _operations(shared, _picked(model, choice))


def _paper(problem: Problem, sites: int, _: str, objective: Objective) -> Vectors:
    # It counts floats whatever the objective is; only the memory holds.
    model = model_of(problem, paper_candidates(sites, objective.memory))
    return _picked(model, solve_paper(model))


def _equal(problem: Problem, sites: int, _: str, __: Objective) -> Vectors:
    parts = next(n for n in range(1, sites + 1) if n**3 >= sites)
    return _by_label(problem, lambda label: parts)


def _data(problem: Problem, sites: int, label: str, _: Objective) -> Vectors:
    known = {name for v in problem.vertices for name in v.labels}
    if label not in known:
        raise InterfaceError(
            f'No operation has the label "{label}"', hint=suggest(label, known, "labels")
        )
    return _by_label(problem, lambda name: sites if name == label else 1)


def _by_label(problem: Problem, parts: Callable[[str], int]) -> Vectors:
    """Every label cut the same way wherever it occurs."""
    return [
        np.array([min(parts(x), max(1, n)) for x, n in zip(v.labels, v.extents, strict=True)],
                 np.int64)
        for v in problem.vertices
    ]  # fmt: skip


STRATEGIES = {
    s.name: s
    for s in (
        Strategy("eindecomp", "least cost; contractions in p calls, others in at most p",
                 _eindecomp),
        Strategy("exact", "as eindecomp, proven optimal", _exact),
        Strategy("paper", "EinDecomp as published: always p calls, linearized", _paper),
        Strategy("equal", "every label cut into the cube root of p parts", _equal),
        Strategy("data", "only the named label is cut, as in data:batch", _data),
    )
}  # fmt: skip
"""Every strategy by its name."""


def strategy_of(text: str) -> tuple[Strategy, str]:
    """A strategy and its argument, from text such as `data:batch`.

    Raises:
        InterfaceError: There is no such strategy, or its argument is missing or too much.
    """
    name, colon, argument = text.partition(":")
    if name not in STRATEGIES:
        raise InterfaceError(
            f'There is no strategy "{name}"', hint=suggest(name, STRATEGIES, "strategies")
        )
    if (name == "data") != bool(argument) or (colon and not argument):
        raise InterfaceError(
            f'The strategy "{text}" is not complete'
            if name == "data"
            else f'The strategy "{name}" takes no label',
            hint="data:batch cuts the label batch.",
        )
    return STRATEGIES[name], argument


def completed(
    problem: Problem, vectors: Vectors, sites: int, objective: Objective
) -> tuple[Vectors, float]:
    """Adds the best layouts of published results to the vectors of all operations.

    Args:
        problem: With publishing vertices.
        vectors: Of its operations only.
        sites: Layouts have at most as many parts, or those of some reader.
        objective: What the layouts should minimise.

    Returns:
        The vectors, and what they cost.

    Raises:
        OperationalError: A cell takes more memory than the objective allows.
    """
    given = iter(vectors)
    fixed = {v.name: next(given)[None, :] for v in problem.vertices if not v.publishes}
    layouts: dict[str, list[np.ndarray]] = {}
    for v in problem.vertices:
        for use in v.uses:
            source = None if use.producer is None else problem.vertices[use.producer]
            if source is not None and source.publishes:
                seen = _layout(fixed[v.name], use.axes, source)
                layouts.setdefault(source.name, []).append(seen)
    free = free_candidates(sites)

    def candidates(v: Vertex) -> np.ndarray:
        if not v.publishes:
            return fitting(v, fixed[v.name], objective.memory)
        return np.unique(np.concatenate([free(v), *layouts[v.name]]), axis=0)

    model = model_of(problem, candidates, objective)
    choice = eliminate(model) or search(model)
    return _picked(model, choice), model.cost(choice)


def _layout(vector: np.ndarray, axes: tuple[int | None, ...], published: Vertex) -> np.ndarray:
    """A reader's cut of a published result, as a vector of the publishing vertex."""
    layout = np.ones((1, len(published.labels)), np.int64)
    for key, at in zip(published.keys, axes, strict=True):
        if at is not None and key is not None:
            layout[0, key] = vector[0, at]
    return layout
