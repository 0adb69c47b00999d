"""Writes a traced program as SQL: chooses the parts of WITH, their names, and the text.

Arrays that are reduced, read more than once or named by the user become WITH names; transposes,
slices and element-wise operations in between are written where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einsql.core.records import dataclass
from einsql.frontends.trace.expressions import (
    label,
    labels,
    parts,
    reads,
    rewrite,
    size,
    substituted,
)
from einsql.frontends.trace.nodes import Affine, Apply, Expr, Read, Step
from einsql.frontends.trace.select import Body, Names, Select
from einsql.frontends.trace.steps import Graph, simple
from einsql.frontends.trace.text import name_text, unused

LONGEST = 24
"""The most function calls of an expression that is inlined into its reader."""


@dataclass
class Program:
    """The SELECTs of a program's results.

    Attributes:
        parts: The tables of WITH and the SELECT behind them, for each result.
        keys: Names of the axes of every tensor.
        names: The lower-case names of tables.
    """

    parts: list[tuple[list[str], str]]
    keys: dict[str, tuple[str, ...]]
    names: set[str]

    @property
    def statements(self) -> list[str]:
        """The text of each result."""
        return [_joined(tables, text) for tables, text in self.parts]

    def gradient(self, result: int, tensor: str) -> str:
        """The SELECT of the derivative of a result without axes by a tensor."""
        tables, text = self.parts[result]
        loss = next(n for n in ("loss", "result", "result_2") if n not in self.names)
        indented = text.replace("\n", "\n    ")
        keys = ", ".join([*map(name_text, self.keys[tensor]), "val"])
        return _joined(
            [*tables, f"{loss} AS (\n    {indented}\n)"],
            f"SELECT {keys}\nFROM GRADIENT({loss}, {name_text(tensor)})",
        )


def _joined(tables: Sequence[str], text: str) -> str:
    return f"WITH {', '.join(tables)}\n{text}" if tables else text


def write(graph: Graph, outputs: Sequence[Step]) -> Program:
    """The program as SQL, a SELECT for each result."""
    return _Writer(graph, outputs).program()


class _Writer:
    def __init__(self, graph: Graph, outputs: Sequence[Step]) -> None:
        self.graph = graph
        self.outputs = list(outputs)
        self.steps = sorted(_reachable(outputs), key=lambda s: s.number)
        self.readers: dict[Step, list[Step]] = {s: [] for s in self.steps}
        for s in self.steps:
            if s.expr is not None:
                for r in reads(s.expr):
                    self.readers[r.step].append(s)
        self.kept: set[Step] = set()
        self.exprs: dict[Step, Expr] = {}
        for s in self.steps:
            if s.expr is not None:
                self.exprs[s] = rewrite(s.expr, self._inlined)
            if self._is_kept(s):
                self.kept.add(s)
        self.names = Names()
        self.texts: dict[Step, str] = {}

    # ---- the choice of tables

    def _inlined(self, e: Expr) -> Expr | None:
        """The expression inlined for a read of an array that is no table."""
        if not isinstance(e, Read) or e.step in self.kept:
            return None
        return substituted(self.exprs[e.step], [rewrite(i, self._inlined) for i in e.index])

    def _is_kept(self, s: Step) -> bool:
        """True for an array that is a table of its own."""
        if s.expr is None or s.how is not None:
            return True
        expr, readers = self.exprs[s], self.readers[s]
        if simple(s) or not readers:
            return False
        if isinstance(s.expr, Read) and not isinstance(expr, Read):
            return size(expr) > 2  # shown in other axes
        if not reads(expr) and size(expr) <= 8:
            return False
        if isinstance(expr, Read) or s.name is not None or len(set(readers)) > 1:
            return True
        if len(readers) > 1 and size(expr) > 2:
            return True
        return size(expr) > LONGEST or (size(expr) > 0 and self._is_repeated(s, readers[0]))

    def _is_repeated(self, s: Step, reader: Step) -> bool:
        """True if a reader reads an element at several of its points."""
        assert reader.expr is not None
        wide = {n for n, e in enumerate(reader.extents) if e > 1}
        own_reads = [r for r in reads(reader.expr) if r.step is s]
        return any(wide - {n for i in r.index for n in labels(i)} for r in own_reads)

    def _aggregate(self, s: Step) -> Read | None:
        """The reduction of which a map makes its elements, where nothing else reads it."""
        if s not in self.kept and self.readers[s]:
            return None  # its readers read the reduction itself
        read = reads(self.exprs[s])
        if s.how is not None or not read or any(r != read[0] for r in read):
            return None
        r = read[0]
        source = r.step
        if source.how in (None, "ARG_MAX") or source.name is not None or source in self.outputs:
            return None
        at = [i.label for i in r.index if isinstance(i, Affine) and i.label is not None]
        axes = [n for n, e in enumerate(s.shape) if e != 1]
        if sorted(at) != axes or len(at) != sum(e != 1 for e in source.shape):
            return None
        return r if {s, *self._between(source, s)}.issuperset(self.readers[source]) else None

    def _between(self, source: Step, s: Step) -> list[Step]:
        """Arrays between two that are no tables and that only the second one reads."""
        between: list[Step] = []
        waiting = [x for x in self.readers[source] if x is not s]
        while waiting:
            x = waiting.pop()
            if x in self.kept or x in self.outputs or x in between:
                continue
            between.append(x)
            waiting += [y for y in self.readers[x] if y is not s]
        return between if all(set(self.readers[x]) <= {s, *between} for x in between) else []

    # ---- the text

    def program(self) -> Program:
        """Names and writes everything."""
        for name, (step, _) in self.graph.tensors.items():
            self.names.of[step] = name
            self.names.taken.add(name.lower())
            if step.dims is not None:
                self.names.keys[step] = list(step.dims)
        shown = [o for o in self.outputs if o not in self.kept or self.readers[o] or o.expr is None]
        bodies = {s: self._body(s) for s in self.steps if s in self.kept and s.expr is not None}
        merged = {b.place.step for b in bodies.values() if isinstance(b.place, Read)}
        last = {o: self._body(o) for o in self.outputs if o not in bodies and o.expr is not None}
        merged |= {b.place.step for b in last.values() if isinstance(b.place, Read)}
        main: dict[Step, str] = {}
        for s in self.steps:
            if s in bodies and s not in merged:
                named = bool(self.readers[s]) and s not in main
                self._name(s)
                select = Select(bodies[s], self.names)
                self._keys(s, select)
                self.texts[s] = select.text("    " if named else "")
                if not named:
                    main[s] = self.texts[s]
        for o in self.outputs:
            if o in shown or o not in main:
                main[o] = self._shown(o, last.get(o))
        keys = {
            name: _filled(self.names.keys.get(step) or [None] * len(step.shape))
            for name, (step, _) in self.graph.tensors.items()
        }
        parts = [(self._tables(o), main[o]) for o in self.outputs]
        return Program(parts, keys, self.names.taken)

    def _shown(self, o: Step, body: Body | None) -> str:
        """The SELECT of a result that is a table, or made of tables."""
        if body is None or o.expr is None:
            own = [label(n) for n in range(len(o.shape))]
            settled = Read(
                o, tuple(x if e != 1 else Affine((), 0) for x, e in zip(own, o.shape, strict=True))
            )
            body = Body(o.shape, _keys(o.shape), settled)
        return Select(body, self.names).text()

    def _tables(self, output: Step) -> list[str]:
        """The tables that a result is computed from, as WITH has them."""
        read = self._reads(output)
        return [
            f"{name_text(self.names.of[s])} AS (\n    {self.texts[s]}\n)"
            for s in self.steps
            if s in self.texts and s in read
        ]

    def _reads(self, output: Step) -> set[Step]:
        """The tables that a result is computed from; itself where others read it."""
        tables = _reachable([output], self.exprs)
        return tables if self.readers[output] and output in self.texts else tables - {output}

    def _body(self, s: Step) -> Body:
        expr = self.exprs[s]
        r = self._aggregate(s)
        if r is None:
            return Body(s.extents, _keys(s.shape), expr, s.how)
        source = r.step
        at = {i.label: n for n, i in enumerate(r.index) if isinstance(i, Affine)}
        names = [label(at.get(n, 0)) if e != 1 else Affine((), 0) for n, e in enumerate(s.shape)]
        place = Read(source, tuple(substituted(i, names) for i in r.index))
        keys = tuple(at[n] for n in _keys(s.shape))
        finish = substituted(expr, names)
        return Body(source.extents, keys, self.exprs[source], source.how, finish, place)

    def _keys(self, s: Step, select: Select) -> None:
        names = iter(select.keys)
        self.names.keys[s] = [next(names) if e != 1 else None for e in s.shape]

    def _name(self, s: Step) -> None:
        name = unused(s.name or self._shown_as(s) or self._invented(s), self.names.taken)
        self.names.taken.add(name.lower())
        self.names.of[s] = name

    def _shown_as(self, s: Step) -> str | None:
        """The name of the one transpose or slice that shows it."""
        readers = set(self.readers[s])
        while len(readers) == 1:
            (s,) = readers
            if not simple(s):
                return None
            if s.name is not None:
                return s.name
            readers = set(self.readers[s])
        return None

    def _invented(self, s: Step) -> str:
        """A name made of the operation and its operands."""
        aggregate = self._aggregate(s)
        if aggregate is not None:
            s = aggregate.step
        expr = self.exprs[s]
        aggregated = _AGGREGATES.get(s.how or "", "")
        known = (self.names.of.get(r.step) for r in reads(expr))
        read = list(dict.fromkeys(name for name in known if name))
        products = isinstance(expr, Apply) and expr.fn == "mul" and s.how == "SUM"
        is_product = products and len(read) > 1
        name = "_".join(read[:2] if is_product else [*read[:1], aggregated or _does(expr)])
        return name if len(name) <= 24 else aggregated or "step"


_AGGREGATES = {
    "SUM": "sum",
    "AVG": "mean",
    "MAX": "max",
    "MIN": "min",
    "PRODUCT": "product",
    "BOOL_OR": "any",
    "BOOL_AND": "all",
    "ARG_MAX": "argmax",
    "VAR_POP": "var",
}


def _does(expr: Expr) -> str:
    """A word for the operation of an expression."""
    if isinstance(expr, Read):
        gathers = any(isinstance(p, Read) for i in expr.index for p in parts(i))
        return "rows" if gathers else "axes"
    function = next((p.fn for p in parts(expr) if isinstance(p, Apply) and p.fn != "cast"), "")
    return (
        function
        if function.isidentifier() and function not in ("if", "and", "or", "not")
        else "map"
    )


def _reachable(outputs: Sequence[Step], exprs: Mapping[Step, Expr] | None = None) -> set[Step]:
    """Returns the outputs and all steps that they read, directly or indirectly."""
    seen: set[Step] = set(outputs)
    waiting = list(outputs)
    while waiting:
        s = waiting.pop()
        expr = s.expr if exprs is None else exprs.get(s)
        new = {r.step for r in reads(expr)} - seen if expr is not None else set()
        seen |= new
        waiting += new
    return seen


def _keys(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n, e in enumerate(shape) if e != 1)


def _filled(keys: Sequence[str | None]) -> tuple[str, ...]:
    """Returns names for all axes, also for axes that no step reads."""
    taken = {k for k in keys if k is not None}
    names: list[str] = []
    for n, k in enumerate(keys):
        name = k or f"d{n}"
        while k is None and name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return tuple(names)
