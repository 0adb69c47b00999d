"""Other spellings of a query: the same relation in other words.

A spelling differs in the order of keys in SELECT, GROUP BY and PARTITION BY, in the order of
joins, in joins by USING, ON or WHERE, in parts of WITH that become subqueries, in the order of
factors, terms and sides of comparisons, and in the types of literals beside FLOAT values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from sqlglot import exp, parse_one

VALUE = "val"
"""The name of value columns; all other columns are keys."""
_MIRRORED: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.EQ: exp.EQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}


@dataclass(frozen=True)
class Spelling:
    """A query's text, and the names of its keys in order."""

    sql: str
    keys: tuple[str, ...]


def respelled(sql: str, tensors: Mapping[str, Sequence[str]], chance: Random | None) -> Spelling:
    """A spelling drawn at random; without `chance` the text as it is.

    Args:
        sql: The query. Sources with a column of one name are joined by USING or in WHERE.
        tensors: The keys of each tensor.
        chance: Draws the spelling.
    """
    tree: Any = parse_one(sql, dialect="duckdb")
    if chance is not None:
        columns = {name: (*keys, VALUE) for name, keys in tensors.items()}
        for part in tree.ctes:
            columns[part.alias] = tuple(p.alias_or_name for p in part.this.expressions)
        for select in list(tree.find_all(exp.Select)):
            _Select(select, columns, chance).respell()
        _commute(tree, chance)
        _retype(tree, chance)
        _inline(tree, chance)
        sql = tree.sql(dialect="duckdb")
    names = (p.alias_or_name for p in tree.expressions)
    return Spelling(sql, tuple(name for name in names if name != VALUE))


class _Select:
    """One SELECT whose joins and keys are spelled anew.

    Attributes:
        select: The node, which is changed.
        sources: FROM's relations by name.
        columns: The columns of each.
        merged: The sources that USING joins by a column, by its name.
    """

    def __init__(self, select: Any, columns: Mapping[str, Sequence[str]], chance: Random) -> None:
        self.select, self.chance = select, chance
        joins = select.args.get("joins") or []
        relations = [select.args["from_"].this, *(j.this for j in joins)]
        self.sources = {r.alias_or_name: r for r in relations}
        self.columns = {name: _columns(r, columns) for name, r in self.sources.items()}
        self.merged: dict[str, list[str]] = {}
        self.conditions: list[Any] = []
        for number, join in enumerate(joins):
            name = join.this.alias_or_name
            before = list(self.sources)[: number + 1]
            for column in (c.name for c in join.args.get("using") or []):
                first = next(s for s in before if column in self.columns[s])
                self.merged.setdefault(column, [first]).append(name)
            if join.args.get("on") is not None:
                self.conditions += _conjuncts(join.args["on"])
        if select.args.get("where") is not None:
            self.conditions += _conjuncts(select.args["where"].this)

    def respell(self) -> None:
        self._qualify()
        self._order_keys()
        if len(self.sources) > 1:
            self._order_joins()

    def _qualify(self) -> None:
        """Names the source of each column, the same one for each key of USING."""
        owner = {column: self.chance.choice(names) for column, names in self.merged.items()}
        for column in list(self.select.find_all(exp.Column)):
            if column.parent_select is not self.select:
                continue
            name = column.name
            if name in owner and (not column.table or column.table in self.merged[name]):
                column.set("table", exp.to_identifier(owner[name]))
            elif not column.table:
                owners = [s for s, names in self.columns.items() if name in names]
                if len(owners) == 1:
                    column.set("table", exp.to_identifier(owners[0]))

    def _order_keys(self) -> None:
        select, chance = self.select, self.chance
        group = select.args.get("group")
        if group is not None:
            chance.shuffle(group.expressions)
            grouped = {g.sql() for g in group.expressions}
            keys = [p for p in select.expressions if p.unalias().sql() in grouped]
        else:
            keys = [p for p in select.expressions if isinstance(p.unalias(), exp.Column)]
            keys = [p for p in keys if p.alias_or_name != VALUE]
        named = [exp.alias_(p.unalias().copy(), p.alias_or_name) for p in keys]
        chance.shuffle(named)
        for old, new in zip(keys, named, strict=True):
            old.replace(new)
        for window in select.find_all(exp.Window):
            if window.parent_select is select:
                chance.shuffle(window.args["partition_by"])

    def _order_joins(self) -> None:
        chance = self.chance
        names = chance.sample(list(self.sources), len(self.sources))
        style = chance.choice(["using", "on", "where"])
        if style == "using" and not self._may_use(names):
            style = "on"
        conditions = list(self.conditions)
        joins = []
        for number, name in enumerate(names[1:], 1):
            before = names[:number]
            shared = [c for c, members in self.merged.items() if name in members]
            shared = [c for c in shared if set(self.merged[c]) & set(before)]
            equal = [self._equality(c, name, before) for c in shared]
            join = exp.Join(this=self.sources[name].copy())
            if style == "where":
                conditions += equal
            elif style == "using" and shared:
                join.set(
                    "using", [exp.to_identifier(c) for c in chance.sample(shared, len(shared))]
                )
            else:
                placed = [c for c in conditions if _relates(c, name, before)]
                placed = [c for c in placed if not equal or chance.random() < 0.5]
                conditions = [c for c in conditions if all(c is not p for p in placed)]
                chance.shuffle(equal)
                if equal or placed:
                    join.set("on", exp.and_(*equal, *placed))
                else:
                    join.set("kind", "CROSS")
            joins.append(join)
        chance.shuffle(conditions)
        self.select.set("from_", exp.From(this=self.sources[names[0]].copy()))
        self.select.set("joins", joins)
        where = exp.Where(this=exp.and_(*conditions)) if conditions else None
        self.select.set("where", where)

    def _may_use(self, names: Sequence[str]) -> bool:
        """Whether a column has the same name in joined sources only."""
        for column, members in self.merged.items():
            if any(column in self.columns[n] and n not in members for n in names):
                return False
        return True

    def _equality(self, column: str, name: str, before: Sequence[str]) -> Any:
        other = self.chance.choice([s for s in self.merged[column] if s in before])
        return exp.EQ(this=exp.column(column, name), expression=exp.column(column, other))


