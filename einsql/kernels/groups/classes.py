"""Classes of labels: labels of several nodes that index the same key of a passed result."""

from __future__ import annotations

from collections.abc import Sequence

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import Axis, EinSum
from einsql.ir.einsum.intervals import fits, interval
from einsql.kernels.scalars import bounds_of

Name = tuple[int, str]
"""The number of a node and one of its labels."""


@dataclass(frozen=True, slots=True)
class Classes:
    """The labels of several nodes, grouped by key.

    Attributes:
        of: The class of each label, per node.
        rows: The classes with one value at a time: classes of extent 1, then `cut`.
        cut: The classes that are free keys of every node, in the order of the last node's keys.
        bounds: The bounds `[lo, hi)` of each class.
    """

    of: tuple[dict[str, int], ...]
    rows: tuple[int, ...]
    cut: tuple[int, ...]
    bounds: dict[int, tuple[int, int]]


def classify(nodes: Sequence[EinSum]) -> Classes | None:
    """The classes of ordered nodes; None if a node reads another node at other points.

    A label that indexes one of these nodes is free and ranges over that node's complete key.
    """
    number = {id(n): at for at, n in enumerate(nodes)}
    parent: dict[Name, Name] = {}

    def root(name: Name) -> Name:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for at, node in enumerate(nodes):
        for o in node.operands:
            producer = number.get(id(o.source))
            if producer is None:
                continue
            if len(set(o.labels)) < len(o.labels):
                return None
            for key, label in zip(nodes[producer].keys, o.labels, strict=True):
                written, read = nodes[producer].axis(key), node.axis(label)
                if not is_free(node, read) or not is_free(nodes[producer], written):
                    return None
                if (written.lo, written.hi) != (read.lo, read.hi):
                    return None
                parent[root((at, label))] = root((producer, key))
    names: dict[Name, int] = {}
    of: list[dict[str, int]] = []
    bounds: dict[int, tuple[int, int]] = {}
    for at, node in enumerate(nodes):
        own: dict[str, int] = {}
        for a in node.axes:
            own[a.label] = names.setdefault(root((at, a.label)), len(names))
            bounds[own[a.label]] = (a.lo, a.hi)
        if len(set(own.values())) < len(own):
            return None
        of.append(own)
    last = nodes[-1]
    cut = tuple(
        of[-1][k]
        for k in last.keys
        if all(_is_key(n, o, of[-1][k]) for n, o in zip(nodes, of, strict=True))
    )
    free = {o[a.label] for n, o in zip(nodes, of, strict=True) for a in n.axes if is_free(n, a)}
    bound = {
        o[a.label] for n, o in zip(nodes, of, strict=True) for a in n.axes if not is_free(n, a)
    }
    single = sorted(c for c in free - bound - set(cut) if bounds[c][1] - bounds[c][0] == 1)
    return Classes(tuple(of), (*single, *cut), cut, bounds)


def is_free(node: EinSum, axis: Axis) -> bool:
    """True for a free label, and for a derived label with a single possible value."""
    if axis.define is None:
        return True
    if axis.extent != 1 or axis.label in node.keys:
        return False
    bounds = bounds_of(node)
    return fits(interval(axis.define, bounds), axis.lo, axis.lo)


def _is_key(node: EinSum, own: dict[str, int], wanted: int) -> bool:
    return any(own[k] == wanted and node.axis(k).define is None for k in node.keys)
