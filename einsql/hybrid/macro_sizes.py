"""The size of a statement after DuckDB has expanded its macros, computed without an expansion.

DuckDB copies an argument to each place of its parameter. So nested macros can double a statement
at each level, which takes DuckDB's time and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.sql.macros.expansion import MAX_EXPANDED
from einsql.sql.macros.macros import Macro
from einsql.sql.parser.positions import position


@dataclass(frozen=True, slots=True)
class _Size:
    """A number of syntax nodes, in terms of the sizes of parameters.

    Attributes:
        nodes: The nodes without those of parameters.
        places: The number of places of each parameter that has one, by its name in lower case.
    """

    nodes: int
    places: dict[str, int]


@dataclass
class MacroSizes:
    """The sizes of the macros of one statement.

    Attributes:
        find: Function that returns the macro of a name, or None.
        known: The size of each macro's body, by the macro's name in lower case.
    """

    find: Callable[[str], Macro | None]
    known: dict[str, _Size] = field(default_factory=dict)

    def check(self, tree: exp.Expr) -> None:
        """Checks the size of a query's expansion.

        Raises:
            ProgrammingError: The macros add too many nodes; the error has the position of a call.
        """
        for call in tree.find_all(exp.Anonymous):
            if self.find(call.name) is not None and self._size(call, ()).nodes > MAX_EXPANDED:
                raise ProgrammingError(
                    f"Macros make what DuckDB runs more than {MAX_EXPANDED:,} nodes long",
                    hint="Name repeated parts in WITH, or compute them in a tensor.",
                    position=position(call),
                )

    def _size(self, node: exp.Expr, parameters: tuple[str, ...]) -> _Size:
        if isinstance(node, exp.Column) and node.name.lower() in parameters and not node.table:
            return _Size(0, {node.name.lower(): 1})
        macro = self.find(node.name) if isinstance(node, exp.Anonymous) else None
        if macro is None:
            return _sum(
                _Size(1, {}), [(1, self._size(n, parameters)) for n in node.iter_expressions()]
            )
        body = self._body(macro)
        names = [p.lower() for p in macro.parameters]
        arguments: list[tuple[int, _Size]] = []
        for name, argument in zip(names, node.expressions, strict=False):
            if isinstance(argument, exp.PropertyEQ):
                name, argument = argument.name.lower(), argument.expression
            arguments.append((body.places.get(name, 0), self._size(argument, parameters)))
        return _sum(_Size(body.nodes, {}), arguments)

    def _body(self, macro: Macro) -> _Size:
        low = macro.name.lower()
        if low not in self.known:
            self.known[low] = _Size(1, {})  # DuckDB refuses a macro that refers to itself
            self.known[low] = self._size(macro.body, tuple(p.lower() for p in macro.parameters))
        return self.known[low]


def _sum(first: _Size, terms: list[tuple[int, _Size]]) -> _Size:
    """The sum of sizes, each a number of times."""
    nodes, places = first.nodes, dict(first.places)
    for times, term in terms:
        nodes += times * term.nodes
        for name, count in term.places.items():
            places[name] = places.get(name, 0) + times * count
    return _Size(nodes, places)
