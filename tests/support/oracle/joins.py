"""Random FROM clauses: which operands, how they are joined, and over which keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.oracle.expressions import Expressions, integer
from tests.support.oracle.relations import Column, E, Relation, UnsoundError

MOST_ROWS = 20_000


@dataclass
class Operand:
    """One relation of a FROM clause under its alias."""

    alias: str
    relation: Relation
    columns: list[Column]

    def leaves(self, unqualified: set[str]) -> list[E]:
        """References to its columns; the named ones need no qualifier."""
        return [c.of("" if c.name in unqualified else self.alias) for c in self.columns]


@dataclass
class From:
    """A FROM clause: its text, the conditions left to WHERE, and what is in scope."""

    sql: str
    oracle: str
    leaves: list[E] = field(default_factory=list)
    conditions: list[E] = field(default_factory=list)
    rows: int = 1
    unique: bool = True

    @property
    def keys(self) -> list[E]:
        """Keys in scope."""
        return [e for e in self.leaves if e.key is not None]


class Joins:
    """Makes FROM clauses.

    Args:
        ex: Builds the join conditions.
        tags: Receives the lines of the semantics table that are touched.
        subquery: Makes a parenthesised SELECT of at most the given depth.
    """

    def __init__(
        self, ex: Expressions, tags: set[str], subquery: Callable[[int], Relation]
    ) -> None:
        self.ex, self.c, self.tags, self.subquery = ex, ex.c, tags, subquery
        self._aliases = 0

    def source(self, tables: Sequence[Relation], depth: int) -> From:
        """A FROM clause of one to four operands."""
        count = self.c.weighted([(6, 1), (7, 2), (3, 3), (1, 4)])
        comma = self.c.chance(45)
        first = self._operand(tables, depth)
        operands = [first]
        made = From(self._named(first, False), self._named(first, True),
                    rows=first.relation.rows, unique=first.relation.unique)  # fmt: skip
        merged: set[str] = set()
        clashing: set[str] = set()
        for _ in range(count - 1):
            new = self._operand(tables, depth)
            if made.rows * new.relation.rows > 30 * MOST_ROWS:
                continue
            if any(o.relation.sql == new.relation.sql for o in operands):
                self.tags.add("self_join")
            known = {c.name for o in operands for c in o.columns}
            fused: set[str] = set()
            if comma:
                conditions, bound = self._conditions(operands, new)
                made.conditions.extend(conditions)
                made.sql += f", {self._named(new, False)}"
                made.oracle += f", {self._named(new, True)}"
            else:
                bound, fused = self._join(made, operands, new, clashing)
            merged |= fused
            clashing |= known & {c.name for c in new.columns} - fused
            made.rows *= self._fan(new, bound)
            made.unique &= new.relation.unique
            operands.append(new)
            if made.rows > MOST_ROWS:
                break
        made.leaves = self._leaves(operands, merged, clashing)
        if len(operands) == 1 and self.c.chance(4):
            self._range(made, operands)
        return made

    def _range(self, made: From, operands: Sequence[Operand]) -> None:
        """A generated range beside the one operand, equated or not."""
        n = self.c.between(2, 4)
        made.sql += f" CROSS JOIN range({n}) AS r(w)"
        made.oracle += f" CROSS JOIN range({n}) AS r(w)"
        key = Column("w", "BIGINT", n - 1, 0, bounds=(0, n)).of("r")
        if made.keys and self.c.chance(50):
            made.conditions.append(self.ex.scalars.compare("<=", key, self.c.pick(made.keys)))
        made.leaves.append(key)
        made.rows *= n

    # ---- operands --------------------------------------------------------------------

    def _operand(self, tables: Sequence[Relation], depth: int) -> Operand:
        if depth > 0 and self.c.chance(18):
            relation = self.subquery(depth - 1)
        else:
            relation = self.c.pick(tables)
        self._aliases += 1
        alias = f"a{self._aliases}"
        columns = list(relation.columns)
        if self.c.chance(7):
            names = [f"{'v' if c.bounds is None else 'k'}{n}x" for n, c in enumerate(columns)]
            columns = [c.renamed(n) for c, n in zip(columns, names, strict=True)]
        return Operand(alias, relation, columns)

    def _named(self, operand: Operand, oracle: bool) -> str:
        text = operand.relation.oracle if oracle else operand.relation.sql
        names = ""
        if operand.columns != operand.relation.columns:
            names = f"({', '.join(c.name for c in operand.columns)})"
        return f"{text} AS {operand.alias}{names}"

    def _leaves(self, operands: Sequence[Operand], merged: set[str], clashing: set[str]) -> list[E]:
        count: dict[str, int] = {}
        for o in operands:
            for c in o.columns:
                count[c.name] = count.get(c.name, 0) + 1
        alone = {n for n, k in count.items() if k == 1 and self.c.chance(20)}
        leaves: list[E] = []
        seen: set[str] = set()
        for o in operands:
            for c in o.columns:
                if c.name in merged - clashing:
                    if c.name not in seen:  # one column stands for all that were merged
                        leaves.append(c.of("" if self.c.chance(50) else o.alias))
                    seen.add(c.name)
                else:
                    leaves.append(c.of("" if c.name in alone and not c.error else o.alias))
        return leaves

    # ---- join conditions -------------------------------------------------------------

    def _fan(self, new: Operand, bound: set[str]) -> int:
        """How many rows of the new operand can match one row, at most."""
        if not new.relation.unique:
            return new.relation.rows
        rows = 1
        for c in new.columns:
            if c.bounds is not None and c.name not in bound:
                rows *= max(1, c.bounds[1] - c.bounds[0])
        return min(rows, new.relation.rows)

    def _join(
        self, made: From, operands: Sequence[Operand], new: Operand, clashing: set[str]
    ) -> tuple[set[str], set[str]]:
        """Appends `JOIN new …`; returns the new operand's keys it fixes, and merged names.

        A name that two operands have without being merged would be ambiguous in USING.
        """
        left = [c.name for o in operands for c in o.columns]
        mine = {c.name: c for c in new.columns}
        shared = [
            n for n in dict.fromkeys(left)
            if n in mine and mine[n].bounds is not None
            and n not in clashing
            and all(c.bounds is not None for o in operands for c in o.columns if c.name == n)
        ]  # fmt: skip
        natural = not clashing and self._natural(operands, new)
        kind = self.c.weighted([(6, "on"), (6 if shared else 0, "using"),
                                (4 if natural else 0, "natural"), (1, "cross")])  # fmt: skip
        plain, oracle = self._named(new, False), self._named(new, True)
        if kind == "cross" and made.rows * new.relation.rows > MOST_ROWS:
            kind = "on"
        if kind == "using":
            names = self.c.some(shared, least=1)
            tail = f" USING ({', '.join(names)})"
            bound = fused = set(names)
            self._note_bounds(operands, new, names)
        elif kind == "natural":
            self.tags.add("natural")
            common = [n for n in left if n in mine]
            made.sql += f" NATURAL JOIN {plain}"
            made.oracle += f" NATURAL JOIN {oracle}"
            self._note_bounds(operands, new, common)
            return set(common), set(common)
        elif kind == "cross":
            made.sql += f" CROSS JOIN {plain}"
            made.oracle += f" CROSS JOIN {oracle}"
            return set(), set()
        else:
            fused = set()
            conditions, bound = self._conditions(operands, new)
            if not conditions:
                made.sql += f" CROSS JOIN {plain}"
                made.oracle += f" CROSS JOIN {oracle}"
                return set(), set()
            tail = " ON " + " AND ".join(c.sql for c in conditions)
        made.sql += f" JOIN {plain}{tail}"
        made.oracle += f" JOIN {oracle}{tail}"
        return bound, fused

    def _natural(self, operands: Sequence[Operand], new: Operand) -> bool:
        """NATURAL JOIN compares every shared column, so these must be exact and alike."""
        mine = {c.name: c for c in new.columns}
        shared = [(c, mine[c.name]) for o in operands for c in o.columns if c.name in mine]
        # The oracle's text has columns of error bounds too, which must not be compared.
        bounds = {c.error for o in operands for c in o.columns if c.error}
        return (
            not bounds & {c.error for c in new.columns}
            and any(a.bounds is not None for a, _ in shared)
            and all(a.dtype == b.dtype and not a.error and not b.error for a, b in shared)
        )

    def _note_bounds(self, operands: Sequence[Operand], new: Operand, names: Sequence[str]) -> None:
        mine = {c.name: c.bounds for c in new.columns}
        for o in operands:
            for c in o.columns:
                if c.name in names and c.bounds != mine[c.name]:
                    self.tags.add("bounds")

    def _conditions(self, operands: Sequence[Operand], new: Operand) -> tuple[list[E], set[str]]:
        """Conditions tying the new operand to the others, and its keys they fix."""
        old = [e for o in operands for e in o.leaves(set())]
        mine = new.leaves(set())
        keys = [e for e in mine if e.key is not None]
        kind = self.c.weighted([(14, "equal"), (4, "gather"), (3, "affine"), (1, "less")])
        made: list[E] = []
        bound: set[str] = set()
        for key in self.c.some(keys, least=min(1, len(keys))):
            try:
                made.append(self._condition(kind, key, old))
            except UnsoundError:
                continue
            if kind != "less":
                bound.add(_name(key))
            kind = "equal"
        if not made and not keys:
            return self._by_value(old, mine), bound
        return made, bound

    def _condition(self, kind: str, key: E, old: Sequence[E]) -> E:
        make = self.ex.scalars
        keys = [e for e in old if e.key is not None]
        if kind == "gather":
            index = [e for e in old if e.key is None and e.is_integer and e.exact]
            if index:
                return make.compare("=", key, self.c.pick(index))
        if not keys:
            raise UnsoundError
        if kind == "less":
            self.tags.add("self_join")
            return make.compare(self.c.pick(["<", "<=", ">", "<>"]), key, self.c.pick(keys))
        if kind in ("affine", "gather"):
            return make.compare("=", key, self._index(keys))
        named = [e for e in keys if _name(e) == _name(key)]
        other = self.c.pick(named) if named and not self.c.chance(25) else self.c.pick(keys)
        if other.key != key.key:
            self.tags.add("bounds")
        pair = (key, other) if self.c.chance(50) else (other, key)
        return make.compare("=", *pair)

    def _index(self, keys: Sequence[E]) -> E:
        """An integer expression over keys that often falls inside some bounds."""
        make, a, b = self.ex.scalars, self.c.pick(keys), self.c.pick(keys)
        form = self.c.below(5)
        if form == 0:
            return make.arithmetic("+", a, b)
        if form == 1:
            return make.integer_division("//", a, integer(2))
        if form == 2:
            return make.arithmetic("-", a, integer(1))
        if form == 3:
            shifted = make.arithmetic("+", a, integer(2))
            return make.integer_division("%", shifted, integer(self.c.pick([4, 3, 2])))
        return make.arithmetic("-", a, b)

    def _by_value(self, old: Sequence[E], mine: Sequence[E]) -> list[E]:
        """Ties an operand without keys by its integer value, or not at all."""
        whole = [e for e in mine if e.is_integer and e.exact]
        keys = [e for e in old if e.key is not None]
        if not whole or not keys or self.c.chance(50):
            return []
        return [self.ex.scalars.compare("=", self.c.pick(keys), self.c.pick(whole))]


def _name(e: E) -> str:
    return e.sql.rpartition(".")[2]
