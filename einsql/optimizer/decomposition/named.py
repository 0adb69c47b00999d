"""Named strategies for neural networks, such as Megatron's (EinDecomp §9, tra-slides).

Each strategy ranks, for every vertex, the classes of labels to cut. Parts fixed by hints come
first, and a label for which no parts remain is not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import prod

import numpy as np

from einsql.errors import suggest
from einsql.optimizer.decomposition.problem import Problem, Vertex
from einsql.optimizer.decomposition.schedules import InapplicableError, Schedule, Schedules
from einsql.optimizer.decomposition.structure import Structure, structure_of
from einsql.optimizer.decomposition.vectors import divisors


def scheduled(v: Vertex, wanted: Iterable[tuple[int, int]], sites: int) -> Schedule:
    """A schedule that cuts some labels into requested parts, limited by the parts of hints.

    Args:
        v: The vertex.
        wanted: Labels by position, each with its parts.
        sites: The number of calls allowed if a hint fixes some parts.
    """
    vector = np.array([n or 1 for n in v.fixed] or [1] * len(v.labels), np.int64)
    for label, parts in wanted:
        if v.fixed:
            parts = 1 if v.fixed[label] is not None else min(parts, sites // int(vector.prod()))
        if not v.fixed or v.fixed[label] is None:
            vector[label] = max(1, min(parts, v.extents[label]))
    return Schedule(vector)


def megatron(s: Structure, sites: int) -> Schedules:
    """Cuts heads and hidden columns over one group of sites; repeats the rest at each of its sites.

    The remaining factor of the sites splits the batch, then the sequence.
    """
    wide = _most(s, s.hidden, sites)
    rest = sites // wide
    split = _stream_parts(s, rest)

    def schedule(n: int, v: Vertex) -> Schedule:
        inside = [k for k, c in enumerate(s.classes[n]) if c in s.hidden][:1]
        cut = scheduled(v, [*((k, wide) for k in inside), *_streams(s, n, split)], sites)
        if inside or v.stored:
            return cut
        return Schedule(cut.vector, max(1, sites // cut.calls))

    return _each(s, schedule)


def attention(s: Structure, sites: int) -> Schedules:
    """Attention by heads; everything else by batch, then sequence."""
    wide = _most(s, s.heads, sites)
    beside, alone = _stream_parts(s, sites // wide), _stream_parts(s, sites)

    def schedule(n: int, v: Vertex) -> Schedule:
        inside = [k for k, c in enumerate(s.classes[n]) if c in s.heads][:1]
        streams = _streams(s, n, beside if inside else alone)
        return scheduled(v, [*((k, wide) for k in inside), *streams], sites)

    return _each(s, schedule)


def sequence(s: Structure, sites: int) -> Schedules:
    """Cuts the sequence everywhere; if it is too short, the remaining parts cut the batch."""
    long = _most(s, s.sequence, sites)
    split = dict.fromkeys(s.sequence, long) | _parts(s, s.batch, sites // long)

    return _each(s, lambda n, v: scheduled(v, _streams(s, n, split), sites))


def model(s: Structure, sites: int, names: tuple[str, ...] = ()) -> Schedules:
    """Cuts every operation along a column of a weight.

    The columns of the last weight have priority. So each product of the forward pass is cut
    along its own weight's columns, and each product of the backward pass like its operand.
    Element-wise work on a partial result is repeated at every site, after an all-reduce.

    Args:
        s: The structure.
        sites: Parts of the label that an operation is cut along.
        names: Labels in order of preference, which replace the inferred columns.
    """
    order = [c for name in names for c in _called(s, name)] or s.columns[::-1]
    schedules: Schedules = []
    for n, v in enumerate(s.problem.vertices):
        partial = any(
            schedules[u.producer].vector[k] > 1
            for u in v.uses
            if u.producer is not None
            for k in s.problem.vertices[u.producer].reduced
        )
        if partial and v.computes and not (v.contraction or v.renames or v.fixed):
            schedules.append(Schedule(np.ones(len(v.labels), np.int64), sites))
            continue
        own = [k for c in order for k, label_class in enumerate(s.classes[n]) if label_class == c]
        best = sorted(own, key=lambda k: -min(sites, v.extents[k]))[:1]
        schedules.append(scheduled(v, [(k, sites) for k in best], sites))
    return schedules


def no_label(problem: Problem, names: Sequence[str]) -> str:
    """The message for a strategy whose labels do not occur in the problem."""
    known = dict.fromkeys(x for v in problem.vertices if v.computes for x in v.labels)
    meant = suggest(names[0], known, "labels")
    return f"finds no label {' or '.join(names)}" + (f" ({meant})" if meant else "")


def _called(s: Structure, name: str) -> list[int]:
    """The classes of the labels with a name."""
    wanted = spelled(name, dict.fromkeys(x for v in s.problem.vertices for x in v.labels))
    matches = (
        c
        for v, classes in zip(s.problem.vertices, s.classes, strict=True)
        for label, c in zip(v.labels, classes, strict=True)
        if label == wanted
    )
    return list(dict.fromkeys(matches))


def spelled(name: str, known: Collection[str]) -> str | None:
    """The graph's spelling of a label: names of SQL ignore case, those of EINSUM do not.

    None if there is no such label, or if several labels match it except for case.
    """
    matches = [x for x in known if x.lower() == name.lower()]
    return name if name in known else matches[0] if len(matches) == 1 else None


def _each(s: Structure, schedule: Callable[[int, Vertex], Schedule]) -> Schedules:
    return [schedule(n, v) for n, v in enumerate(s.problem.vertices)]


def _most(s: Structure, classes: Collection[int], sites: int) -> int:
    """The largest divisor of the sites that is a possible number of parts of all classes."""
    extents = (
        extent
        for v, own in zip(s.problem.vertices, s.classes, strict=True)
        for extent, c in zip(v.extents, own, strict=True)
        if c in classes
    )
    least = min(extents, default=1)
    return max(n for n in divisors(sites) if n <= max(1, least))


def _parts(s: Structure, classes: Iterable[int], sites: int) -> dict[int, int]:
    """Parts of classes: each in order gets as many of the remaining parts as it can."""
    parts: dict[int, int] = {}
    for c in classes:
        parts[c] = _most(s, [c], sites // prod(parts.values()))
    return parts


def _stream_parts(s: Structure, sites: int) -> dict[int, int]:
    """Parts of the batch, and the remaining parts for the sequence."""
    parts = _parts(s, s.batch, sites)
    left = sites // prod(parts.values())
    return parts | {c: _most(s, s.sequence, left) for c in s.sequence}


def _streams(s: Structure, n: int, parts: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Labels with their parts: one label for each class of the batch, one for the sequence."""
    done: set[int] = set()
    for k, c in enumerate(s.classes[n]):
        role = -1 if c in s.sequence else c
        if c in parts and role not in done and k not in s.memory[n]:
            done.add(role)
            yield k, parts[c]


