"""Random queries over a random database: joins, groups, windows, subqueries and CTEs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.support.oracle.aggregates import Frame
from tests.support.oracle.choices import Choices
from tests.support.oracle.data import Database
from tests.support.oracle.expressions import Expressions, integer
from tests.support.oracle.joins import MOST_ROWS, From, Joins
from tests.support.oracle.ordering import ordering
from tests.support.oracle.relations import Column, E, Relation, UnsoundError
from tests.support.oracle.texts import computed
from tests.support.oracle.windows import Windows


@dataclass
class Query:
    """A query and how to compare its answer.

    Attributes:
        sql: The text both sides run.
        oracle: The same query with ties settled, followed by one column per inexact
            column that bounds its error; equal to `sql` where nothing is inexact.
        columns: The result's columns, without the bounds.
        tags: Lines of the semantics table it touches.
        in_fragment: It should run without DuckDB's help.
        may_raise: Both sides may refuse it.
        ordered: Its rows have one order.
    """

    sql: str
    oracle: str
    columns: list[Column]
    tags: set[str]
    in_fragment: bool
    may_raise: bool
    ordered: bool = False


@dataclass
class Item:
    """One SELECT item."""

    name: str
    e: E
    bare: bool = False

    def text(self, oracle: bool) -> str:
        """The text of the item in the SELECT list."""
        shown = self.e.oracle if oracle else self.e.sql
        return shown if self.bare else f"{shown} AS {self.name}"


@dataclass
class Select:
    """The parts of a SELECT block."""

    items: list[Item]
    source: From
    where: list[E] = field(default_factory=list)
    group: str = ""
    having: E | None = None
    qualify: str = ""
    distinct: str = ""

    def text(self, oracle: bool, errors: Sequence[str] = ()) -> str:
        """The block as SQL."""
        items = [i.text(oracle) for i in self.items] + list(errors if oracle else ())
        terms = [*self.source.conditions, *self.where]
        text = f"SELECT {self.distinct}{', '.join(items)} FROM "
        text += self.source.oracle if oracle else self.source.sql
        if terms:
            text += " WHERE " + " AND ".join(t.oracle if oracle else t.sql for t in terms)
        if self.group:
            text += f" GROUP BY {self.group}"
        if self.having is not None:
            text += f" HAVING {self.having.oracle if oracle else self.having.sql}"
        if self.qualify:
            text += f" QUALIFY {self.qualify}"
        return text


class Generator:
    """Makes random queries over one database."""

    def __init__(self, c: Choices, db: Database) -> None:
        self.c = c
        self.tags: set[str] = set()
        self.may_raise = c.chance(6)
        self.ex = Expressions(c, db.float_math == "float", self.tags, db.macros)
        self.mixed = c.chance(40)  # DuckDB may run a part, which settles ties as it likes
        self.ex.aggregates.ties = not self.mixed
        self.joins = Joins(self.ex, self.tags, self._subquery)
        self.windows = Windows(self.ex)
        self.tables = list(db.relations)
        self.names = [r.sql for r in db.relations if r.sql.isidentifier()]
        self.statements = " ".join(db.statements)
        self.in_fragment = True
        self._named = 0

    def query(self) -> Query:
        """A whole statement."""
        texts: list[tuple[str, str]] = []
        for n in range(self.c.weighted([(12, 0), (4, 1), (2, 2)])):
            block = self._select(self.c.below(2))
            name = self._cte_name(n, block)
            texts.append((f"{name} AS {block.sql}", f"{name} AS {block.oracle}"))
            # A CTE stands in front so that it is likely to be read, maybe twice.
            others = [t for t in self.tables if t.sql != name]
            self.tables = [replace(block, sql=name, oracle=name)] * 3 + others
        final = self._select(2, top=True)
        order = self._order(final, 60)
        sql, oracle = final.sql[1:-1] + order, final.oracle[1:-1] + order
        if texts:
            sql = f"WITH {', '.join(a for a, _ in texts)} {sql}"
            oracle = f"WITH {', '.join(b for _, b in texts)} {oracle}"
        return Query(
            sql, oracle, final.columns, self.tags, self.in_fragment, self.may_raise, bool(order)
        )

    def _cte_name(self, n: int, block: Relation) -> str:
        """A new name, or that of a table that nothing before reads."""
        read = f"{self.statements} {block.sql}"
        hidden = [t for t in self.names if not re.search(rf"\b{t}\b", read)]
        if not hidden or not self.c.chance(15):
            return f"c{n}"
        name = self.c.pick(hidden)
        self.names.remove(name)
        return name

    def _subquery(self, depth: int) -> Relation:
        return self._select(depth)

    # ---- SELECT ----------------------------------------------------------------------

    def _select(self, depth: int, top: bool = False) -> Relation:
        source = self.joins.source(self.tables, depth)
        where = self._where(source)
        self._note_empty(source)
        if top and self.mixed and self.c.chance(10):
            return self._outside(source, where)
        shape = self.c.weighted([(8, self._grouped), (5, self._mapped), (3, self._windowed)])
        block = shape(source, where, top)
        if top:
            return block
        order = self._order(block, 18, limited=True)
        return replace(
            block, sql=f"{block.sql[:-1]}{order})", oracle=f"{block.oracle[:-1]}{order})"
        )

    def _order(self, block: Relation, percent: int, limited: bool = False) -> str:
        """Sometimes an ORDER BY with or without a limit."""
        if not self.mixed or not self.c.chance(percent):
            return ""
        order = ordering(self.c, block, self.tables, limited)
        self._outside_if(bool(order))
        return order

    def _where(self, source: From) -> list[E]:
        leaves = [e for e in source.leaves if not e.raises]
        return [
            self.ex.condition(leaves, 1) for _ in range(self.c.weighted([(6, 0), (4, 1), (1, 2)]))
        ]

    def _note_empty(self, source: From) -> None:
        if any(e.key is not None and e.key[0] >= e.key[1] for e in source.leaves):
            self.tags.add("bound_0")

    def _mapped(self, source: From, where: list[E], top: bool) -> Relation:
        leaves = source.leaves + self._scalar_subqueries(source)
        keys = self._kept(source.keys, most=80)
        items = [self._key_item(source, k) for k in keys]
        for _ in range(self.c.weighted([(8, 1), (2, 2), (1, 3)])):
            truth = self.c.chance(12)
            e = self.ex.condition(leaves, 1) if truth else self.ex.number(leaves, 2)
            items.append(self._value_item(e))
        if top and self.may_raise:
            items.append(self._value_item(self.ex.risky(leaves)))
        if self.c.chance(6):
            items.extend(self._decimal(source))
        if len(keys) < len(source.keys):
            self.tags.add("bag")
        unique = source.unique and len(keys) == len(source.keys)
        return self._relation(Select(self._shuffled(items), source, where), source.rows, unique)

    def _windowed(self, source: From, where: list[E], top: bool) -> Relation:
        window = self.windows.window(source, self.mixed)
        self._outside_if(window.several)
        leaves = list(source.leaves)
        windows = [
            self.ex.aggregate(leaves, window.frame)
            if self.c.chance(65)
            else self.windows.positional(source, window, self.mixed)
            for _ in range(self.c.between(1, 2))
        ]
        items = [self._key_item(source, k) for k in source.keys]
        items.append(self._value_item(self.ex.number([*windows, *leaves], self.c.below(3))))
        items.append(self._value_item(windows[0]))
        ranks = ("rank()", "dense_rank()", "ntile(", "nth_value(")  # mostly DuckDB's
        self._outside_if(any(r in w.sql for w in windows for r in ranks))
        select = Select(items, source, where)
        if window.total and self.mixed and self.c.chance(40):
            select.qualify = self.windows.limit(window)
            self._outside_if(True)
        return self._relation(select, source.rows, source.unique)

    def _grouped(self, source: From, where: list[E], top: bool) -> Relation:
        leaves = source.leaves + self._scalar_subqueries(source, correlated=False)
        keys = self._group_keys(source)
        frame = Frame(source.rows, grouped=bool(keys))
        made = [self.ex.aggregate(leaves, frame) for _ in range(self.c.between(1, 2))]
        selected = [k for k in keys if not self.c.chance(5)]
        items = list(selected)
        after = [*made, *(k.e for k in keys)]
        for n in range(len(made)):
            wanted = made[n] if self.c.chance(60) else self.ex.number(after, self.c.between(1, 2))
            items.append(self._value_item(wanted))
        if top and self.may_raise:
            items.append(self._value_item(self.ex.risky_total(leaves, frame)))
        if not keys and self.c.chance(10):
            items.append(self._value_item(integer(1)))
        mixed = [self._computed(k.e) for k in keys if top and self.mixed and self.c.chance(10)]
        items.extend(mixed)
        whole = len(selected) == len(keys)
        if not whole:
            self.tags.add("bag")
        select = Select(self._shuffled(items), source, where)
        if keys:
            # GROUP BY ALL refuses an item that mixes aggregates with keys.
            plain = all(i in selected or i.e in made for i in items)
            everything = whole and plain and not mixed and self.c.chance(35)
            select.group = "ALL" if everything else ", ".join(k.e.sql for k in keys)
        if self.c.chance(12):
            select.having = self._having(made, [k.e for k in keys])
        if select.items and select.items[0] not in selected and selected:
            self.tags.add("select_order")
        rows = 1
        for k in keys:
            rows *= max(1, k.e.key[1] - k.e.key[0]) if k.e.key else source.rows
        return self._relation(select, min(rows, source.rows), whole)

    def _group_keys(self, source: From) -> list[Item]:
        """Group keys: plain ones, arithmetic over them, integer values."""
        items: list[Item] = []
        for key in self._kept(source.keys, most=15, some=60):
            form = self.c.weighted([(12, "plain"), (1, "half"), (1, "rest"), (1, "down")])
            if form == "plain":
                items.append(self._key_item(source, key))
                continue
            items.append(self._derived_key(form, key))
        values = [
            e for e in source.leaves
            if e.key is None and e.is_integer and e.signed_zero and e.magnitude < 100
        ]  # fmt: skip
        if values and self.c.chance(20):
            e = self.c.pick(values)
            items.append(self._named_item("s", e))
        return items

    def _derived_key(self, form: str, key: E) -> Item:
        lo, hi = key.key or (0, 1)
        make = self.ex.scalars
        if form == "half":
            e = replace(make.integer_division("//", key, integer(2)), key=(lo // 2, hi // 2 + 1))
        elif form == "rest":
            e = replace(make.integer_division("%", key, integer(3)), key=(min(lo, -2), 3))
            e = replace(e, key=(0, 3)) if lo >= 0 else e
        else:
            self.tags.add("negative_key")
            e = replace(make.arithmetic("-", key, integer(1)), key=(lo - 1, hi - 1))
            plain = key.sql.rpartition(".")[2]
            if self.c.chance(50):
                return Item(plain, e)
        return self._named_item("k", e)

    def _having(self, made: Sequence[E], keys: Sequence[E]) -> E | None:
        numbers = [e for e in made if e.exact and (e.is_integer or e.is_float)]
        if not numbers:
            return None
        try:
            op = self.c.pick([">", ">=", "<>", "<="])
            return self.ex.scalars.compare(op, self.c.pick(numbers), integer(self.c.below(2)))
        except UnsoundError:
            return None

    # ---- items -----------------------------------------------------------------------

    def _kept(self, keys: Sequence[E], most: int, some: int = 20) -> list[E]:
        """All keys, some of them or none."""
        at = self.c.below(100)
        if at < most:
            return list(keys)
        return self.c.some(keys, least=1) if keys and at < most + some else self.c.some(keys)

    def _key_item(self, source: From, key: E) -> Item:
        plain = key.sql.rpartition(".")[2]
        if self.c.chance(8):
            return self._named_item("k", key)
        return Item(plain, key, bare=True)

    def _value_item(self, e: E) -> Item:
        return self._named_item("v", e)

    def _named_item(self, prefix: str, e: E) -> Item:
        self._named += 1
        if prefix == "v" and self.c.chance(4):
            prefix = "c"  # as columns between what einsql and DuckDB run
        return Item(f"{prefix}{self._named}", e)

    def _computed(self, key: E) -> Item:
        """An item that DuckDB computes beside the rest."""
        self._outside_if(True)
        return self._value_item(computed(self.c, key))

    def _decimal(self, source: From) -> list[Item]:
        whole = [e for e in source.leaves if e.is_integer and e.magnitude < 1000]
        if not whole:
            return []
        self.tags.add("decimal")
        e = self.c.pick(whole)
        tenth = self.ex.scalars.build("({0} * 0.1)", (e,), E("", "DECIMAL", 100.0, None))
        three = E("0.3", "DECIMAL", 0.3, None, literal=True)
        same = self.ex.scalars.compare("=", tenth, three)
        return [self._value_item(self.c.pick([same, tenth]))]

    def _shuffled(self, items: list[Item]) -> list[Item]:
        if len(items) > 1 and self.c.chance(12):
            at = self.c.below(len(items))
            return items[at:] + items[:at]
        return items

    def _scalar_subqueries(self, source: From, correlated: bool = True) -> list[E]:
        """Sometimes a leaf that is a whole SELECT, over all rows or one key's rows."""
        if not self.c.chance(8):
            return []
        table = self.c.pick([t for t in self.tables if t.rows <= MOST_ROWS])
        inner = [c.of("q") for c in table.columns]
        frame = Frame(table.rows, grouped=False)
        e = self.ex.aggregate(inner, frame, depth=1)
        where = ""
        keys = [k for k in inner if k.key is not None]
        outer = [k for k in source.keys if "." in k.sql]
        if correlated and keys and outer and self.c.chance(60):
            self.tags.add("correlated")
            where = f" WHERE {self.c.pick(keys).sql} = {self.c.pick(outer).sql}"

        def block(item: str, text: str) -> str:
            return f"(SELECT {item} FROM {text} AS q{where})"

        return [
            replace(
                e, sql=block(e.sql, table.sql), oracle=block(e.oracle, table.oracle),
                error=block(e.error, table.oracle) if e.error else "", nullable=True,
            )
        ]  # fmt: skip

    def _outside_if(self, outside: bool) -> None:
        """Notes that DuckDB runs a part."""
        if outside:
            self.in_fragment = False
            self.tags.add("fallback")

    # ---- results ---------------------------------------------------------------------

    def _relation(self, select: Select, rows: int, unique: bool) -> Relation:
        names: set[str] = set()
        for n, item in enumerate(select.items):
            if item.name in names:
                select.items[n] = item = self._named_item("k", item.e)
            names.add(item.name)
        errors: list[str] = []
        columns: list[Column] = []
        for item in select.items:
            companion = ""
            if item.e.error:
                self._named += 1
                companion = f"e{self._named}"
                errors.append(f"{item.e.error} AS {companion}")
            columns.append(Column.holding(item.name, item.e, companion))
        return Relation(
            f"({select.text(False)})", f"({select.text(True, errors)})", columns, rows, unique
        )

    def _outside(self, source: From, where: list[E]) -> Relation:
        """A block that only DuckDB can run: DISTINCT, an ordered window, a float group."""
        self._outside_if(True)
        items = [self._key_item(source, k) for k in source.keys]
        exact = [e for e in source.leaves if e.exact and not e.special]
        form = self.c.below(3)
        if form == 0 or not exact or not source.keys:
            items = [self._value_item(e) for e in (exact[:2] or [integer(1)])]
            return self._relation(
                Select(items, source, where, distinct="DISTINCT "), source.rows, False
            )
        if form == 1:
            order = ", ".join(k.sql for k in source.keys)
            rank = E(f"rank() OVER (ORDER BY {order})", "BIGINT", float(source.rows), 0)
            items.append(self._value_item(rank))
            return self._relation(Select(items, source, where), source.rows, source.unique)
        by = self.c.pick(exact)
        count = self.ex.aggregates.count(None, Frame(source.rows))
        items = [self._value_item(by), self._value_item(count)]
        return self._relation(Select(items, source, where, group=by.sql), source.rows, False)
