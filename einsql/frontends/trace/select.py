"""Writes the SELECT that computes one array from the arrays it reads."""

from __future__ import annotations

from dataclasses import field

from einsql.core.records import dataclass
from einsql.frontends.trace.expressions import labels, reads
from einsql.frontends.trace.nodes import Affine, Expr, Read, Step
from einsql.frontends.trace.text import Printer, name_text, unused

LETTERS: tuple[str, ...] = (*"ijklmnopqrstuvwxyz", *(f"i{n}" for n in range(1, 1000)))


@dataclass
class Names:
    """The names of arrays and their keys.

    Attributes:
        of: Names of arrays.
        keys: Names of an array's keys, one for each axis, None for those it does not have.
        taken: The lower-case names of arrays; new keys avoid them.
    """

    of: dict[Step, str] = field(default_factory=dict)
    keys: dict[Step, list[str | None]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Body:
    """The content of a SELECT.

    Attributes:
        extents: The extents of the labels.
        keys: The labels that are keys, in the order of the array's axes.
        expr: The expression of an element, or the aggregated expression.
        how: The aggregate, or None.
        finish: An expression of the aggregate, whose placeholder is `place`.
    """

    extents: tuple[int, ...]
    keys: tuple[int, ...]
    expr: Expr
    how: str | None = None
    finish: Expr | None = None
    place: Expr | None = None


@dataclass
class _Source:
    read: Read
    alias: str
    columns: list[str] = field(default_factory=list)
    bare: list[int] = field(default_factory=list)
    """Labels that are columns of it."""
    conditions: list[tuple[str, Expr]] = field(default_factory=list)
    """Columns, each with the expression that it equals."""


class Select:
    """Writes one SELECT.

    Args:
        body: The content of the SELECT.
        names: Names of arrays and keys so far; tensors without names of their axes get them.
    """

    def __init__(self, body: Body, names: Names) -> None:
        self.body = body
        self.names = names
        self.sources: list[_Source] = []
        self.labels: dict[int, str] = {}
        self._find_sources()
        self._name_labels()
        self._name_columns()
        by_read = {s.read: s for s in self.sources}
        alone = len(self.sources) == 1

        def value(r: Read) -> str:
            return "val" if alone else f"{name_text(by_read[r].alias)}.val"

        self.printer = Printer(self.labels, value)

    @property
    def keys(self) -> list[str]:
        """The names of the result's keys."""
        return [self.labels[n] for n in self.body.keys]

    # ---- sources

    def _find_sources(self) -> None:
        ordered: dict[Read, None] = {}

        def visit(e: Expr) -> None:
            for r in reads(e):
                for i in r.index:  # the sources of an index come before the indexed array
                    visit(i)
                ordered.setdefault(r)

        visit(self.body.expr)
        used: set[str] = set()
        for r in ordered:
            alias = unused(self.names.of[r.step], used)
            used.add(alias.lower())
            self.sources.append(_Source(r, alias))

    def _axes(self, s: _Source) -> list[tuple[int, Expr]]:
        """The axes of a source that are keys of its table, and where they are read."""
        step = s.read.step
        pairs = enumerate(s.read.index)
        return [(n, i) for n, i in pairs if step.expr is None or step.shape[n] != 1]

    def _label(self, s: _Source, axis: int, i: Expr) -> int | None:
        """The label that a key of a source is."""
        n = i.label if isinstance(i, Affine) else None
        return n if n is not None and s.read.step.shape[axis] >= self.body.extents[n] else None

    def _name_labels(self) -> None:
        taken = {"val"}

        def give(n: int, name: str | None) -> None:
            if name is not None and n not in self.labels and name.lower() not in taken:
                self.labels[n] = name
                taken.add(name.lower())

        for s in self.sources:
            known = self.names.keys.get(s.read.step)
            for axis, i in self._axes(s):
                n = self._label(s, axis, i)
                if known is not None and n is not None:
                    give(n, known[axis])
        for s in self.sources:  # a key that is read elsewhere keeps its name
            known = self.names.keys.get(s.read.step)
            for axis, i in self._axes(s):
                own = labels(i)
                if known is not None and len(own) == 1 and isinstance(i, Affine):
                    give(min(own), known[axis])
        for n, extent in enumerate(self.body.extents):
            if extent != 1:
                give(n, self._fresh(taken))

    def _name_columns(self) -> None:
        taken = {name.lower() for name in self.labels.values()} | {"val"}
        for s in self.sources:
            step = s.read.step
            known = self.names.keys.get(step)
            named: list[str | None] = [None] * len(step.shape)
            for axis, i in self._axes(s):
                n = self._label(s, axis, i)
                if n is not None and n not in s.bare:
                    s.bare.append(n)
                    column = self.labels[n]
                else:
                    hint = known[axis] if known is not None else None
                    column = unused(hint or self._fresh(taken), taken)
                    taken.add(column.lower())
                    s.conditions.append((column, i))
                s.columns.append(column)
                named[axis] = column
            if known is None:
                self.names.keys[step] = named

    def _fresh(self, taken: set[str]) -> str:
        return next(x for x in LETTERS if x not in taken and x not in self.names.taken)

    # ---- text

    def text(self, indent: str = "") -> str:
        """The SELECT, in lines."""
        body = self.body
        value = self.printer.text(body.expr)
        if body.how == "ARG_MAX":
            last = len(body.extents) - 1
            value = f"ARG_MAX({name_text(self.labels[last])}, {value})"
        elif body.how is not None:
            value = f"{body.how}({value})"
        if body.finish is not None and body.place is not None:
            special = {body.place: value}
            value = Printer(self.labels, self.printer.values, special).text(body.finish)
        bare = isinstance(body.expr, Read) and body.how is None and body.finish is None
        shown = ", ".join([*map(name_text, self.keys), value if bare else f"{value} AS val"])
        lines = [f"SELECT {shown}"]
        source, where = self._from()
        lines += source
        if where:
            lines.append("WHERE " + " AND ".join(where))
        if body.how is not None and self.keys:
            lines.append("GROUP BY " + ", ".join(map(name_text, self.keys)))
        return ("\n" + indent).join(lines)

    def _from(self) -> tuple[list[str], list[str]]:
        plain = [s for s in self.sources if not s.conditions]
        later = [s for s in self.sources if s.conditions]
        bare = {n for s in self.sources for n in s.bare}
        free = [n for n in self.labels if n not in bare]
        where = self._limits()
        scope: set[int] = set()
        present: list[_Source] = []
        lines = [self._joined(s, scope, present, where) for s in plain]
        for n in free:
            name = self.labels[n]
            aliases = {x.alias.lower() for x in self.sources}
            text = f"range({self.body.extents[n]}) AS {name_text(name)}"
            if name.lower() in aliases:
                other = unused(f"{name}_range", aliases)
                text = f"range({self.body.extents[n]}) AS {name_text(other)}({name_text(name)})"
            lines.append(f"{'CROSS JOIN ' if lines else 'FROM '}{text}")
            scope.add(n)
        lines += [self._joined(s, scope, present, where) for s in later]
        return lines, where

    def _joined(self, s: _Source, scope: set[int], present: list[_Source], where: list[str]) -> str:
        name = name_text(s.alias)
        conditions = [
            (f"{name}.{name_text(column)} = {self.printer.text(i, True)}", i)
            for column, i in s.conditions
        ]
        first = not scope and not present
        shared = [n for n in s.bare if n in scope]
        known = {x.read for x in present}
        ready = [
            text
            for text, i in conditions
            if labels(i) <= scope | set(s.bare) and all(r in known for r in reads(i))
        ]
        item = self._item(s)
        if shared:
            line = f"JOIN {item} USING ({', '.join(name_text(self.labels[n]) for n in shared)})"
            where += [text for text, _ in conditions]
        elif first or not ready:
            line = f"{'FROM' if first else 'CROSS JOIN'} {item}"
            where += [text for text, _ in conditions]
        else:
            line = f"JOIN {item} ON {' AND '.join(ready)}"
            where += [text for text, _ in conditions if text not in ready]
        scope.update(s.bare)
        present.append(s)
        return line

    def _item(self, s: _Source) -> str:
        own, step = self.names.of[s.read.step], s.read.step
        keys = [k for k in self.names.keys[step] if k is not None]
        if s.columns != keys:
            listed = ", ".join(map(name_text, s.columns))
            return f"{name_text(own)} AS {name_text(s.alias)}({listed})"
        return name_text(own) if own == s.alias else f"{name_text(own)} AS {name_text(s.alias)}"

    def _limits(self) -> list[str]:
        """Conditions on labels that go less far than every key that they are."""
        conditions: list[str] = []
        for n, name in self.labels.items():
            reach = [
                s.read.step.shape[axis]
                for s in self.sources
                for axis, i in self._axes(s)
                if self._label(s, axis, i) == n
            ]
            if reach and min(reach) > self.body.extents[n]:
                conditions.append(f"{name_text(name)} < {self.body.extents[n]}")
        return conditions
