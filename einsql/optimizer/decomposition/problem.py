"""What decomposition decides about: operations with labels, and who reads whose result.

A problem is the graph without its arithmetic. Only free labels can be cut; an operand
axis read through a derived label (a gather, a window) stays whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from einsql.einsum import TRUE, EinSum, Node, Value, walk
from einsql.optimizer.work import flops
from einsql.supersteps import tuple_bytes, with_state


@dataclass(frozen=True, slots=True)
class Use:
    """An operand of a vertex.

    Attributes:
        producer: The vertex that makes it; None for a stored tensor, which lies wherever
            its first reader wants it.
        axes: For each axis the position of its label in the vertex, None if never cut.
        shape: Extent of each axis, in elements.
        width: Fields of a tuple.
        nbytes: Bytes of a tuple.
    """

    producer: int | None
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]
    width: int = 1
    nbytes: int = 4


@dataclass(frozen=True, slots=True)
class Vertex:
    """An operation to cut.

    Attributes:
        labels: The free labels, each with its extent.
        uses: The operands.
        keys: For each axis of the result the position of its label, None if never cut.
        shape: Extents of the result.
        width: Fields of the result.
        contraction: True if it reduces a label over several operands; such an operation
            is worth exactly one kernel call per site.
        renames: True if it only hands on what it reads, under other names or in another
            order of keys; it costs nothing where it lies.
        publishes: True for no operation but the layout in which a result with several
            readers is kept for them.
        nbytes: Bytes of a tuple of the result.
        state_bytes: The same of a partial result.
        flops: Scalar operations at one point of the domain.
        double: True if it computes in values of 8 bytes.
    """

    name: str
    labels: tuple[str, ...]
    extents: tuple[int, ...]
    uses: tuple[Use, ...]
    keys: tuple[int | None, ...]
    shape: tuple[int, ...]
    width: int = 1
    contraction: bool = False
    renames: bool = False
    publishes: bool = False
    nbytes: int = 4
    state_bytes: int = 4
    flops: int = 2
    double: bool = False

    @property
    def reduced(self) -> tuple[int, ...]:
        """Positions of the labels that are aggregated."""
        return tuple(n for n in range(len(self.labels)) if n not in self.keys)

    @property
    def points(self) -> int:
        """Size of the iteration space."""
        return prod(self.extents)


@dataclass(frozen=True, slots=True)
class Problem:
    """Vertices, producers first."""

    vertices: tuple[Vertex, ...]

    @property
    def readers(self) -> list[list[tuple[int, int]]]:
        """For each vertex the (vertex, operand) pairs that read it."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.vertices]
        for n, v in enumerate(self.vertices):
            for k, use in enumerate(v.uses):
                if use.producer is not None:
                    found[use.producer].append((n, k))
        return found


def problem_of(root: Node) -> Problem:
    """The decomposition problem of a graph."""
    nodes = [n for n in walk(root) if isinstance(n, EinSum)]
    numbers = {id(n): k for k, n in enumerate(nodes)}
    return Problem(tuple(_vertex(n, numbers) for n in nodes))


def _vertex(node: EinSum, numbers: dict[int, int]) -> Vertex:
    free = [a for a in node.axes if a.define is None]
    positions = {a.label: n for n, a in enumerate(free)}
    uses = tuple(
        Use(
            numbers.get(id(o.source)),
            # The second axis of a diagonal follows the first: a site reads whole columns.
            tuple(
                positions.get(label) if label not in o.labels[:n] else None
                for n, label in enumerate(o.labels)
            ),
            o.source.schema.shape,
            len(o.source.schema.fields),
            tuple_bytes(o.source),
        )
        for o in node.operands
    )
    reduces = any(a.label not in node.keys for a in free)
    return Vertex(
        f"r{numbers[id(node)]}",
        tuple(a.label for a in free),
        tuple(a.extent for a in free),
        uses,
        tuple(positions.get(k) for k in node.keys),
        node.schema.shape,
        len(node.outputs),
        reduces and len(node.operands) > 1,
        renames(node),
        nbytes=tuple_bytes(node),
        state_bytes=tuple_bytes(with_state(node)),
        flops=flops(node) // max(1, node.points),
        double=any(o.dtype.numpy.itemsize > 4 for o in node.outputs),
    )


def renames(node: EinSum) -> bool:
    """True if every output is a field of the only operand, and every key is one of its keys."""
    return (
        len(node.operands) == 1
        and set(node.operands[0].labels) == set(node.keys) == {a.label for a in node.axes}
        and node.guard == TRUE
        and all(isinstance(a, Value) for o in node.outputs for a in o.args)
        and all(o.where == TRUE for o in node.outputs)
    )


def with_published(problem: Problem) -> Problem:
    """Puts a publishing vertex behind every result with several readers.

    It costs nothing itself; its layout is reached once and read by all, so a shared
    result is counted once against what its readers have in common.
    """
    readers = problem.readers
    vertices: list[Vertex] = []
    moved: dict[int, int] = {}
    for n, v in enumerate(problem.vertices):
        uses = tuple(
            u if u.producer is None else replace(u, producer=moved[u.producer]) for u in v.uses
        )
        vertices.append(replace(v, uses=uses))
        moved[n] = len(vertices) - 1
        cuttable = [k for k in v.keys if k is not None]
        if len(readers[n]) > 1 and cuttable:
            place = {k: m for m, k in enumerate(cuttable)}
            axes = tuple(None if k is None else place[k] for k in v.keys)
            vertices.append(
                Vertex(
                    f"{v.name}'",
                    tuple(v.labels[k] for k in cuttable),
                    tuple(v.extents[k] for k in cuttable),
                    (Use(moved[n], axes, v.shape, v.width, v.nbytes),),
                    axes,
                    v.shape,
                    v.width,
                    publishes=True,
                    nbytes=v.nbytes,
                )
            )
            moved[n] = len(vertices) - 1
    return Problem(tuple(vertices))
