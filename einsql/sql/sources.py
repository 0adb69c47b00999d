"""FROM: tensors, subqueries, table functions and the joins between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.einsum import TRUE, Const, Label
from einsql.errors import Error, ProgrammingError, suggest
from einsql.schema import DType
from einsql.sql.einsum_call import bind_einsum
from einsql.sql.scalar import ScalarBinder, locate, position, unsupported
from einsql.sql.scope import Relation, Source, read
from einsql.sql.typed import Typed, apply, convert, truth

if TYPE_CHECKING:
    from einsql.sql.query import QueryBinder
    from einsql.sql.select import SelectBinder

TABLE_FUNCTIONS = ("range", "einsum")


def bind_from(query: QueryBinder, select: SelectBinder, node: exp.Select) -> None:
    """Adds every FROM item and join condition of a SELECT, left to right."""
    first = node.args.get("from_")
    if first is not None:
        bind_joined(query, select, first)
    for join in node.args.get("joins") or []:
        _join(query, select, join)


def bind_joined(query: QueryBinder, select: SelectBinder, clause: exp.Expr) -> None:
    """Adds the item of a FROM clause, with the joins that hang on it."""
    _add(query, select, clause.this)


def named_relation(query: QueryBinder, name: str, at: exp.Expr) -> Relation:
    """Resolves a relation by name: WITH, then view, then tensor or array.

    Raises:
        ProgrammingError: There is none.
    """
    for level in reversed(query.ctes):
        if name.lower() in level:
            return level[name.lower()]
    found = query.view(name) or query.catalog.relation(name)
    if found is None:
        known = [n for level in query.ctes for n in level] + query.catalog.names()
        raise ProgrammingError(
            f'There is no tensor "{name}"',
            hint=suggest(name, known, "tensors"),
            position=position(at),
        )
    return found


def _add(query: QueryBinder, select: SelectBinder, item: exp.Expr) -> Source:
    """Adds one FROM item and the joins written behind it in parentheses."""
    for arg in ("pivots", "sample", "version", "ordinality"):
        if item.args.get(arg):
            raise unsupported(arg.upper(), item)
    if isinstance(item, exp.Table) and isinstance(item.this, exp.GenerateSeries | exp.Anonymous):
        source = _function(query, select, item)
    elif isinstance(item, exp.Table):
        source = _table(query, select, item)
    elif isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table):
        return _add(query, select, item.this)
    elif isinstance(item, exp.Subquery):
        relation = query.bind(item.this)
        source = _scan(query, select, relation, item, item.alias or "unnamed_subquery")
    elif isinstance(item, exp.Values):
        raise unsupported("VALUES", item, "INSERT INTO a tensor … VALUES works.")
    else:
        raise unsupported(f"{item.key.upper()} in FROM", item)
    for join in item.args.get("joins") or []:
        _join(query, select, join)
    return source


def _scan(
    query: QueryBinder, select: SelectBinder, relation: Relation, at: exp.Expr, name: str
) -> Source:
    relation = query.renamed(relation, at.args.get("alias"), at)
    number, labels = select.domain.scan(relation.node)
    source = Source(name, read(relation, number, labels))
    select.scope.add(source, at)
    return source


def _table(query: QueryBinder, select: SelectBinder, item: exp.Table) -> Source:
    name = item.name
    if item.args.get("db") is not None:
        raise ProgrammingError(
            f"einsql has no schemas: {item.sql(dialect='duckdb')}", position=position(item)
        )
    is_path = bool(item.this.args.get("quoted")) and any(c in name for c in "./\\")
    if is_path:
        try:
            relation = query.catalog.relation(name) or query.catalog.file(name)
        except Error as error:
            raise locate(error, item) from None
    else:
        relation = query.named(name, item)
    return _scan(query, select, relation, item, item.alias or name)


def _function(query: QueryBinder, select: SelectBinder, item: exp.Table) -> Source:
    call = item.this
    if isinstance(call, exp.GenerateSeries):
        return _range(select, item, call)
    name, args = str(call.this), call.expressions
    alias = item.alias or name
    if name.lower() == "einsum":
        relation = bind_einsum(query, call)
        return _scan(query, select, relation, item, alias)
    relation_or_none = query.macro(name, args, call)
    if relation_or_none is None:
        raise ProgrammingError(
            f"There is no table function {name}",
            hint=suggest(name, TABLE_FUNCTIONS, "table functions"),
            position=position(item),
        )
    return _scan(query, select, relation_or_none, item, alias)


def _range(select: SelectBinder, item: exp.Table, call: exp.GenerateSeries) -> Source:
    """range(n) and range(lo, hi): a key without data."""
    if call.args.get("step") is not None and call.args["step"].name != "1":
        raise unsupported("range() with a step", item, "Multiply the key instead.")
    binder = ScalarBinder(select)
    ends = []
    for arg in ("start", "end"):
        value = convert(binder.bind(call.args[arg]), DType.BIGINT).value
        if not isinstance(value, Const):
            raise ProgrammingError("range() needs constant bounds", position=position(item))
        ends.append(int(value.value))
    lo, hi = ends[0], ends[1] + (0 if call.args.get("is_end_exclusive") else 1)
    alias = item.args.get("alias")
    names = [c.name for c in alias.args.get("columns") or []] if alias is not None else []
    label = select.domain.fresh(names[0] if names else "range", lo, hi)
    typed = Typed(Label(label), DType.BIGINT)
    source = Source(item.alias or "range", [(names[0] if names else "range", typed)])
    select.scope.add(source, item)
    return source


def _join(query: QueryBinder, select: SelectBinder, join: exp.Join) -> None:
    side, kind = join.args.get("side"), join.args.get("kind")
    method = join.args.get("method")
    if side or kind not in (None, "", "INNER", "CROSS") or method not in (None, "", "NATURAL"):
        words = " ".join(w for w in (method, side, kind) if w)
        raise unsupported(f"{words} JOIN", join, "Inner joins are tensor work.")
    before = list(select.scope.sources)
    new = _add(query, select, join.this)
    names = [n.name for n in join.args.get("using") or []]
    if method == "NATURAL":
        known = {n.lower() for s in before for n, _ in s.columns}
        names = [n for n, _ in new.columns if n.lower() in known]
        if not names:
            raise ProgrammingError(
                "NATURAL JOIN finds no common column", hint="CROSS JOIN needs none."
            )
        values = [n for n in names if not isinstance(_must(new, n, join).value, Label)]
        if values:
            query.notices.append(
                f"NATURAL JOIN also joins on the value column {', '.join(values)}; "
                "write USING to choose the columns."
            )
    for name in names:
        _using(select, before, new, name, join)
    if join.args.get("on") is not None:
        select.clause = "a join condition"
        select.domain.require(truth(ScalarBinder(select).condition(join.args["on"])))


def _must(source: Source, name: str, at: exp.Expr) -> Typed:
    found = source.get(name)
    if found is None:
        raise ProgrammingError(
            f'"{source.alias}" has no column "{name}"',
            hint=suggest(name, [n for n, _ in source.columns], f"columns of {source.alias}"),
            position=position(at),
        )
    return found


def _using(
    select: SelectBinder, before: list[Source], new: Source, name: str, at: exp.Expr
) -> None:
    """Equates a column of the new source with the one known under that name."""
    owners = [s for s in before if s.get(name) is not None and name.lower() not in s.merged]
    if len(owners) > 1:
        raise ProgrammingError(
            f"USING ({name}) is ambiguous: it is in {' and '.join(s.alias for s in owners)}",
            hint="Join them with USING too, or write ON.",
            position=position(at),
        )
    if not owners:
        known = [n for s in before for n, _ in s.columns]
        raise ProgrammingError(
            f'No table on the left has a column "{name}"',
            hint=suggest(name, known, "columns"),
            position=position(at),
        )
    left, right = _must(owners[0], name, at), _must(new, name, at)
    same = apply("eq", [left, right], True)
    select.domain.require(truth(same) if same.type is not None else TRUE)
    new.merged.add(name.lower())
