"""Infers the roles of a network's labels from the algebra, independent of their names.

Labels that index the same axis in several operations belong to one *class*: a key of a result
and the label that reads it, or an axis of a stored tensor at all of its readers. The roles of
classes follow from contractions of results with stored tensors, the weights:

* A *stream* class is a key of the result and not of the weight, such as a batch.
* The *sequence* is the class that attention relates to itself: the product of two results has
  one stream label from each side.
* *Heads* are the other classes of that product, which come from weights.
* *Hidden* classes come from a weight whose operand is not cut, and are summed by the next
  weight: the columns of one weight and the rows of the other.
"""

from __future__ import annotations

from collections import Counter

from einsql.core.records import dataclass
from einsql.optimizer.decomposition.problem import Problem, Use, Vertex


@dataclass(frozen=True, slots=True)
class Structure:
    """The roles of label classes in a problem.

    Attributes:
        problem: The problem.
        classes: For each vertex the class of each label.
        stream: Classes that results carry past weights.
        sequence: Stream classes that attention relates; the other ones are the batch.
        heads: Classes over which attention is independent.
        columns: Classes of weights' labels in results, in the order of their first operation.
        hidden: Heads, and columns whose operations use no other hidden class.
        memory: For each vertex the labels of the sequence that index keys and values, where
            another label indexes queries.
    """

    problem: Problem
    classes: tuple[tuple[int, ...], ...]
    stream: tuple[int, ...]
    sequence: frozenset[int]
    heads: frozenset[int]
    columns: tuple[int, ...]
    hidden: frozenset[int]
    memory: tuple[frozenset[int], ...]

    @property
    def batch(self) -> tuple[int, ...]:
        """Stream classes that attention does not relate."""
        return tuple(c for c in self.stream if c not in self.sequence)


def structure_of(problem: Problem) -> Structure:
    """Infers the roles of a problem's labels."""
    classes = _classes(problem)
    stream = _stream(problem, classes)
    cores = [
        (n, pair)
        for n, v in enumerate(problem.vertices)
        if (pair := _related(v, classes[n], stream)) is not None
    ]
    sequence = frozenset(c for _, pair in cores for c in pair)
    inside = {c for n, _ in cores for c in classes[n]} - set(stream)
    heads = frozenset(
        classes[n][k]
        for n, _ in cores
        for k in problem.vertices[n].keys
        if k is not None and classes[n][k] not in stream
    )
    columns = _columns(problem, classes, stream)
    return Structure(
        problem,
        classes,
        stream,
        sequence,
        heads,
        columns,
        _hidden(problem, classes, stream, heads, frozenset(inside)),
        _memory(problem, classes, sequence),
    )


