"""Queries over tables and tensors: their names, and the decision whether einsql runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import exp

from einsql.ir.einsum.graph import (
    EinSum,
    Input,
    Node,
    TableInput,
    children,
    labels_of,
    operands_of,
    walk,
)

ROOMY = 16
"""The most result keys per point of the operands."""
SMALL = 2**20
"""Results with at most this many keys are small regardless of `ROOMY`."""


def names_in(
    trees: Iterable[exp.Expr], is_tensor: Callable[[str], bool]
) -> tuple[frozenset[str], frozenset[str], bool]:
    """Collects the names in queries.

    Args:
        trees: The queries.
        is_tensor: Callback that returns whether a name outside of WITH is an einsql object.

    Returns:
        All names, the names of unqualified columns, and whether `*` or NATURAL may
        cover columns of a table.
    """
    every, bare, starred = set[str](), set[str](), False
    for tree in trees:
        every |= {i.name.lower() for i in tree.find_all(exp.Identifier)}
        bare |= {c.name.lower() for c in tree.find_all(exp.Column) if not c.table}
        stars = (s for s in tree.find_all(exp.Star) if not isinstance(s.parent, exp.Count))
        starred = starred or any(_over_tables(s, is_tensor) for s in stars)
        starred |= any(str(j.args.get("method") or "") for j in tree.find_all(exp.Join))
    return frozenset(every), frozenset(bare), starred


def _over_tables(star: exp.Star, is_tensor: Callable[[str], bool]) -> bool:
    """Returns True if `*` may cover columns of a table, not only of WITH or a subquery."""
    select = star.find_ancestor(exp.Select)
    clause = None if select is None else select.args.get("from_")
    if select is None or clause is None:
        return True
    known = _names_of_with(select)
    items = [clause.this, *(j.this for j in select.args.get("joins") or ())]
    for item in items:
        if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Query):
            continue
        if not isinstance(item, exp.Table):
            return True
        source = item.this
        if isinstance(source, exp.Anonymous) and source.name.lower() == "gradient":
            source = source.expressions[-1] if source.expressions else source
            if isinstance(source, exp.Subquery):
                continue
        is_name = isinstance(source, exp.Identifier | exp.Column)
        if not is_name or not (source.name.lower() in known or is_tensor(source.name)):
            return True
    return False


def _names_of_with(select: exp.Expr) -> set[str]:
    """Returns the visible names of WITH in a SELECT, in lower case."""
    names = set[str]()
    inside: exp.Expr | None = None
    node: exp.Expr | None = select
    while node is not None:
        clause = node.args.get("with_")
        for cte in () if clause is None else clause.expressions:
            if cte is inside:
                break
            names.add(cte.alias.lower())
        inside, node = node if isinstance(node, exp.CTE) else inside, node.parent
    return names


def sources(tree: exp.Expr) -> list[exp.Table]:
    """Returns the tables of all FROM clauses, except in unused queries of WITH."""
    body = tree.copy()
    body.set("with_", None)
    tables = list(body.find_all(exp.Table))
    clause = tree.args.get("with_")
    for cte in reversed([] if clause is None else clause.expressions):
        if any(t.name.lower() == cte.alias.lower() for t in tables):
            tables += cte.this.find_all(exp.Table)
    return tables


def refusal(root: Node, is_ours: bool = False) -> str | None:
    """Returns the reason for running a query with tables as operands in DuckDB, or None.

    einsql runs the query under three conditions. It reads a tensor. Equalities with keys of
    tensors join every operation over a table. The number of groups does not greatly exceed the
    number of rows.

    Args:
        root: The bound query.
        is_ours: Whether DuckDB cannot run the query; then only its groups are checked.
    """
    nodes = walk(root)
    if not is_ours and all(isinstance(n, TableInput) for n in nodes if isinstance(n, Input)):
        return "no tensor is read"
    over: set[int] = set()
    for node in nodes:
        if isinstance(node, Input):
            if isinstance(node, TableInput):
                over.add(id(node))
            continue
        if any(id(c) in over for c in children(node)):
            over.add(id(node))
            if not is_ours and not _joined(node):
                return "its join is by no key of a tensor"
            if node.schema.size > max(SMALL, ROOMY * node.points):
                return "its groups are far apart"
    return None


def _joined(node: EinSum) -> bool:
    """Returns True if equalities connect all operands, so that there is no cross product."""
    parts = [set(o.labels) for o in node.operands if o.labels]
    for axis in node.axes:
        if axis.define is not None:
            read = {axis.label} | labels_of(axis.define)
            for number in operands_of(axis.define):
                read |= set(node.operands[number].labels)
            parts.append(read)
        else:
            parts.append({axis.label})
    connected = parts.pop() if parts else set()
    while parts:
        more = next((p for p in parts if p & connected), None)
        if more is None:
            return False
        connected |= more
        parts.remove(more)
    return True
