"""The cuts of a plan file for one graph, with the checks that need the graph."""

from __future__ import annotations

from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.core.units import plural
from einsql.errors import suggest
from einsql.ir.spmd.program import COPIES
from einsql.optimizer.decomposition.objective import cell_bytes
from einsql.optimizer.decomposition.pinned import Pinned
from einsql.optimizer.decomposition.problem import Problem, Vertex
from einsql.optimizer.plan_files.located_json import Document, Item
from einsql.optimizer.plan_files.plan_file import GraphPlan, NodePlan, PlanFile

MOST_CELLS = 2**16
"""Most cells of an operation; planning compares the tiles of cells pair by pair."""


def pins_of(
    plan: PlanFile, graph: GraphPlan, problem: Problem, memory: int | None
) -> dict[str, Pinned]:
    """The pinned operations of a graph, by name.

    Args:
        plan: The plan file; its number of sites is that of the session.
        graph: The entry of the graph in the file.
        problem: The decomposition problem of the graph.
        memory: The most bytes of a cell; None for no limit.

    Raises:
        ProgrammingError: A cut or a placement does not fit its operation. The message has the
            line and the column, and the hint has what fits.
    """
    vertices = {v.name: v for v in problem.vertices if v.computes}
    pins = {}
    for node in graph.nodes:
        name = str(node.name.value)
        if name not in vertices:
            raise plan.document.wrong(
                node.name.at, f'the graph has no node "{name}"', suggest(name, vertices, "nodes")
            )
        if node.parts is not None:
            labels = _labels(plan.document, node, vertices[name])
            pins[name] = _NodeCheck(
                plan.document, plan.sites, node, vertices[name], labels, memory
            ).pinned(node.parts)
    return pins


def _labels(document: Document, node: NodePlan, v: Vertex) -> dict[str, str]:
    """The labels of the graph by their names in the file; both are in the same order."""
    if node.labels is None:
        return {x: x for x in v.labels}
    extents = {name: item.value for name, item in _members(node.labels).items()}
    if tuple(extents.values()) != v.extents:
        known = ", ".join(f"{x} {n}" for x, n in zip(v.labels, v.extents, strict=True))
        raise document.wrong(
            node.labels.at,
            f"these are not the labels of {v.name}",
            f"Its labels with their extents are, in this order: {known or 'none'}.",
        )
    return dict(zip(extents, v.labels, strict=True))


