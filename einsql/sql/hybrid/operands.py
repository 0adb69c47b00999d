"""Whether a query over tables and tensors is tensor work that pays, and what it names."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from einsql.einsum import EinSum, Input, Node, children, labels_of, operands_of, walk

ROOMY = 16
"""A result may have so many keys for each point that it is computed from."""
SMALL = 2**20
"""A result with no more keys than this is small whatever it is computed from."""


def names_in(trees: Iterable[exp.Expr]) -> tuple[frozenset[str], frozenset[str], bool]:
    """What queries name.

    Returns:
        All names, those of columns without a table, and whether `*` or NATURAL is there.
    """
    every, bare, starred = set[str](), set[str](), False
    for tree in trees:
        every |= {i.name.lower() for i in tree.find_all(exp.Identifier)}
        bare |= {c.name.lower() for c in tree.find_all(exp.Column) if not c.table}
        starred |= any(not isinstance(s.parent, exp.Count) for s in tree.find_all(exp.Star))
        starred |= any(str(j.args.get("method") or "") for j in tree.find_all(exp.Join))
    return frozenset(every), frozenset(bare), starred


def sources(tree: exp.Expr) -> list[exp.Table]:
    """What a query reads in FROM, without those names of its WITH that nothing reads."""
    body = tree.copy()
    body.set("with_", None)
    found = list(body.find_all(exp.Table))
    clause = tree.args.get("with_")
    for cte in reversed([] if clause is None else clause.expressions):
        if any(t.name.lower() == cte.alias.lower() for t in found):
            found += cte.this.find_all(exp.Table)
    return found


def refusal(root: Node, tables: set[str]) -> str | None:
    """Why DuckDB is to run a query that binds with tables as operands, or None.

    It has to read a tensor, every operation over a table has to be joined by equalities
    with keys of tensors, and its groups must not be much more than what they are made of.

    Args:
        root: The bound query.
        tables: The inputs that are tables.
    """
    nodes = walk(root)
    if all(n.name in tables for n in nodes if isinstance(n, Input)):
        return "no tensor is read"
    over: set[int] = set()
    for node in nodes:
        if isinstance(node, Input):
            if node.name in tables:
                over.add(id(node))
            continue
        if any(id(c) in over for c in children(node)):
            over.add(id(node))
            if not _joined(node):
                return "its join is by no key of a tensor"
            if node.schema.size > max(SMALL, ROOMY * node.points):
                return "its groups are far apart"
    return None


def _joined(node: EinSum) -> bool:
    """True if equalities hold all operands together, so that no pair of rows is tried in vain."""
    parts = [set(o.labels) for o in node.operands if o.labels]
    for axis in node.axes:
        if axis.define is not None:
            read = {axis.label} | labels_of(axis.define)
            for number in operands_of(axis.define):
                read |= set(node.operands[number].labels)
            parts.append(read)
        else:
            parts.append({axis.label})
    whole = parts.pop() if parts else set()
    while parts:
        more = next((p for p in parts if p & whole), None)
        if more is None:
            return False
        whole |= more
        parts.remove(more)
    return True
