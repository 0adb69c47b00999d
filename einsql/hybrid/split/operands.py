"""Whether a query over tables and tensors is tensor work that pays, and what it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import exp

from einsql.ir.einsum.graph import EinSum, Input, Node, children, labels_of, operands_of, walk

ROOMY = 16
"""A result may have so many keys for each point that it is computed from."""
SMALL = 2**20
"""A result with no more keys than this is small whatever it is computed from."""


def names_in(
    trees: Iterable[exp.Expr], is_tensor: Callable[[str], bool]
) -> tuple[frozenset[str], frozenset[str], bool]:
    """What queries name.

    Args:
        trees: The queries.
        is_tensor: Whether a name that WITH does not give means something of einsql's.

    Returns:
        All names, those of columns without a table, and whether `*` or NATURAL may be over
        columns of a table.
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
    """True if `*` may stand for columns of a table: not for those of WITH or a subquery."""
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
    """The names of WITH in reach of a SELECT, in small letters."""
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
    """What a query reads in FROM, without those names of its WITH that nothing reads."""
    body = tree.copy()
    body.set("with_", None)
    tables = list(body.find_all(exp.Table))
    clause = tree.args.get("with_")
    for cte in reversed([] if clause is None else clause.expressions):
        if any(t.name.lower() == cte.alias.lower() for t in tables):
            tables += cte.this.find_all(exp.Table)
    return tables


def refusal(root: Node, tables: set[str], is_ours: bool = False) -> str | None:
    """Why DuckDB is to run a query that binds with tables as operands, or None.

    It has to read a tensor, every operation over a table has to be joined by equalities
    with keys of tensors, and its groups must not be much more than what they are made of.

    Args:
        root: The bound query.
        tables: The inputs that are tables.
        is_ours: Whether DuckDB could not run it: its groups alone may be too many then.
    """
    nodes = walk(root)
    if not is_ours and all(n.name in tables for n in nodes if isinstance(n, Input)):
        return "no tensor is read"
    over: set[int] = set()
    for node in nodes:
        if isinstance(node, Input):
            if node.name in tables:
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
    connected = parts.pop() if parts else set()
    while parts:
        more = next((p for p in parts if p & connected), None)
        if more is None:
            return False
        connected |= more
        parts.remove(more)
    return True