@dataclass(frozen=True, slots=True)
class _NodeCheck:
    """The checks of the entry of one operation.

    Attributes:
        labels: The labels of the graph by their names in the file.
        memory: The most bytes of a cell; None for no limit.
    """

    document: Document
    sites: int
    node: NodePlan
    v: Vertex
    labels: dict[str, str]
    memory: int | None

    def pinned(self, parts_item: Item) -> Pinned:
        """The cut and the placement of the operation."""
        node = self.node
        parts = self._parts(parts_item)
        copies = 1 if node.copies is None else _integer(node.copies)
        missing = [name for name, label in self.labels.items() if label not in parts]
        for item in (node.copies, node.mesh, node.sites) if missing else ():
            if item is not None and item.value not in (None, 1):
                raise self.document.wrong(
                    item.at,
                    f"{self.v.name} has no parts for {', '.join(missing)}",
                    "Copies, a mesh and sites need the parts of every label.",
                )
        self._check_cells(parts_item, parts, copies)
        if missing:
            return Pinned(parts)
        self._check_memory(parts_item, parts)
        mesh = self._mesh(parts, copies)
        recut = node.mesh is not None and mesh is None
        return Pinned(parts, copies, mesh, self._sites(prod(parts.values()) * copies, mesh), recut)

    def _parts(self, item: Item) -> dict[str, int]:
        extents = dict(zip(self.v.labels, self.v.extents, strict=True))
        parts: dict[str, int] = {}
        for name, number in _members(item).items():
            label = self._label(name, item.names[name])
            parts[label] = _integer(number)
            most = max(1, extents[label])
            if parts[label] > most:
                raise self.document.wrong(
                    number.at,
                    f"{name} has too few values for {plural(parts[label], 'part')}: "
                    f"{extents[label]:,}",
                    f"1 to {most:,} parts are possible.",
                )
            if parts[label] > 1 and label in self.v.whole:
                raise self.document.wrong(
                    number.at,
                    f"{name} cannot be cut: a reduction over it needs all values of a group",
                    "Give it 1 part, and cut keys of the result.",
                )
        return parts

    def _label(self, name: str, at: int) -> str:
        if name not in self.labels:
            raise self.document.wrong(
                at,
                f'{self.v.name} has no label "{name}"',
                suggest(name, self.labels, f"labels of {self.v.name}"),
            )
        return self.labels[name]

    def _check_cells(self, item: Item, parts: dict[str, int], copies: int) -> None:
        """Refuses more cells than sites, except for the cuts of `paper` and `equal`."""
        cells = prod(parts.values())
        power = 1 << (self.sites - 1).bit_length()
        root = next(n for n in range(1, self.sites + 1) if n**3 >= self.sites)
        most = min(MOST_CELLS, power if copies == 1 else self.sites)
        is_equal = copies == 1 and max(parts.values(), default=1) <= root
        if cells * copies > most and not (is_equal and cells <= MOST_CELLS):
            raise self.document.wrong(
                item.at,
                f"{self.v.name} has {plural(cells * copies, 'cell')}, too many for "
                f"{plural(self.sites, 'site')}",
                f"The parts multiplied by each other and by the copies are at most {most:,}"
                + (f", or every label has at most {root} parts." if copies == 1 else "."),
            )

    def _check_memory(self, item: Item, parts: dict[str, int]) -> None:
        if self.memory is None:
            return
        vector = np.array([[parts[x] for x in self.v.labels]], np.int64)
        needed = int(cell_bytes(self.v, vector)[0])
        if needed > self.memory:
            raise self.document.wrong(
                item.at,
                f"a cell of {self.v.name} takes {needed:,} bytes, and site_memory is "
                f"{self.memory:,}",
                "More parts make smaller cells; SET site_memory allows larger ones.",
            )

    def _mesh(self, parts: dict[str, int], copies: int) -> tuple[str, ...] | None:
        """The cut labels in the order of the grid; labels with one part are dropped."""
        item = self.node.mesh
        if item is None or item.value is None:
            return None
        cut = {label: n for label, n in {**parts, COPIES: copies}.items() if n > 1}
        mesh = []
        for entry in _items(item):
            name = str(entry.value)
            label = COPIES if name == COPIES else self._label(name, entry.at)
            if label in cut:
                mesh.append(label)
        shown = {label: name for name, label in self.labels.items()} | {COPIES: COPIES}
        missing = [shown[x] for x in cut if x not in mesh]
        if missing:
            raise self.document.wrong(
                item.at,
                f"the mesh of {self.v.name} lacks {', '.join(missing)}",
                f"It lists {', '.join(shown[x] for x in cut)} in any order; without a mesh the "
                "planner chooses the order.",
            )
        return tuple(mesh)

    def _sites(self, cells: int, mesh: tuple[str, ...] | None) -> tuple[int, ...] | None:
        item = self.node.sites
        if item is None:
            return None
        if mesh is None:
            raise self.document.wrong(
                item.at, f"the sites of {self.v.name} need a mesh", "It gives the cells' order."
            )
        sites = [_integer(site) for site in _items(item)]
        if cells > self.sites:
            raise self.document.wrong(
                item.at,
                f"{self.v.name} has {plural(cells, 'cell')}, more than one for each site",
                "Without a list of sites, the cells are distributed evenly.",
            )
        if len(sites) != cells:
            raise self.document.wrong(
                item.at,
                f"{self.v.name} has {plural(cells, 'cell')}, and {plural(len(sites), 'site')} "
                f"{'is' if len(sites) == 1 else 'are'} listed",
                "Each cell needs a site; without a list the cells are distributed evenly.",
            )
        taken: set[int] = set()
        for entry, site in zip(_items(item), sites, strict=True):
            if site >= self.sites or site in taken:
                reason = "has a cell already" if site in taken else "does not exist"
                raise self.document.wrong(
                    entry.at,
                    f"the site {site} {reason}",
                    f"The sites are 0 to {self.sites - 1}, each for at most one cell.",
                )
            taken.add(site)
        return tuple(sites)


def _members(item: Item) -> dict[str, Item]:
    assert isinstance(item.value, dict), "the form was checked"
    return item.value


def _items(item: Item) -> list[Item]:
    assert isinstance(item.value, list), "the form was checked"
    return item.value


def _integer(item: Item) -> int:
    assert isinstance(item.value, int), "the form was checked"
    return item.value
