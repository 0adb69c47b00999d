"""The decomposition problem: operations with labels and the results that each operation reads.

A problem is the graph without its arithmetic. Only free labels can be cut. An operand axis that is
read by digits is cut with its highest digit; one that is read through another derived label (a
gather, a window) is not cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from einsql.core.boxes import extents, volumes
from einsql.core.machine import Effort
from einsql.core.records import cached_property, dataclass
from einsql.ir.einsum.affine import affine_labels
from einsql.ir.einsum.balance import Balance, balances_of
from einsql.ir.einsum.density import occupancy
from einsql.ir.einsum.flops import effort_at_point
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Input, Node, Value, walk
from einsql.ir.einsum.partial_states import merges, with_state
from einsql.ir.einsum.routing import routed, routed_groups
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import tuple_bytes, tuple_fields
from einsql.optimizer.decomposition.products import CutRule, Roles

PRODUCT_AND_SUM = Effort(2)
"""The operations of one point of a contraction."""

MANY = 2**62
"""More sites than any hint requests."""


@dataclass(frozen=True, slots=True)
class Use:
    """An operand of a vertex.

    Attributes:
        producer: The vertex that computes the operand; None for a stored tensor that has a copy at
            every site or no fixed sites.
        axes: For each axis the position of its label in the vertex, None if it is never cut.
        shape: The extent of each axis, in elements.
        width: Fields of a tuple; of a sparse relation the expected numbers for each key.
        nbytes: Bytes of a tuple, likewise.
        tensor: The name of a stored tensor.
        constant: Whether sites keep the operand in its reader's tiles for later runs.
        passed: Whether a group passes the operand in a cache and never stores it.
    """

    producer: int | None
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]
    width: float = 1
    nbytes: float = 4
    tensor: str | None = None
    constant: bool = False
    passed: bool = False


@dataclass(frozen=True, slots=True)
class Vertex:
    """An operation to cut.

    Attributes:
        labels: The free labels, each with its extent.
        uses: The vertex's operands.
        keys: For each axis of the result the position of its label, None if it is never cut.
        shape: Extents of the result.
        width: Fields of the result.
        contraction: True if it reduces a label over several operands; such an operation
            is worth exactly one kernel call per site.
        renames: True if it only changes names or the order of keys; it is free in the
            cut of its operand.
        publishes: True for a vertex that represents the layout in which a result
            is stored for several readers.
        nbytes: Bytes of a tuple of the result.
        state_bytes: Bytes of a tuple of a partial result.
        state_fields: The number of additional fields of a partial result.
        effort: The arithmetic operations of one point of the domain.
        double: True if it computes with values of 8 bytes.
        fixed: For each label the parts fixed by a hint or a declaration, None where
            the strategy is free; empty if no label is fixed.
        stored: True for a vertex that represents a stored tensor with fixed sites.
        constant: True if sites keep such a tensor in its readers' tiles for later runs.
        holders: The number of sites that store parts of a stored tensor; 0 if each tile of
            its cut has a separate site.
        whole: Labels that are not cut, because a reduction over them needs all values of a group.
        disabled: Names of rules that no vector may imply.
        passes: True if a group passes its result in a cache and never stores it.
        follows: True if it runs in the calls of another operation of its group.
        routed: The label of the keys that rows choose by a value, with its number of blocks.
        density: The expected fraction of points that exist, as sparse operands have elements.
        balances: The labels whose intervals have equally many elements of a sparse tensor instead
            of equal lengths, with the tensor's key.
    """

    name: str
    labels: tuple[str, ...]
    extents: tuple[int, ...]
    uses: tuple[Use, ...]
    keys: tuple[int | None, ...]
    shape: tuple[int, ...]
    width: float = 1
    contraction: bool = False
    renames: bool = False
    publishes: bool = False
    nbytes: float = 4
    state_bytes: float = 4
    state_fields: int = 0
    effort: Effort = PRODUCT_AND_SUM
    double: bool = False
    fixed: tuple[int | None, ...] = ()
    stored: bool = False
    constant: bool = False
    holders: int = 0
    whole: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    passes: bool = False
    follows: bool = False
    routed: tuple[tuple[str, int], ...] = ()
    density: float = 1.0
    balances: tuple[tuple[str, Balance], ...] = ()

    @property
    def roles(self) -> Roles:
        """The roles of the labels, which determine the rules that a vector implies."""
        operands = (frozenset(a for a in u.axes if a is not None) for u in self.uses)
        return Roles(self.contraction, frozenset(self.reduced), tuple(operands))

    @property
    def computes(self) -> bool:
        """True for a vertex that is an operation of the graph."""
        return not self.publishes and not self.stored

    @property
    def reduced(self) -> tuple[int, ...]:
        """Positions of the labels that are aggregated."""
        return tuple(n for n in range(len(self.labels)) if n not in self.keys)

    @property
    def points(self) -> int:
        """The size of the iteration space."""
        return prod(self.extents)


@dataclass(frozen=True, eq=False)
class Problem:
    """Operations and stored tensors.

    Attributes:
        vertices: The vertices, producers first.
        groups: The numbers of the operations that a site can run together, group by group,
            producers first. They run together where a choice cuts them alike (`groups`).
    """

    vertices: tuple[Vertex, ...]
    groups: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def readers(self) -> list[list[tuple[int, int]]]:
        """For each vertex the (vertex, operand) pairs that read it."""
        pairs: list[list[tuple[int, int]]] = [[] for _ in self.vertices]
        for n, v in enumerate(self.vertices):
            for k, use in enumerate(v.uses):
                if use.producer is not None:
                    pairs[use.producer].append((n, k))
        return pairs

    @cached_property
    def kinds(self) -> list[int]:
        """For each vertex the number of its kind; schedules cost the same for all of a kind."""
        number: dict[object, int] = {}
        return [
            number.setdefault(
                (cost_key(v), v.holders, tuple(u.constant for u in v.uses)), len(number)
            )
            for v in self.vertices
        ]

    @cached_property
    def published(self) -> Problem:
        """The problem with a publishing vertex after every result with several readers.

        A publishing vertex has no cost. Its layout is produced once and read by all readers, so a
        shared result is repartitioned once to a cut that serves its readers.
        """
        return _with_published(self)


def cost_key(v: Vertex) -> tuple[object, ...]:
    """The properties of a vertex that determine its costs, besides its states."""
    uses = tuple((u.axes, u.shape, u.width, u.nbytes, u.passed) for u in v.uses)
    kind = (v.contraction, v.renames, v.publishes, v.stored, v.effort, v.double)
    grouped = v.passes, v.follows, v.density
    fields = v.width, v.state_fields
    return v.extents, uses, v.keys, v.shape, fields, v.nbytes, v.state_bytes, kind, grouped


def problem_of(
    *roots: Node,
    sites: int = MANY,
    disabled: frozenset[str] = frozenset(),
    groups: Iterable[Sequence[EinSum]] = (),
) -> Problem:
    """The decomposition problem of a graph.

    Operations are named r0, r1, … in the graph's order. A stored tensor with fixed sites is a
    vertex with a single possible cut. A tensor with a copy at every site costs no reads and is
    not a vertex.

    Args:
        roots: The roots of the graph.
        sites: The number of sites, and the limit of calls that hints may request. A hint of
            one query block that exceeds it is refused earlier. Where several blocks became
            one operation, the operation's own hint has priority, and excess parts are ignored.
        disabled: Names of rules that no cut may imply.
        groups: The nodes that a site can run together, group by group.
    """
    disabled &= frozenset(CutRule)
    vertices: list[Vertex] = []
    numbers: dict[int, int] = {}
    operations = 0
    routes = _routes(roots, sites)
    known: dict[int, Mapping[str, Balance]] = {}
    for node in walk(*roots):
        if isinstance(node, EinSum):
            vertex = _vertex(node, f"r{operations}", numbers, sites)
            balances = balances_of(node, known)
            if balances:
                known[id(node)] = balances
                vertex = replace(vertex, balances=tuple(balances.items()))
            if id(node) in routes:
                vertex = _routed(vertex, node, routes[id(node)])
            if disabled:
                vertex = replace(vertex, disabled=disabled)
            operations += 1
        elif not node.settled or _everywhere(node, sites):
            continue
        else:
            vertex = _stored(node)
        numbers[id(node)] = len(vertices)
        vertices.append(vertex)
    together = (sorted(numbers[id(node)] for node in nodes) for nodes in groups)
    return Problem(tuple(vertices), tuple(map(tuple, together)))


@dataclass(frozen=True, slots=True)
class _Route:
    """The rows of a routed operation, or of one between routed ones.

    Attributes:
        home: The label that cuts the rows before they move, and after.
        parts: The number of its parts.
        arriving: The operands whose rows move to this operation.
        returns: Whether the rows of its result move back.
    """

    home: str
    parts: int
    arriving: tuple[int, ...]
    returns: bool


def _routes(roots: Sequence[Node], sites: int) -> dict[int, _Route]:
    """The route of each operation of a group of routed ones, by its identity."""
    groups = routed_groups(tuple(roots))
    routes: dict[int, _Route] = {}
    readers: dict[int, list[int]] = {}
    for node in walk(*roots) if groups else ():
        for o in node.operands if isinstance(node, EinSum) else ():
            readers.setdefault(id(o.source), []).append(id(node))
    for group in groups:
        inside = {id(n) for n in group.nodes}
        for node, rows in zip(group.nodes, group.rows, strict=True):
            home = rows[group.home()]
            wanted = dict(node.hint).get(home, sites)
            arriving = tuple(
                n
                for n, o in enumerate(node.operands)
                if id(o.source) not in inside and not set(rows).isdisjoint(o.labels)
            )
            read = readers.get(id(node), [])
            returns = not read or any(r not in inside for r in read)
            parts = min(wanted, sites, node.axis(home).extent)
            routes[id(node)] = _Route(home, parts, arriving, returns)
    return routes


def _routed(v: Vertex, node: EinSum, route: _Route) -> Vertex:
    """A vertex whose rows move to the blocks that they choose.

    It reads a block of the operands that are chosen, and its rows once more where they arrive. The
    estimate is for rows that choose all keys equally often.
    """
    fixed = tuple(route.parts if x == route.home else 1 for x in v.labels)
    uses = list(v.uses)
    routed_by = routed(node)
    if routed_by is not None:
        routing, parts = routed_by
        for n in routing.experts:
            labels = node.operands[n].labels
            length = -(-(routing.hi - routing.lo) // parts)
            shape = tuple(
                length if x == routing.label else extent
                for x, extent in zip(labels, uses[n].shape, strict=True)
            )
            uses[n] = replace(uses[n], shape=shape)
        v = replace(v, routed=((routing.label, parts),))
    at = v.labels.index(route.home)
    for n in route.arriving:
        rows = tuple(at if x == route.home else None for x in node.operands[n].labels)
        uses.append(replace(v.uses[n], producer=None, tensor=None, constant=False, axes=rows))
    if route.returns:
        rows = tuple(at if k == at else None for k in v.keys)
        uses.append(Use(None, rows, v.shape, v.width, v.nbytes))
    return replace(v, uses=tuple(uses), fixed=fixed)


def _everywhere(tensor: Input, sites: int) -> bool:
    """True for a stored tensor with a complete copy at every site."""
    if tensor.lies is not None:
        return tensor.lies.once == 1 and tensor.lies.copies == sites
    return max(tensor.parts or (), default=1) == 1


def _stored(tensor: Input) -> Vertex:
    schema, parts, holders = tensor.schema, tensor.parts or (), 0
    if tensor.lies is not None:
        parts = nearest_cut(tensor.lies, schema.shape)
        holders = len(np.unique(tensor.lies.sites[tensor.lies.volumes > 0]))
    return Vertex(
        tensor.name,
        tuple(k.name for k in schema.keys),
        schema.shape,
        (),
        tuple(range(len(schema.keys))),
        schema.shape,
        tuple_fields(tensor),
        nbytes=tuple_bytes(tensor),
        state_bytes=tuple_bytes(tensor),
        fixed=tuple(min(n, max(1, extent)) for n, extent in zip(parts, schema.shape, strict=True)),
        stored=True,
        constant=tensor.constant,
        holders=holders,
    )


def nearest_cut(tiles: Tiles, shape: Sequence[int]) -> tuple[int, ...]:
    """The number of parts into which tiles cut each axis.

    It is exact for an even or uneven grid, because its intervals have the mean length
    extent / parts. For other tiles the mean length determines the nearest grid.
    """
    boxes = tiles.boxes[: tiles.once]
    boxes = boxes[volumes(boxes) > 0]
    if not len(boxes):
        return (1,) * len(shape)
    return tuple(max(1, round(n)) for n in np.asarray(shape) / extents(boxes).mean(axis=0))


def _vertex(node: EinSum, name: str, numbers: dict[int, int], sites: int) -> Vertex:
    free = [a for a in node.axes if a.define is None]
    positions = {a.label: n for n, a in enumerate(free)}
    read = positions | _by_digits(node, positions)
    uses = []
    stated = with_state(node)
    whole = frozenset() if merges(node) else frozenset(positions) - frozenset(node.keys)
    for o in node.operands:
        schema = o.source.schema
        # The second axis of a diagonal follows the first: a site reads whole columns.
        axes = tuple(
            read.get(label) if label not in o.labels[:n] else None
            for n, label in enumerate(o.labels)
        )
        tensor = o.source.name if isinstance(o.source, Input) else None
        producer = numbers.get(id(o.source))
        width = tuple_fields(o.source)
        constant = isinstance(o.source, Input) and o.source.constant
        nbytes = tuple_bytes(o.source)
        uses.append(Use(producer, axes, schema.shape, width, nbytes, tensor, constant))
    return Vertex(
        name,
        tuple(a.label for a in free),
        tuple(a.extent for a in free),
        tuple(uses),
        tuple(positions.get(k) for k in node.keys),
        node.schema.shape,
        tuple_fields(node),
        any(a.label not in node.keys for a in free) and len(node.operands) > 1,
        renames(node),
        nbytes=tuple_bytes(node),
        state_bytes=tuple_bytes(stated),
        state_fields=len(stated.outputs) - len(node.outputs),
        effort=effort_at_point(node),
        double=any(o.dtype.numpy.itemsize > 4 for o in node.outputs),
        fixed=_fixed(node, free, whole, sites),
        whole=whole,
        density=occupancy(node),
    )


def _fixed(
    node: EinSum, free: list[Axis], whole: frozenset[str], sites: int
) -> tuple[int | None, ...]:
    """The parts of the free labels that are given: 1 for each label that is not cut."""
    if any(a.extent == 0 for a in node.axes):  # without points, one tile is empty as several
        return (1,) * len(free)
    hinted = _hinted(node, free, sites)
    if not whole:
        return hinted
    parts_of_labels = zip(free, hinted or (None,) * len(free), strict=True)
    return tuple(1 if a.label in whole else parts for a, parts in parts_of_labels)


def _by_digits(node: EinSum, positions: Mapping[str, int]) -> dict[str, int]:
    """For derived labels in mixed radix the position of the highest digit, which cuts them.

    Its parts are intervals of the label, of equal lengths except for the last ones.
    """
    axes = {a.label: a for a in node.axes}
    highest: dict[str, int] = {}
    for label, form in affine_labels(node).items():
        if len(form.steps) < 2 or min(form.steps.values()) < 1 or label in node.keys:
            continue
        top = max(form.steps, key=form.steps.__getitem__)
        step, extent = form.steps[top], axes[label].extent
        covers = step * (axes[top].extent - 1) < extent <= step * axes[top].extent
        if covers and form.is_injective(axes):
            highest[label] = positions[top]
    return highest


def _hinted(node: EinSum, free: list[Axis], sites: int) -> tuple[int | None, ...]:
    """The parts of the free labels by a grid or the PARTITION hint, at most one for each value."""
    if node.grid:
        along = {a.label: [g.size for g in node.grid if g.label == a.label] for a in free}
        return tuple(min(prod(along[a.label]), max(1, a.extent)) for a in free)
    extents = {a.label: max(1, a.extent) for a in free}
    parts_of_label: dict[str, int] = {}
    for label, parts in node.hint:
        wanted = min(parts, extents.get(label, 0))
        if wanted and wanted * prod(parts_of_label.values()) <= sites:
            parts_of_label[label] = wanted
    return tuple(parts_of_label.get(a.label) for a in free) if parts_of_label else ()


def renames(node: EinSum) -> bool:
    """True if every output is a field of the only operand, and every key is one of its keys."""
    return (
        len(node.operands) == 1
        and set(node.operands[0].labels) == set(node.keys) == {a.label for a in node.axes}
        and node.guard == TRUE
        and all(isinstance(a, Value) for o in node.outputs for a in o.args)
        and all(o.where == TRUE for o in node.outputs)
    )


def _with_published(problem: Problem) -> Problem:
    readers = problem.readers
    vertices: list[Vertex] = []
    moved: dict[int, int] = {}
    computing: list[int] = []
    for n, v in enumerate(problem.vertices):
        uses = tuple(
            u
            if u.producer is None or moved[u.producer] == u.producer
            else replace(u, producer=moved[u.producer])
            for u in v.uses
        )
        vertices.append(v if uses == v.uses else replace(v, uses=uses))
        moved[n] = len(vertices) - 1
        computing.append(moved[n])
        cuttable = [k for k in v.keys if k is not None]
        if len(readers[n]) > 1 and cuttable:
            place = {k: m for m, k in enumerate(cuttable)}
            axes = tuple(None if k is None else place[k] for k in v.keys)
            vertices.append(
                Vertex(
                    f"{v.name}'",
                    tuple(v.labels[k] for k in cuttable),
                    tuple(v.extents[k] for k in cuttable),
                    (Use(moved[n], axes, v.shape, v.width, v.nbytes, constant=v.constant),),
                    axes,
                    v.shape,
                    v.width,
                    publishes=True,
                    nbytes=v.nbytes,
                )
            )
            moved[n] = len(vertices) - 1
    groups = tuple(tuple(computing[n] for n in group) for group in problem.groups)
    return Problem(tuple(vertices), groups)
