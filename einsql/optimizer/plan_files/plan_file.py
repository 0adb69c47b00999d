"""Plan files: their format, and the checks that need no graph (docs/how-to/plan-files.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field
from functools import lru_cache

from einsql.core.records import dataclass
from einsql.core.settings import MOST_SITES
from einsql.errors import suggest
from einsql.optimizer.plan_files.located_json import Document, Item

FORMAT = 1
"""The number of the format; a change that older versions would misread increments it."""

_TOP = ("format", "einsql", "sites", "strategy", "cost", "graphs")
_GRAPH = ("statement", "fingerprint", "inputs", "nodes")
_NODE = ("name", "expression", "labels", "parts", "copies", "mesh", "sites")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The entry of one operation. Attributes of items are None where the file has no such key.

    Attributes:
        name: The operation's name, as EXPLAIN numbers it.
        labels: The names of the free labels in the order of the graph, with their extents.
        parts: The number of parts of labels.
        copies: The number of groups of sites that each run all cells.
        mesh: The order of the labels on the grid; an item with None leaves it to the planner.
        sites: The site of each cell.
    """

    name: Item
    labels: Item | None
    parts: Item | None
    copies: Item | None
    mesh: Item | None
    sites: Item | None


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The entry of one graph."""

    fingerprint: str
    nodes: tuple[NodePlan, ...]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan file whose form is right.

    Attributes:
        sites: The number of sites that the cuts are for.
        graphs: The entries of graphs by fingerprint.
    """

    document: Document
    sites: int
    graphs: dict[str, GraphPlan] = field(default_factory=dict)


@lru_cache(maxsize=8)
def read_plan_file(path: str, text: str) -> PlanFile:
    """Reads the text of a plan file.

    Args:
        path: The file's name, for errors.
        text: The file's content.

    Raises:
        ProgrammingError: The text is no plan; the message has the line and the column.
    """
    document = Document(path, text)
    return _Form(document).file(document.parse())


class _Form:
    """Checks the form of a plan file."""

    def __init__(self, document: Document) -> None:
        self._document, self._wrong = document, document.wrong

    def file(self, item: Item) -> PlanFile:
        """The plan of a parsed text."""
        top = self._object(item, _TOP, "a plan", required=("format", "sites", "graphs"))
        number = self._integer(top["format"], "format", 1)
        if number != FORMAT:
            raise self._wrong(
                top["format"].at,
                f"the format {number} is unknown",
                f"This version of einsql reads format {FORMAT}; EXPORT PLAN writes it.",
            )
        sites = self._integer(top["sites"], "sites", 1, MOST_SITES)
        plan = PlanFile(self._document, sites)
        for entry in self._list(top["graphs"], "graphs"):
            members = self._object(entry, _GRAPH, "a graph", required=("fingerprint", "nodes"))
            name = self._text(members["fingerprint"], "a fingerprint").lower()
            if name in plan.graphs:
                at = members["fingerprint"].at
                raise self._wrong(at, "another graph has the same fingerprint")
            nodes = [*map(self._node, self._list(members["nodes"], "nodes"))]
            self._refuse_repeated((n.name for n in nodes), "another node has the same name")
            plan.graphs[name] = GraphPlan(name, tuple(nodes))
        return plan

    def _node(self, item: Item) -> NodePlan:
        members = self._object(item, _NODE, "a node", required=("name",))
        node = NodePlan(members["name"], *(members.get(x) for x in _NODE[2:]))
        self._text(node.name, "a name")
        for labelled, what, least in ((node.labels, "an extent", 0), (node.parts, "parts", 1)):
            for number in () if labelled is None else self._members(labelled).values():
                self._integer(number, what, least)
        if node.copies is not None:
            self._integer(node.copies, "copies", 1, MOST_SITES)
        if node.mesh is not None and node.mesh.value is not None:
            labels = self._list(node.mesh, "mesh")
            for label in labels:
                self._text(label, "a label")
            self._refuse_repeated(labels, "the mesh has this label twice")
        if node.sites is not None:
            for site in self._list(node.sites, "sites"):
                self._integer(site, "a site", 0, MOST_SITES - 1)
        if node.parts is None:
            for key in ("copies", "mesh", "sites"):
                if key in item.names:
                    raise self._wrong(
                        item.names[key],
                        f"{key} needs parts",
                        "A node without parts is planned as without a file.",
                    )
        return node

    def _object(
        self, item: Item, known: Iterable[str], what: str, required: Iterable[str]
    ) -> dict[str, Item]:
        members = self._members(item)
        for name in members:
            if name not in known:
                raise self._wrong(
                    item.names[name], f'{what} has no "{name}"', suggest(name, known, "names")
                )
        for name in required:
            if name not in members:
                raise self._wrong(item.at, f'{what} needs "{name}"')
        return members

    def _members(self, item: Item) -> dict[str, Item]:
        if not isinstance(item.value, dict):
            raise self._wrong(item.at, "expected an object in braces")
        return item.value

    def _list(self, item: Item, what: str) -> list[Item]:
        if not isinstance(item.value, list):
            raise self._wrong(item.at, f"{what} is a list in brackets")
        return item.value

    def _text(self, item: Item, what: str) -> str:
        if not isinstance(item.value, str):
            raise self._wrong(item.at, f"expected {what} in double quotes")
        return item.value

    def _integer(self, item: Item, what: str, least: int, most: int | None = None) -> int:
        number = item.value
        highest = math.inf if most is None else most
        if isinstance(number, int) and not isinstance(number, bool) and least <= number <= highest:
            return number
        limit = f"at least {least}" if most is None else f"{least} to {most:,}"
        raise self._wrong(item.at, f"{what} must be an integer, {limit}")

    def _refuse_repeated(self, items: Iterable[Item], reason: str) -> None:
        seen: set[object] = set()
        for item in items:
            if item.value in seen:
                raise self._wrong(item.at, reason)
            seen.add(item.value)
