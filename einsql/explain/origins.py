"""The parts of a statement that operations compute: parts of WITH, views and macros, with lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.ir.einsum.graph import EinSum, Roots, walk

if TYPE_CHECKING:
    from sqlglot import exp
else:
    exp = LazyModule("sqlglot.exp")

MAIN = "SELECT"
"""The origin of nodes that are in no part of WITH."""


def origins_of(roots: Roots, statement: exp.Expr | None) -> dict[int, tuple[str, ...]]:
    """Returns the origins of the operations of a graph.

    A node without an origin was made by a rewrite, and belongs to the part of its first reader.

    Args:
        roots: The optimized graph.
        statement: The statement's syntax: a query or a change; None gives no lines.

    Returns:
        Texts such as "softmax in p (lines 2 to 4)", by the id of the node.
    """
    spans = {} if statement is None else _spans(statement)
    kind = "SELECT" if statement is None else statement.key.upper()
    nodes = [n for n in walk(*roots) if isinstance(n, EinSum)]
    origins = {id(n): n.origins for n in nodes}
    for node in reversed(nodes):  # readers first
        for operand in node.operands:
            if not origins.get(id(operand.source), ("",)):
                origins[id(operand.source)] = origins[id(node)]
    return {
        key: tuple(_with_lines(o, spans, kind) for o in texts) for key, texts in origins.items()
    }


def _with_lines(origin: str, spans: dict[str, tuple[int, int]], kind: str) -> str:
    """An origin with the lines of the part that it names last; `kind` is that of the statement."""
    macro, _, part = origin.rpartition(" in ")
    if part == MAIN:
        origin = f"{macro} in {kind}" if macro else kind
    if part not in spans:
        return origin
    first, last = spans[part]
    return f"{origin} (line {first})" if first == last else f"{origin} (lines {first} to {last})"


def _spans(statement: exp.Expr) -> dict[str, tuple[int, int]]:
    """The first and the last line of each part of a statement's WITH, and of its SELECT."""
    clause = statement.args.get("with_")
    parts = {} if clause is None else {cte.alias: cte for cte in clause.expressions}
    spans = {name: span for name, cte in parts.items() if (span := _lines(cte, None)) is not None}
    rest = _lines(statement, clause)
    return spans if rest is None else {**spans, MAIN: rest}


def _lines(node: exp.Expr, without: exp.Expr | None) -> tuple[int, int] | None:
    """The lines of a syntax node's names; None if the parser has kept none."""

    def walked() -> Iterator[int]:
        for inner in node.walk(prune=lambda n: n is without):
            if inner is not without and "line" in inner.meta:
                yield inner.meta["line"]

    lines = list(walked())
    return (min(lines), max(lines)) if lines else None