Named = Callable[[Structure, int, tuple[str, ...]], Schedules]


def _without_names(choose: Callable[[Structure, int], Schedules]) -> Named:
    return lambda s, sites, names: choose(s, sites)


_NEEDS: dict[str, tuple[Callable[[Structure], bool], str, Named]] = {
    "megatron": (lambda s: bool(s.hidden), "weight that a result meets", _without_names(megatron)),
    "sequence": (lambda s: bool(s.sequence), "attention", _without_names(sequence)),
    "attention": (lambda s: bool(s.heads), "attention with heads", _without_names(attention)),
    "model": (lambda s: bool(s.columns), "weight that a result meets", model),
}
"""Each strategy's condition on a graph, its description for the error, and its function."""


def by_name(name: str, problem: Problem, sites: int, labels: str = "") -> Schedules:
    """A named strategy's schedules.

    Args:
        name: megatron, sequence, attention or model.
        problem: The problem.
        sites: p, the number of sites.
        labels: For `model`, comma-separated labels in order of preference.

    Raises:
        InapplicableError: The graph lacks the labels or the structure that the strategy cuts.
    """
    structure = structure_of(problem)
    applies, subject, choose = _NEEDS[name]
    names = tuple(x.strip() for x in labels.split(",")) if labels else ()
    if not names and (not structure.stream or not applies(structure)):
        raise InapplicableError(f"finds no {subject}")
    if names and not any(_called(structure, x) for x in names):
        raise InapplicableError(no_label(problem, names))
    return choose(structure, sites, names)


def named_schedules(problem: Problem, sites: int) -> Iterator[tuple[str, Schedules]]:
    """The names and schedules of all named strategies that apply to a problem."""
    structure = structure_of(problem)
    if structure.stream:
        for name, (applies, _, choose) in _NEEDS.items():
            if applies(structure):
                yield name, choose(structure, sites, ())