def _columns(relation: Any, columns: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    own = relation.find(exp.TableAlias)
    if own is not None and own.parent is relation and own.columns:
        return tuple(c.name for c in own.columns)
    if isinstance(relation, exp.Subquery):
        return tuple(p.alias_or_name for p in relation.this.expressions)
    return tuple(columns[relation.name])


def _conjuncts(condition: Any) -> list[Any]:
    return [c.copy() for c in condition.flatten()] if isinstance(condition, exp.And) else [
        condition.copy()
    ]  # fmt: skip


def _relates(condition: Any, name: str, before: Sequence[str]) -> bool:
    """Whether a condition is on a relation and ones before it alone."""
    tables = {c.table for c in condition.find_all(exp.Column)}
    return name in tables and tables <= {name, *before} and not condition.find(exp.Select)


def _commute(tree: Any, chance: Random) -> None:
    for node in list(tree.find_all(exp.Mul, exp.Add, *_MIRRORED)):
        compares = type(node) in _MIRRORED
        if chance.random() < 0.5 and (compares or _has_value(node)):  # GROUP BY repeats keys
            left, right = (_closed(x.copy()) for x in (node.this, node.expression))
            kind = _MIRRORED.get(type(node), type(node))
            node.replace(kind(this=right, expression=left))


def _has_value(node: Any) -> bool:
    return any(c.name == VALUE for c in node.find_all(exp.Column))


def _closed(operand: Any) -> Any:
    return exp.Paren(this=operand) if isinstance(operand, exp.Binary) else operand


def _retype(tree: Any, chance: Random) -> None:
    """Writes literals beside values as INTEGER, DECIMAL or FLOAT; none makes a result DOUBLE."""
    for literal in _literals(tree):
        text = literal.this
        if "e" in text.lower():
            continue
        kind = chance.choice(["as it is", "DECIMAL", "FLOAT"])
        if kind == "DECIMAL":
            literal.replace(exp.Literal.number(f"{text}0" if "." in text else f"{text}.0"))
        elif kind == "FLOAT":
            literal.replace(exp.cast(literal.copy(), "FLOAT"))


def _literals(tree: Any) -> Iterator[Any]:
    for literal in list(tree.find_all(exp.Literal)):
        node = literal.parent
        if literal.is_string or not isinstance(node, (exp.Mul, exp.Add, exp.Sub, exp.Div)):
            continue
        other = node.expression if node.this is literal else node.this
        if _has_value(other):
            yield literal


def _inline(tree: Any, chance: Random) -> None:
    """Writes some parts of WITH where they are read."""
    kept = []
    share = chance.choice([0.0, 0.5, 1.0])
    for part in tree.ctes:
        reads = [t for t in tree.find_all(exp.Table) if t.name == part.alias and t is not part]
        if chance.random() >= share:
            kept.append(part)
            continue
        for table in reads:
            query = exp.Subquery(
                this=part.this.copy(),
                alias=exp.TableAlias(this=exp.to_identifier(table.alias_or_name)),
            )
            table.replace(query)
    if tree.ctes:
        tree.set("with_", exp.With(expressions=kept) if kept else None)
