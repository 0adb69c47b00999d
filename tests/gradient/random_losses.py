"""Random losses: SQL, and the same computation as a function of torch tensors.

A relation is a value and, where rows are absent, a mask. Values stay small, because every map
ends in a function that bounds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from tests.gradient.pieces import (
    BINARY,
    EXTENT,
    STOPPED,
    UNARY,
    Env,
    Fn,
    Held,
    Relation,
    Tensor,
    full,
    laid,
    reduce,
    together,
    weight,
)


@dataclass
class Loss:
    """A loss.

    Attributes:
        sql: A WITH clause that defines `loss`.
        arrays: Tensors by name, float64 and for `found` int64.
        sources: What a gradient may be taken by: tensors that the loss reads.
        run: Computes the loss from torch tensors, by the tensors' names.
        kinds: What it is made of.
    """

    sql: str
    arrays: dict[str, tuple[str, np.ndarray]]
    sources: tuple[str, ...]
    run: Callable[[Any, dict[str, Tensor]], Tensor]
    kinds: tuple[str, ...]


def _first(t: Any, *x: Tensor) -> Tensor:
    return x[0]


def _joined(f: Fn, g: Fn, n: int) -> Fn:
    """Of what g gives, and of value n."""
    return lambda t, *x: f(t, g(t, *x), x[n])


def _chained(f: Fn, g: Fn) -> Fn:
    """Of what g gives."""
    return lambda t, *x: f(t, g(t, *x))


@dataclass
class Generator:
    """Makes one random loss; the same seed makes the same."""

    seed: int
    stops: bool = False
    """Whether values may be stopped, of which differences know nothing."""
    queries: list[str] = field(default_factory=list)
    steps: list[Callable[[Any, Env], None]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        chance = np.random.default_rng(self.seed)
        shapes = [("i", "j"), ("j", "k"), ("i", "l"), ("m",), ("m", "k"), ("d",), ("j",), ("i",),
                  ("l", "n"), ("k", "i", "j"), ("d", "k")]  # fmt: skip
        self.arrays: dict[str, tuple[str, np.ndarray]] = {}
        self.pool: list[Relation] = []
        for n in range(self.random.randint(2, 4)):
            labels = self.random.choice(shapes)
            shape = [EXTENT[a] for a in labels]
            self.arrays[f"w{n}"] = ("".join(labels), chance.normal(size=shape))
            self.pool.append(Relation(f"w{n}", labels))
        self.arrays["found"] = ("n", chance.integers(0, 3, EXTENT["n"]))

    def loss(self) -> Loss:
        """A loss of one to five queries."""
        makers = [self.mapped, self.mapped, self.mapped, self.contracted, self.contracted,
                  self.contracted, self.reduced, self.reduced, self.windowed, self.filtered,
                  self.gathered, self.segmented, self.diagonal, self.turned, self.slid,
                  self.paired, self.rolled, self.centred]  # fmt: skip
        for _ in range(self.random.randint(1, 5)):
            while not self.random.choice(makers)():
                pass
        last = self.pool[-1]
        text, fn = self.bounded("r.val")
        source, query = last.name, f"SELECT SUM(({text}) * (1 + {self.weight(last, 'r')})) AS val"
        self.queries.append(f"loss AS ({query} FROM {source} r)")
        steps, labels = list(self.steps), last.labels

        def run(t: Any, tensors: dict[str, Tensor]) -> Tensor:
            env: Env = {n: (x, None) for n, x in tensors.items()}
            for step in steps:
                step(t, env)
            value, mask = full(t, env[source])
            weights = weight(t, labels)
            return t.where(mask, fn(t, value) * (1 + weights), 0).sum()

        sql = "WITH " + ",\n".join(self.queries)
        return Loss(sql, self.arrays, self._sources(), run, tuple(self.kinds))

    def _sources(self) -> tuple[str, ...]:
        """Tensors that the loss is computed from."""
        reached = {"loss"}
        for query in reversed(self.queries):
            name, _, body = query.partition(" AS ")
            if name in reached:
                words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
                reached |= set(words)
        return tuple(n for n in self.arrays if n in reached and n != "found")

    # ---- parts

    def weight(self, relation: Relation, alias: str) -> str:
        """A sum of keys that differs from element to element."""
        terms = [f"{alias}.{a} * {n + 1}" for n, a in enumerate(relation.labels)]
        return " + ".join(terms) or "0"

    def bounded(self, x: str) -> tuple[str, Fn]:
        """A bounded function of one value."""
        text, fn = self.random.choice([*UNARY, STOPPED] if self.stops else UNARY)
        return text.format(x), fn

    def expression(self, count: int) -> tuple[str, Fn]:
        """An expression over some values, `{0}`, `{1}` …"""
        text, fn = "{0}", _first
        for n in range(1, count):
            form, f = self.random.choice(BINARY)
            text, fn = form.format(f"({text})", f"{{{n}}}"), _joined(f, fn, n)
        if self.random.random() < 0.7:
            outer, bound = self.random.choice(UNARY)
            text, fn = outer.format(f"({text})"), _chained(bound, fn)
        return text, fn

    def add(
        self, kind: str, labels: Sequence[str], query: str, step: Callable[[Any, Env], Held]
    ) -> bool:  # fmt: skip
        """Adds a relation."""
        name = f"r{len(self.queries)}"
        self.queries.append(f"{name} AS ({query})")
        self.kinds.append(kind)

        def run(t: Any, env: Env) -> None:
            env[name] = step(t, env)

        self.steps.append(run)
        made = Relation(name, tuple(labels))
        self.pool += [made] * 2  # what is new is likely to be read
        return True

    def some(self, labels: Sequence[str]) -> list[str]:
        """Some of the labels, maybe none."""
        return [a for a in labels if self.random.random() < 0.5]

    def joined(self, count: int) -> tuple[list[Relation], list[str], str]:
        """Relations, all of their labels, and FROM with WHERE."""
        chosen = [self.pool[-1] if n == 0 and self.random.random() < 0.7
                  else self.random.choice(self.pool) for n in range(count)]  # fmt: skip
        labels = list(dict.fromkeys(a for r in chosen for a in r.labels))
        owner = {a: n for n, r in reversed(list(enumerate(chosen))) for a in r.labels}
        equal = [f"a{n}.{a} = a{owner[a]}.{a}"
                 for n, r in enumerate(chosen) for a in r.labels if owner[a] != n]  # fmt: skip
        text = ", ".join(f"{r.name} a{n}" for n, r in enumerate(chosen))
        if equal:
            text += f" WHERE {' AND '.join(equal)}"
        self.owner = owner
        return chosen, labels, text

    def keys(self, labels: Sequence[str]) -> str:
        """Keys of joined relations as SELECT items."""
        return "".join(f"a{self.owner[a]}.{a}, " for a in labels)

    def grouped(self, labels: Sequence[str], prefix: bool = True) -> str:
        """GROUP BY keys of joined relations."""
        names = [f"a{self.owner[a]}.{a}" if prefix else a for a in labels]
        return f" GROUP BY {', '.join(names)}" if names else ""

    # ---- queries

    def mapped(self) -> bool:
        """An expression of one to three relations."""
        chosen, labels, source = self.joined(self.random.randint(1, 3))
        if len(labels) > 3:
            return False
        text, fn = self.expression(len(chosen))
        outer, bound = self.bounded(f"({text})")
        sql = outer.format(*(f"a{n}.val" for n in range(len(chosen))))

        def step(t: Any, env: Env) -> Held:
            values, mask = together(t, env, chosen, labels)
            return bound(t, fn(t, *values)), mask

        return self.add(
            "map", labels, f"SELECT {self.keys(labels)}{sql} AS val FROM {source}", step
        )

    def contracted(self) -> bool:
        """A sum of products of two or three relations."""
        chosen, labels, source = self.joined(self.random.choice((2, 2, 3)))
        if len(labels) > 4:
            return False
        kept = self.some(labels)
        if self.random.random() < 0.7:
            product = " * ".join(f"a{n}.val" for n in range(len(chosen)))

            def fn(t: Any, *x: Tensor) -> Tensor:
                made = x[0]
                for y in x[1:]:
                    made = made * y
                return made
        else:
            text, fn = self.expression(len(chosen))
            product = text.format(*(f"a{n}.val" for n in range(len(chosen))))
        query = f"SELECT {self.keys(kept)}SUM({product}) / 3 AS val FROM {source}"
        query += self.grouped(kept)

        def step(t: Any, env: Env) -> Held:
            values, mask = together(t, env, chosen, labels)
            made = fn(t, *values).expand(mask.shape)
            return reduce(t, "SUM", made, mask, labels, kept, lambda t, x: x / 3)

        return self.add("contraction", kept, query, step)

    def reduced(self) -> bool:
        """An aggregate of one relation."""
        source = self.random.choice(self.pool[-3:])
        kept = [a for a in source.labels if self.random.random() < 0.6]
        name = self.random.choice(
            ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "VAR_POP", "LOGSUMEXP", "SUM", "MAX")
        )
        where = self.random.choice(("", "", " FILTER (WHERE val > -0.3)"))
        if where and not kept:
            where = ""
        text = f"{name}(val){where}"
        if where:
            text = f"coalesce({text}, 0)"
        columns = "".join(f"{a}, " for a in kept)
        query = f"SELECT {columns}sin({text}) AS val FROM {source.name}{self.grouped(kept, False)}"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            there = mask & (value > -0.3) if where else mask
            made, some = reduce(t, name, value, there, source.labels, kept, lambda t, x: x)
            if where:
                made = t.where(some, made, 0)
                some = reduce(t, "SUM", value, mask, source.labels, kept, lambda t, x: x)[1]
            return t.sin(made), some

        return bool(source.labels) and self.add(f"reduce {name}", kept, query, step)

    def windowed(self) -> bool:
        """A value beside an aggregate of those around it."""
        source = self.random.choice(self.pool[-3:])
        kept = self.some(source.labels)
        name = self.random.choice(("SUM", "AVG", "MAX", "LOGSUMEXP"))
        by = f"PARTITION BY {', '.join(kept)}" if kept else ""
        keys = "".join(f"{a}, " for a in source.labels)
        query = f"SELECT {keys}tanh(val - {name}(val) OVER ({by})) AS val FROM {source.name}"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            around, _ = reduce(t, name, value, mask, source.labels, kept, lambda t, x: x)
            return t.tanh(value - laid(around, kept, source.labels)), mask

        return bool(source.labels) and self.add("window", source.labels, query, step)

    def filtered(self) -> bool:
        """Some rows, by value or by key."""
        source = self.random.choice(self.pool[-3:])
        if not source.labels:
            return False
        label = self.random.choice(source.labels)
        axis, bound = source.labels.index(label), EXTENT[label] - 1
        kind = self.random.choice(("val > -0.5", f"{label} < {bound}", f"{label} <> 1"))
        keys = "".join(f"{a}, " for a in source.labels)
        query = f"SELECT {keys}val * 1.5 AS val FROM {source.name} WHERE {kind}"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            at = t.arange(EXTENT[label]).reshape(
                [-1 if n == axis else 1 for n in range(value.dim())]
            )
            keep = value > -0.5 if kind[0] == "v" else at < bound if "<>" not in kind else at != 1
            return value * 1.5, mask & keep

        return self.add("filter", source.labels, query, step)

    def gathered(self) -> bool:
        """Rows by numbers in a tensor."""
        sources = [r for r in self.pool if "i" in r.labels and "n" not in r.labels]
        if not sources:
            return False
        source = self.random.choice(sources)
        labels = ["n", *(a for a in source.labels if a != "i")]
        keys = "".join(f"s.{a}, " for a in labels[1:])
        query = f"SELECT f.n, {keys}s.val FROM found f JOIN {source.name} s ON s.i = f.val"
        at = source.labels.index("i")

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            index = env["found"][0]
            return (value.index_select(at, index).movedim(at, 0),
                    mask.index_select(at, index).movedim(at, 0))  # fmt: skip

        return self.add("gather", labels, query, step)

    def segmented(self) -> bool:
        """Sums by numbers in a tensor."""
        sources = [r for r in self.pool if "n" in r.labels and "i" not in r.labels]
        if not sources:
            return False
        source = self.random.choice(sources)
        labels = ["i", *(a for a in source.labels if a != "n")]
        others = "".join(f", s.{a}" for a in labels[1:])
        query = (f"SELECT f.val AS i{others}, SUM(s.val) AS val FROM {source.name} s JOIN found f "
                 f"ON f.n = s.n GROUP BY f.val{others}")  # fmt: skip
        at = source.labels.index("n")

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            index = env["found"][0]
            value = t.where(mask, value, 0).movedim(at, 0)
            shape = (3, *value.shape[1:])
            made = t.zeros(shape, dtype=value.dtype).index_add(0, index, value)
            count = t.zeros(shape, dtype=value.dtype).index_add(
                0, index, mask.movedim(at, 0).to(value.dtype)
            )
            return made, count > 0

        return self.add("segments", labels, query, step)

    def diagonal(self) -> bool:
        """Rows of which two keys are equal."""
        sources = [r for r in self.pool if {"i", "l"} <= set(r.labels)]
        if not sources:
            return False
        source = self.random.choice(sources)
        labels = [a for a in source.labels if a != "l"]
        keys = "".join(f"{a}, " for a in labels)
        query = f"SELECT {keys}val FROM {source.name} WHERE i = l"
        order = [*(a for a in labels if a != "i"), "i"]

        def step(t: Any, env: Env) -> Held:
            def of(x: Tensor) -> Tensor:
                x = x.diagonal(0, source.labels.index("i"), source.labels.index("l"))
                return laid(x, order, labels)

            value, mask = full(t, env[source.name])
            return of(value), of(mask)

        return self.add("diagonal", labels, query, step)

    def turned(self) -> bool:
        """Two keys change places."""
        sources = [r for r in self.pool if {"i", "l"} <= set(r.labels)]
        if not sources:
            return False
        source = self.random.choice(sources)
        turn = {"i": "l", "l": "i"}
        keys = "".join(f"{a} AS {turn.get(a, a)}, " for a in source.labels)
        labels = [turn.get(a, a) for a in source.labels]
        return self.add("turn", labels, f"SELECT {keys}val FROM {source.name}",
                        lambda t, env: env[source.name])  # fmt: skip

    def slid(self) -> bool:
        """A convolution."""
        lines = [r for r in self.pool if "m" in r.labels and not {"o", "d"} & set(r.labels)]
        masks = [r for r in self.pool if "d" in r.labels and not {"o", "m"} & set(r.labels)]
        if not lines or not masks:
            return False
        line, window = self.random.choice(lines), self.random.choice(masks)
        others = [a for a in dict.fromkeys((*line.labels, *window.labels)) if a not in "md"]
        if len(others) > 2:
            return False
        own = {a: "x" if a in line.labels else "y" for a in others}
        shared = [a for a in others if a in line.labels and a in window.labels]
        terms = ["x.m = s.o + y.d", *(f"x.{a} = y.{a}" for a in shared)]
        keys = ["s.o", *(f"{own[a]}.{a}" for a in others)]
        query = (f"SELECT {', '.join(keys)}, SUM(x.val * y.val) / 2 AS val FROM range(4) s(o), "
                 f"{window.name} y, {line.name} x WHERE {' AND '.join(terms)} "
                 f"GROUP BY {', '.join(keys)}")  # fmt: skip

        def step(t: Any, env: Env) -> Held:
            labels = ["o", *others, "d"]

            def unfolded(x: Tensor) -> Tensor:
                x = x.unfold(line.labels.index("m"), 3, 1)
                names = [("o" if a == "m" else a) for a in line.labels] + ["d"]
                return laid(x, names, labels)

            a, b = (full(t, env[r.name]) for r in (line, window))
            value = unfolded(a[0]) * laid(b[0], window.labels, labels)
            mask = unfolded(a[1]) & laid(b[1], window.labels, labels)
            return reduce(t, "SUM", value, mask, labels, labels[:-1], lambda t, x: x / 2)

        return self.add("convolution", ["o", *others], query, step)

    def paired(self) -> bool:
        """Sums of two neighbours."""
        sources = [r for r in self.pool if "m" in r.labels and "p" not in r.labels]
        if not sources:
            return False
        source = self.random.choice(sources)
        labels = ["p", *(a for a in source.labels if a != "m")]
        others = "".join(f", {a}" for a in labels[1:])
        query = f"SELECT m // 2 AS p{others}, SUM(val) AS val FROM {source.name} "
        query += f"GROUP BY m // 2{others}"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            at = source.labels.index("m")
            value = t.where(mask, value, 0).movedim(at, 0)
            mask = mask.movedim(at, 0)
            shape = (3, 2, *value.shape[1:])
            return value.reshape(shape).sum(1), mask.reshape(shape).any(1)

        return self.add("pairs", labels, query, step)

    def rolled(self) -> bool:
        """Rows beside those two further."""
        sources = [r for r in self.pool if "m" in r.labels]
        if not sources:
            return False
        source = self.random.choice(sources)
        equal = "".join(f" AND x.{a} = y.{a}" for a in source.labels if a != "m")
        keys = "".join(f"x.{a}, " for a in source.labels)
        query = (f"SELECT {keys}x.val * y.val AS val FROM {source.name} x, {source.name} y "
                 f"WHERE y.m = (x.m + 2) % 6{equal}")  # fmt: skip

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            at = source.labels.index("m")
            return value * value.roll(-2, at), mask & mask.roll(-2, at)

        return self.add("roll", source.labels, query, step)

    def centred(self) -> bool:
        """Values without their mean, from a scalar subquery."""
        source = self.random.choice(self.pool[-3:])
        if not source.labels:
            return False
        keys = "".join(f"{a}, " for a in source.labels)
        mean = f"(SELECT AVG(q.val) FROM {source.name} q)"
        query = f"SELECT {keys}val - {mean} AS val FROM {source.name}"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            mean, _ = reduce(t, "AVG", value, mask, source.labels, [], lambda t, x: x)
            return value - mean, mask

        return self.add("subquery", source.labels, query, step)
