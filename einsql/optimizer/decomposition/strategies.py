"""The choice of cuts: each strategy, `eindecomp` by default, gives every operation a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain

import numpy as np

from einsql.core.records import dataclass
from einsql.errors import InterfaceError, OperationalError, suggest
from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.elimination import eliminate
from einsql.optimizer.decomposition.groups import groups_of
from einsql.optimizer.decomposition.integer import solve
from einsql.optimizer.decomposition.model import Model, free_candidates, model_of
from einsql.optimizer.decomposition.named import (
    by_name,
    named_schedules,
    no_label,
    scheduled,
    spelled,
)
from einsql.optimizer.decomposition.objective import Objective
from einsql.optimizer.decomposition.paper import paper_candidates, solve_paper
from einsql.optimizer.decomposition.problem import Problem
from einsql.optimizer.decomposition.products import rules_of
from einsql.optimizer.decomposition.refinement import refine
from einsql.optimizer.decomposition.schedules import (
    InapplicableError,
    Schedule,
    Schedules,
    all_fit,
    completed,
)

MOST_LABELS = 6
"""The maximum of labels of which each alone is cut for comparison."""

SMALL = 64
"""The maximum of vertices for which descents from random choices are run."""


Choose = Callable[[Problem, int, str, Objective], Schedules]
"""Maps a problem, the number of sites, the argument after the colon of a strategy's name, and
the objective to schedules of the problem's vertices; the problem has no publishing vertices."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A method of cutting a graph.

    Attributes:
        law: A description in one line.
        choose: Returns schedules for a problem's vertices (see `Choose`). Raises
            InapplicableError if the graph lacks the structure that it cuts.
        argument: An example of the argument after the colon; empty if there is none.
        needs_argument: Whether the argument is required.
    """

    name: str
    law: str
    choose: Choose
    argument: str = ""
    needs_argument: bool = False


def _unpublished(problem: Problem, vectors: list[np.ndarray]) -> Schedules:
    """Schedules without those of publishing vertices."""
    pairs = zip(problem.vertices, vectors, strict=True)
    return [Schedule(x) for v, x in pairs if not v.publishes]


def _eindecomp(problem: Problem, sites: int, _: str, objective: Objective) -> Schedules:
    shared = problem.published
    model = _model(shared, sites, objective)
    choice = eliminate(model)
    if choice is not None:
        own = _unpublished(shared, model.vectors(choice))
        return _least(problem, [own, *_others(problem, sites, objective)], sites, objective)
    named = _full(problem, _schedules(named_schedules(problem, sites)), sites, objective)
    if named:
        start, _cost = completed(shared, _least(problem, named, sites, objective), sites, objective)
        vectors = refine(shared, sites, objective, [s.vector for s in start])
    elif len(model.states) <= SMALL:
        vectors = model.vectors(search(model))
    else:
        vectors = refine(shared, sites, objective)
    by_label = (*_by_labels(problem, sites), *_published(problem, sites, objective))
    others = [*named, *_full(problem, _schedules(by_label), sites, objective)]
    return _least(problem, [_unpublished(shared, vectors), *others], sites, objective)


def _model(published: Problem, sites: int, objective: Objective) -> Model:
    """The model over all viable vectors and all groups of a problem with publishing vertices."""
    free = free_candidates(sites, objective.exactly)
    groups = groups_of(published) if objective.gains_by_groups else ()
    return model_of(published, free, objective, groups, objective.memory)


def _least(
    problem: Problem, candidates: list[Schedules], sites: int, objective: Objective
) -> Schedules:
    """The cheapest schedules; the first among equals."""
    if len(candidates) == 1:
        return candidates[0]
    published = problem.published
    totals = [completed(published, c, sites, objective)[1] for c in candidates]
    least = min(totals)
    return next(c for c, t in zip(candidates, totals, strict=True) if t <= least * (1 + 1e-12))


def _by_labels(problem: Problem, sites: int) -> Iterator[tuple[str, Schedules]]:
    """Schedules that cut every label equally, or one label, by name.

    Of many labels only those of every contraction are cut.
    """
    yield "equal", _all_equal(problem, sites)
    labels = {x for v in problem.vertices if v.computes for x in v.labels}
    if len(labels) > MOST_LABELS:
        contractions = [set(v.labels) for v in problem.vertices if v.contraction]
        labels = set.intersection(*contractions) if contractions else set()
    for label in sorted(labels):
        yield f"data:{label}", _along(problem, sites, label)


def _published(
    problem: Problem, sites: int, objective: Objective
) -> Iterator[tuple[str, Schedules]]:
    """The choice of EinDecomp as published, if one fits the memory."""
    with suppress(OperationalError):
        yield "paper", _paper(problem, sites, "", objective)


def _schedules(named: Iterable[tuple[str, Schedules]]) -> Iterator[Schedules]:
    return (schedules for _, schedules in named)


def rivals(problem: Problem, sites: int, objective: Objective) -> Iterator[tuple[str, Schedules]]:
    """The choices of the strategies that apply to a problem, by name.

    Only strategies that fit the memory and use every site are admitted, as `eindecomp` does
    when it compares its choice with them.

    Args:
        problem: The problem, without publishing vertices.
        sites: p, the number of sites.
        objective: The objective to minimise.
    """
    candidates = chain(
        _published(problem, sites, objective),
        _by_labels(problem, sites),
        named_schedules(problem, sites),
    )
    for name, schedules in candidates:
        if _full(problem, [schedules], sites, objective):
            yield name, schedules


def _others(problem: Problem, sites: int, objective: Objective) -> list[Schedules]:
    """Schedules outside the free candidates, in which groups of sites may repeat operations."""
    free = free_candidates(sites, objective.exactly)
    named = (*named_schedules(problem, sites), *_by_labels(problem, sites))
    candidates = _full(problem, _schedules(named), sites, objective)
    return [
        schedules
        for schedules in candidates
        if any(
            s.copies > 1 or not (free(v) == s.vector).all(axis=1).any()
            for v, s in zip(problem.vertices, schedules, strict=True)
        )
    ]


def _full(
    problem: Problem, found: Iterable[Schedules], sites: int, objective: Objective
) -> list[Schedules]:
    """The schedules that fit the memory and use the number of sites required of contractions."""
    free = free_candidates(sites, objective.exactly)
    least = [
        int(free(v)[0].prod()) if objective.exactly and v.contraction else 0 if v.computes else -1
        for v in problem.vertices
    ]
    return [
        schedules
        for schedules in found
        if all(
            (few < 0 or few <= s.calls * s.copies <= sites)
            and v.disabled.isdisjoint(rules_of(v.roles, s.vector))
            for v, few, s in zip(problem.vertices, least, schedules, strict=True)
        )
        and all_fit(problem, schedules, objective.memory)
    ]


def _exact(problem: Problem, sites: int, _: str, objective: Objective) -> Schedules:
    shared = problem.published
    model = _model(shared, sites, objective)
    choice = eliminate(model)
    if choice is None:
        solution = solve(model)
        if solution is None or not solution[1]:
            raise OperationalError(
                "The best cut of this graph could not be proven within a minute",
                hint="SET strategy = 'eindecomp' finds a good cut without a proof.",
            )
        choice = solution[0]
    own = _unpublished(shared, model.vectors(choice))
    return _least(problem, [own, *_others(problem, sites, objective)], sites, objective)


def _paper(problem: Problem, sites: int, _: str, objective: Objective) -> Schedules:
    # The algorithm minimises floats for every objective, within the objective's memory.
    model = model_of(problem, paper_candidates(sites, objective.memory))
    return [Schedule(x) for x in model.vectors(solve_paper(model))]


def _all_equal(problem: Problem, sites: int) -> Schedules:
    parts = next(n for n in range(1, sites + 1) if n**3 >= sites)
    return _by_label(problem, sites, lambda label: parts)


def _data(problem: Problem, sites: int, label: str, _: Objective) -> Schedules:
    known = dict.fromkeys(x for v in problem.vertices if v.computes for x in v.labels)
    spelling = spelled(label.strip(), known)
    if spelling is None:
        raise InapplicableError(no_label(problem, (label,)))
    return _along(problem, sites, spelling)


def _along(problem: Problem, sites: int, label: str) -> Schedules:
    return _by_label(problem, sites, lambda name: sites if name == label else 1)


def _by_label(problem: Problem, sites: int, parts: Callable[[str], int]) -> Schedules:
    """Schedules that cut every label alike at all of its occurrences."""
    return [
        scheduled(v, [(n, parts(label)) for n, label in enumerate(v.labels)], sites)
        for v in problem.vertices
    ]


def _named(name: str) -> Choose:
    return lambda problem, sites, labels, _: by_name(name, problem, sites, labels)


STRATEGIES = {
    s.name: s
    for s in (
        Strategy(
            "eindecomp",
            "the least cost; in floats and bytes a contraction takes exactly as many calls as "
            "there are sites, in seconds at most as many",
            _eindecomp,
        ),
        Strategy("exact", "as eindecomp, proven optimal", _exact),
        Strategy(
            "paper",
            "EinDecomp as published, in floats: every operation takes the same power of two of "
            "calls",
            _paper,
        ),
        Strategy(
            "equal",
            "every label into ⌈∛sites⌉ parts",
            lambda problem, sites, *_: _all_equal(problem, sites),
        ),
        Strategy(
            "data",
            "only the named label is cut, as in data:batch",
            _data,
            "batch",
            needs_argument=True,
        ),
        Strategy(
            "model",
            "columns of weights; partial results are completed everywhere",
            _named("model"),
            "l,h",
        ),
        Strategy(
            "megatron",
            "heads and hidden columns; everything else in every group",
            _named("megatron"),
        ),
        Strategy("sequence", "the sequence that attention relates to itself", _named("sequence")),
        Strategy(
            "attention", "attention by heads, the rest by batch and sequence", _named("attention")
        ),
    )
}
"""Every strategy by its name."""


def strategy_of(text: str) -> tuple[Strategy, str]:
    """A strategy and its argument, from text such as `data:batch`.

    Raises:
        InterfaceError: There is no such strategy, or its argument is missing or superfluous.
    """
    name, colon, argument = text.partition(":")
    name = name.strip().lower()
    if name not in STRATEGIES:
        raise InterfaceError(
            f'There is no strategy "{name}"', hint=suggest(name, STRATEGIES, "strategies")
        )
    strategy = STRATEGIES[name]
    labels = [label.strip() for label in argument.split(",")]
    if strategy.argument and (strategy.needs_argument or colon) and not all(labels):
        raise InterfaceError(
            f'The strategy "{text}" is incomplete: it needs a label',
            hint=f"Name labels behind a colon, as in '{name}:{strategy.argument}'.",
        )
    if colon and not strategy.argument:
        takers = ", ".join(f"{s.name}:{s.argument}" for s in STRATEGIES.values() if s.argument)
        raise InterfaceError(
            f'The strategy "{name}" takes no label', hint=f"With a label: {takers}."
        )
    return strategy, argument