def _classes(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The class of each label; classes are numbered in the order of their first occurrence."""
    root: dict[object, object] = {}

    def find(x: object) -> object:
        at = root.setdefault(x, x)
        while at != root[at]:
            root[at] = root[root[at]]
            at = root[at]
        return at

    for n, v in enumerate(problem.vertices):
        for use in v.uses:
            producer = None if use.producer is None else problem.vertices[use.producer]
            for axis, label in enumerate(use.axes):
                if label is None:
                    continue
                if use.tensor is not None:
                    root[find((n, label))] = find((use.tensor, axis))
                if producer is not None and producer.keys[axis] is not None:
                    root[find((n, label))] = find((use.producer, producer.keys[axis]))
    numbers: dict[object, int] = {}
    return tuple(
        tuple(numbers.setdefault(find((n, k)), len(numbers)) for k in range(len(v.labels)))
        for n, v in enumerate(problem.vertices)
    )


def _matrices(v: Vertex) -> tuple[list[Use], list[Use]]:
    """The results and the stored matrices among the operands of a contraction."""
    if not v.contraction:
        return [], []
    results = [u for u in v.uses if u.producer is not None and u.tensor is None]
    stored = [u for u in v.uses if u.tensor is not None]
    return results, [u for u in stored if len(u.axes) > 1]


def _kept(v: Vertex, use: Use, other: Use) -> set[int]:
    """The result's labels that occur in one operand and not in the other."""
    own = {k for k in use.axes if k is not None and k in v.keys}
    return own - set(other.axes)


def _stream(problem: Problem, classes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Stream classes: most products of results and stored tensors keep them from the result."""
    votes: Counter[int] = Counter()
    for n, v in enumerate(problem.vertices):
        results, stored = _matrices(v)
        for r in results:
            for w in stored:
                votes.update({classes[n][k]: 1 for k in _kept(v, r, w)})
                votes.subtract({classes[n][k]: 1 for k in _kept(v, w, r)})
    return tuple(sorted(c for c, count in votes.items() if count > 0))


def _related(
    v: Vertex, classes: tuple[int, ...], stream: tuple[int, ...]
) -> tuple[int, int] | None:
    """The stream classes of the two sides of an attention's scores."""
    results, stored = _matrices(v)
    if len(results) != 2 or stored:
        return None
    left, right = (
        [k for k in sorted(_kept(v, a, b)) if classes[k] in stream]
        for a, b in (results, results[::-1])
    )
    return (classes[left[0]], classes[right[0]]) if len(left) == len(right) == 1 else None


def weights_of(v: Vertex, classes: tuple[int, ...], stream: tuple[int, ...]) -> list[Use]:
    """The weights among a contraction's operands: stored tensors without stream classes."""
    return [
        u for u in _matrices(v)[1] if not any(classes[k] in stream for k in u.axes if k is not None)
    ]


def _brought(v: Vertex, weights: list[Use]) -> list[int]:
    """The result's labels that occur only in weights."""
    others = {k for u in v.uses if all(u is not w for w in weights) for k in u.axes}
    return [
        k
        for k in dict.fromkeys(v.keys)
        if k is not None and k not in others and any(k in w.axes for w in weights)
    ]


def _columns(
    problem: Problem, classes: tuple[tuple[int, ...], ...], stream: tuple[int, ...]
) -> tuple[int, ...]:
    columns: dict[int, None] = {}
    for n, v in enumerate(problem.vertices):
        weights = weights_of(v, classes[n], stream)
        columns.update(dict.fromkeys(classes[n][k] for k in _brought(v, weights)))
    return tuple(columns)


def _hidden(
    problem: Problem,
    classes: tuple[tuple[int, ...], ...],
    stream: tuple[int, ...],
    heads: frozenset[int],
    inside: frozenset[int],
) -> frozenset[int]:
    """Heads and the columns of weights whose operands are not cut yet, chosen greedily.

    Args:
        problem: The problem.
        classes: The class of each label.
        stream: Classes of the stream.
        heads: Classes of heads.
        inside: All classes of attention's scores; the width of a head is not cut.
    """
    hidden, refused = set(heads), set(inside - heads)
    for n, v in enumerate(problem.vertices):
        weights = weights_of(v, classes[n], stream)
        for k in _brought(v, weights):
            c = classes[n][k]
            if c in hidden or c in refused:
                continue
            (refused if hidden & set(classes[n]) else hidden).add(c)
    return frozenset(hidden)


def _memory(
    problem: Problem, classes: tuple[tuple[int, ...], ...], sequence: frozenset[int]
) -> tuple[frozenset[int], ...]:
    """For each vertex the sequence label, of two, that it or a later operation sums."""
    summed: list[frozenset[int]] = [frozenset()] * len(problem.vertices)
    readers = problem.readers
    for n in reversed(range(len(problem.vertices))):
        v = problem.vertices[n]
        both = {k for k, c in enumerate(classes[n]) if c in sequence}
        if len(both) < 2:
            continue
        gone = both - set(v.keys)
        for m, operand in readers[n]:
            if gone:
                break
            axes = problem.vertices[m].uses[operand].axes
            gone = {k for k, at in zip(v.keys, axes, strict=True) if k in both and at in summed[m]}
        summed[n] = frozenset(k for k in gone if k is not None)
    return tuple(summed)
