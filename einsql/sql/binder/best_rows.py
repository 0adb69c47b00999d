"""The first rows of each partition in the order of a value: `QUALIFY ROW_NUMBER() OVER (…) <= k`.

NTH_MIN or NTH_MAX gives the number of each of these rows within its partition. The domain of the
rest of the SELECT has the keys of the partition and the number of the row in the order. The other
keys are computed from the number within the partition, so the columns are gathers of k rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from math import prod

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Label, Output, Value, bigint, call
from einsql.sql.binder.domain import Domain
from einsql.sql.binder.items import Item, find_alias
from einsql.sql.parser.positions import unsupported
from einsql.sql.scope.scope import Scope
from einsql.sql.typing.typed_expr import Typed

ROW_NUMBER = "row number"
"""The name of the key that numbers the rows of a partition, from 0; a space keeps it apart."""
LARGEST = 2**62
"""Greatest number of rows of a partition whose numbers are BIGINT."""


@dataclass(frozen=True, slots=True)
class BestRows:
    """A condition that holds for no other rows than the first of each partition.

    Attributes:
        window: The ROW_NUMBER.
        most: The number of rows.
        name: The column that a reader limits, in lower case; empty for QUALIFY.
    """

    window: exp.Window
    most: int
    name: str = ""


RowLimits = dict[int, BestRows]
"""The rows of SELECTs that their reader selects, by the id of the SELECT."""


def best_rows(qualify: exp.Expr, items: Sequence[Item], scope: Scope) -> BestRows | None:
    """Returns the rows of a condition on a ROW_NUMBER in QUALIFY, or None.

    Args:
        qualify: The condition of QUALIFY.
        items: The items of SELECT, whose aliases the condition may use.
        scope: The columns, which precede aliases.
    """
    terms = qualify.flatten() if isinstance(qualify, exp.And) else (qualify,)
    for term in terms:
        limit = row_limit(term)
        if limit is None:
            continue
        node, most = limit
        if isinstance(node, exp.Column) and scope.find(node.name, node.table or None) is None:
            alias = find_alias(items, node.name)
            node = node if alias is None else items[alias].node
        best = _limited(node, most)
        if best is not None:
            return best
    return None


def _limited(node: exp.Expr, most: int) -> BestRows | None:
    """The rows for which a ROW_NUMBER, or a ROW_NUMBER minus a literal, is at most `most`."""
    node = node.unnest()
    if isinstance(node, exp.Sub) and _literal(node.expression) > 0:
        return _limited(node.this, most + _literal(node.expression))
    if not isinstance(node, exp.Window) or not isinstance(node.this, exp.RowNumber):
        return None
    if node.args.get("order") is None or node.args.get("spec") is not None:
        return None
    return BestRows(node, most) if most > 0 else None


def row_limit(term: exp.Expr) -> tuple[exp.Expr, int] | None:
    """The expression x and the literal k of a condition that implies `x <= k`."""
    term = term.unnest()
    match term:
        case exp.LTE(this=node, expression=limit) | exp.GTE(this=limit, expression=node):
            most = _literal(limit)
        case exp.LT(this=node, expression=limit) | exp.GT(this=limit, expression=node):
            most = _literal(limit) - 1
        case exp.EQ(this=node, expression=limit):
            most = _literal(limit)
        case exp.Between(this=node):
            most = _literal(term.args["high"])
        case _:
            return None
    return (node.unnest(), most) if most >= 0 else None


def _literal(node: exp.Expr) -> int:
    """The value of an integer literal, -1 of any other expression."""
    plain = isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal()
    return int(node.name) if plain else -1


def limits_of_derived(select: exp.Select, shared: Container[int]) -> RowLimits:
    """The limits that WHERE sets to the ROW_NUMBER of a SELECT in FROM.

    Args:
        select: The SELECT with WHERE.
        shared: The ids of SELECTs that others read, too, as arguments of macros.
    """
    where, source = select.args.get("where"), select.args.get("from_")
    derived = None if source is None else source.this
    if where is None or not isinstance(derived, exp.Subquery) or id(derived.this) in shared:
        return {}
    return _limits(select, derived.this, derived)


def limits_of_ctes(query: exp.Select, clause: exp.With) -> RowLimits:
    """The limits that WHERE sets to the ROW_NUMBER of a name of WITH that is read once."""
    limits: RowLimits = {}
    for cte in clause.expressions:
        if cte.this.find(exp.RowNumber) is None or cte.args["alias"].args.get("columns"):
            continue
        name = cte.alias.lower()
        readers = [t for t in query.find_all(exp.Table) if t.name.lower() == name]
        if len(readers) != 1 or not isinstance(readers[0].parent, exp.From):
            continue
        if _is_argument(query, name):
            continue
        reader = readers[0].parent.parent
        if isinstance(reader, exp.Select):
            limits |= _limits(reader, cte.this, readers[0])
    return limits


def _is_argument(query: exp.Select, name: str) -> bool:
    """Whether an identifier may name a table other than in FROM, as an argument of a macro."""
    for identifier in query.find_all(exp.Identifier):
        parent = identifier.parent
        qualifies = isinstance(parent, exp.Column) and identifier.arg_key == "table"
        in_from = isinstance(parent, exp.Table | exp.TableAlias)
        if identifier.name.lower() == name and not qualifies and not in_from:
            return True
    return False


def _limits(reader: exp.Select, derived: exp.Expr, source: exp.Expr) -> RowLimits:
    """The limit that a SELECT sets to the ROW_NUMBER of another one.

    Args:
        reader: The SELECT with WHERE.
        derived: The query that it reads.
        source: This query in FROM.
    """
    where, alias = reader.args.get("where"), source.args.get("alias")
    if where is None or not isinstance(derived, exp.Select):
        return {}
    if alias is not None and alias.args.get("columns"):
        return {}
    if any(derived.args.get(x) for x in ("distinct", "limit", "offset", "qualify")):
        return {}
    terms = where.this.flatten() if isinstance(where.this, exp.And) else (where.this,)
    for term in terms:
        limit = row_limit(term)
        if limit is None:
            continue
        column, most = limit
        if not isinstance(column, exp.Column):
            continue
        named = [e for e in derived.expressions if e.alias_or_name.lower() == column.name.lower()]
        mine = column.table.lower() == source.alias_or_name.lower()
        if len(named) != 1 or not (mine or (not column.table and not reader.args.get("joins"))):
            continue
        best = _limited(named[0].unalias(), most)
        if best is not None:
            return {id(derived): replace(best, name=column.name.lower())}
    return {}


def in_order(
    best: BestRows, domain: Domain, keys: tuple[str, ...], bind: Callable[[exp.Expr], Typed]
) -> tuple[Domain, Typed] | None:
    """Returns the domain of the best rows, and the value of their ROW_NUMBER.

    Args:
        best: The condition.
        domain: The domain of all rows.
        keys: The labels of PARTITION BY.
        bind: Binds an expression over the rows.

    Returns:
        None if the order is that of a key, which ordered windows have.

    Raises:
        NotSupportedError: The order may contain NULL, or is one of several values.
    """
    window = best.window
    first, *ties = window.args["order"].expressions
    ordered = bind(first.this)
    if ordered.type is DType.BIGINT:
        moved = domain.shift(domain.canonical(ordered.value))
        if moved is not None and moved[0] in domain.free:
            return None
    if ordered.type is None or ordered.valid != TRUE:
        raise unsupported("A window with ORDER BY a value that may be NULL", window)
    members = [x for x in domain.free if x not in keys]
    for label in domain.free:
        domain.refuse_edges(Label(label))
    extents = [domain.axes[x][1] - domain.axes[x][0] for x in members]
    if prod(extents) >= LARGEST:
        raise unsupported("A window over so many rows", window)
    number = _number(domain, members)
    if ties and not _follows(ties, domain, members, bind):
        raise unsupported("A window with ORDER BY several values", window)
    most = min(best.most, max(1, prod(extents)))
    reduction = "nth_max" if first.args.get("desc") else "nth_min"
    rows = domain.copy()
    place = rows.fresh(ROW_NUMBER, 0, most)
    terms = (number, ordered.value, Label(place))
    chosen = rows.node((*keys, place), [Output("row", terms, DType.BIGINT, reduction)])
    counted = domain.node(keys, [Output("count", (bigint(1),), DType.BIGINT, "sum")])
    return _gathered(domain, keys, members, (chosen, counted))


def _gathered(
    domain: Domain, keys: tuple[str, ...], members: Sequence[str], nodes: tuple[EinSum, EinSum]
) -> tuple[Domain, Typed]:
    """The domain of the chosen rows, and their ROW_NUMBER.

    Args:
        domain: The domain of all rows.
        keys: The labels of the partitions.
        members: The other free labels.
        nodes: The number of each chosen row within its partition, and the size of partitions.
    """
    chosen, counted = nodes
    best = domain.copy()
    place = best.fresh(ROW_NUMBER, 0, chosen.schema.keys[-1].hi)
    for key in keys:
        best.defines.pop(key, None)
    row: Expr = Value(best.lookup(chosen, (*keys, place)), "row", DType.BIGINT)
    count = Value(best.lookup(counted, keys), "count", DType.BIGINT)
    best.guards.insert(0, call("lt", DType.BOOLEAN, Label(place), count))
    for label in reversed(members):
        lo, hi = best.axes[label]
        extent = bigint(max(1, hi - lo))
        at = call("mod", DType.BIGINT, row, extent) if label != members[0] else row
        row = call("idiv", DType.BIGINT, row, extent)
        best.defines[label] = call("add", DType.BIGINT, at, bigint(lo)) if lo else at
    return best, Typed(call("add", DType.BIGINT, Label(place), bigint(1)), DType.BIGINT)


def _number(domain: Domain, members: Sequence[str]) -> Expr:
    """The number of a row within its partition, in the order of keys."""
    number: Expr | None = None
    for label in members:
        lo, hi = domain.axes[label]
        at: Expr = call("sub", DType.BIGINT, Label(label), bigint(lo)) if lo else Label(label)
        if number is None:
            number = at
        else:
            scaled = call("mul", DType.BIGINT, number, bigint(max(1, hi - lo)))
            number = call("add", DType.BIGINT, scaled, at)
    return bigint(0) if number is None else number


def _follows(
    ties: Sequence[exp.Expr],
    domain: Domain,
    members: Sequence[str],
    bind: Callable[[exp.Expr], Typed],
) -> bool:
    """Whether the further expressions of ORDER BY are the keys of rows in ascending order."""
    bound = [(bind(t.this), t.args.get("desc")) for t in ties]
    labels = [domain.canonical(t.value) for t, descends in bound if not descends]
    return labels == [Label(x) for x in members][: len(labels)] and len(labels) == len(ties)
