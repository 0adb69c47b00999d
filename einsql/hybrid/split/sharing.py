"""Common subqueries of fragments: names of WITH and views that several fragments read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.hybrid.split.parts import PREFIX, Fragment
from einsql.sql.parser.dialect import EinSQL

View = Callable[[str], exp.Expr | None]
"""Returns the query of a view, or None."""


@dataclass(frozen=True, slots=True)
class Once:
    """A subquery that is computed once for several fragments.

    Attributes:
        name: The name in the fragments; for a view, the view's name.
        shown: The name in the statement, for EXPLAIN.
        tree: The query.
        foreign: Names of WITH that do not refer to tensors in the query.
    """

    name: str
    shown: str
    tree: exp.Expr
    foreign: frozenset[str]


def share(fragments: Sequence[Fragment], view: View) -> tuple[list[Once], list[Fragment]]:
    """Finds the subqueries that several fragments read.

    Args:
        fragments: The fragments of one statement.
        view: Callback that returns the query of a view, or None for other names.

    Returns:
        The shared subqueries in dependency order, and the fragments that read them.
    """
    if len(fragments) < 2:
        return [], list(fragments)
    readers: Counter[object] = Counter()
    for f in fragments:
        readers.update(_reads(f, view))
    often = {key for key, count in readers.items() if count > 1}
    if not often:
        return [], list(fragments)
    once_by_key: dict[object, Once] = {}
    for f in fragments:
        _collect(f, often, view, once_by_key)
    trees = (_over(f.foreign, _ctes(f.tree), _body(f.tree), once_by_key) for f in fragments)
    over = [replace(f, tree=tree) for f, tree in zip(fragments, trees, strict=True)]
    return list(once_by_key.values()), over


def _ctes(tree: exp.Expr) -> list[exp.CTE]:
    clause = tree.args.get("with_")
    return [] if clause is None else list(clause.expressions)


def _body(tree: exp.Expr) -> exp.Expr:
    body = tree.copy()
    body.set("with_", None)
    return body


def _names(tree: exp.Expr) -> set[str]:
    return {t.name.lower() for t in tree.find_all(exp.Table) if not t.args.get("db")}


def _key(foreign: frozenset[str], before: Sequence[exp.CTE], query: exp.Expr) -> object:
    """Returns a key that is equal for queries of equal meaning.

    The key has the query's text, the texts of earlier WITH names, and the names that do not
    refer to tensors.
    """
    names = _names(query).union(*(_names(c) for c in before))
    texts = ((c.alias.lower(), c.sql(dialect=EinSQL)) for c in before)
    return (foreign & names, *texts, query.sql(dialect=EinSQL))


def _reads(fragment: Fragment, view: View) -> set[object]:
    """Returns the keys of a fragment and of the subqueries and views that it reads."""
    ctes, body = _ctes(fragment.tree), _body(fragment.tree)
    wanted, reads = _names(body), {_key(fragment.foreign, ctes, body)}
    for n in reversed(range(len(ctes))):
        if ctes[n].alias.lower() in wanted:
            wanted |= _names(ctes[n].this)
            reads.add(_key(fragment.foreign, ctes[:n], ctes[n].this))
    return reads | {_key(frozenset(), [], query) for _, query in _views(fragment, view)}


def _views(fragment: Fragment, view: View) -> Iterator[tuple[str, exp.Expr]]:
    hidden = {c.alias.lower() for c in _ctes(fragment.tree)} | fragment.foreign
    for name in sorted(_names(fragment.tree) - hidden):
        query = view(name)
        if query is not None:
            yield name, query


def _collect(
    fragment: Fragment, often: set[object], view: View, once_by_key: dict[object, Once]
) -> None:
    for name, query in _views(fragment, view):
        key = _key(frozenset(), [], query)
        if key in often:
            once_by_key.setdefault(key, Once(name, name, query, frozenset()))
    ctes, body = _ctes(fragment.tree), _body(fragment.tree)
    reads = _reads(fragment, view)
    for n, cte in enumerate(ctes):
        key = _key(fragment.foreign, ctes[:n], cte.this)
        if key in often and key in reads and key not in once_by_key:
            tree = _over(fragment.foreign, ctes[:n], cte.this, once_by_key)
            once_by_key[key] = Once(
                f"{PREFIX}with_{len(once_by_key) + 1}", cte.alias, tree, fragment.foreign
            )
    key = _key(fragment.foreign, ctes, body)
    if key in often and key not in once_by_key:
        tree = _over(fragment.foreign, ctes, body, once_by_key)
        once_by_key[key] = Once(
            f"{PREFIX}with_{len(once_by_key) + 1}", fragment.name, tree, fragment.foreign
        )


def _over(
    foreign: frozenset[str],
    ctes: Sequence[exp.CTE],
    body: exp.Expr,
    once_by_key: dict[object, Once],
) -> exp.Expr:
    """Returns a query that reads the shared subqueries by name."""
    once = once_by_key.get(_key(foreign, ctes, body))
    if once is not None:
        return _read(once)
    tree, before = body.copy(), []
    for n, cte in enumerate(ctes):
        copy = cte.copy()
        once = once_by_key.get(_key(foreign, ctes[:n], cte.this))
        if once is not None:
            copy.set("this", _read(once))
        before.append(copy)
    if before:
        tree.set("with_", exp.With(expressions=before))
    return tree


def _read(once: Once) -> exp.Expr:
    table = exp.Table(this=exp.to_identifier(once.name, quoted=True))
    return exp.select("*").from_(table)
