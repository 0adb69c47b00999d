"""Random losses: SQL, and the same computation as a function of torch tensors.

A relation is a value and, where rows are absent, a mask. Values stay small, because every map
ends in a function that bounds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ir.autodiff.building import listed
from tests.ir.autodiff.moves import Moves
from tests.ir.autodiff.pieces import EXTENT, Env, Held, Tensor, full, laid, reduce, together, weight


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


class Generator(Moves):
    """Makes one random loss; the same seed makes the same."""

    def loss(self) -> Loss:
        """A loss of one to five queries."""
        makers = [self.mapped, self.mapped, self.mapped, self.contracted, self.contracted,
                  self.contracted, self.reduced, self.reduced, self.windowed, self.filtered,
                  self.gathered, self.segmented, self.diagonal, self.turned, self.slid,
                  self.paired, self.rolled, self.centred, self.softened, self.masked]  # fmt: skip
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
        return tuple(n for n in self.arrays if n in reached and n.startswith("w"))

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
        divided = "j" in labels and self.random.random() < 0.3
        if divided:
            tables, _, conditions = source.partition(" WHERE ")
            same = f"q.j = a{self.owner['j']}.j AND q.val <> 0"
            source = f"{tables}, parts q WHERE {' AND '.join(filter(None, (same, conditions)))}"
            product = f"(12 // q.val) / 4 * ({product})"
        query = f"SELECT {self.keys(kept)}SUM({product}) / 3 AS val FROM {source}"
        query += self.grouped(kept)

        def step(t: Any, env: Env) -> Held:
            values, mask = together(t, env, chosen, labels)
            made = fn(t, *values).expand(mask.shape)
            if divided:
                parts = laid(env["parts"][0], ["j"], labels)
                mask = mask & (parts != 0)
                made = made * (12 // parts.clamp(min=1)) / 4
            return reduce(t, "SUM", made, mask, labels, kept, lambda t, x: x / 3)

        return self.add("contraction", kept, query, step)

    def reduced(self) -> bool:
        """An aggregate of one relation."""
        source = self.recent()
        if source is None:
            return False
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
        query = f"SELECT {listed(kept)}sin({text}) AS val FROM {source.name}"
        query += self.grouped(kept, False)

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            there = mask & (value > -0.3) if where else mask
            made, some = reduce(t, name, value, there, source.labels, kept, lambda t, x: x)
            if where:
                made = t.where(some, made, 0)
                some = reduce(t, "SUM", value, mask, source.labels, kept, lambda t, x: x)[1]
            return t.sin(made), some

        return self.add(f"reduce {name}", kept, query, step)

    def windowed(self) -> bool:
        """A value beside an aggregate of those around it."""
        source = self.recent()
        if source is None:
            return False
        kept = self.some(source.labels)
        name = self.random.choice(("SUM", "AVG", "MAX", "LOGSUMEXP"))
        by = f"PARTITION BY {', '.join(kept)}" if kept else ""
        value = f"tanh(val - {name}(val) OVER ({by}))"
        query = f"SELECT {listed(source.labels)}{value} AS val FROM {source.name}"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            around, _ = reduce(t, name, value, mask, source.labels, kept, lambda t, x: x)
            return t.tanh(value - laid(around, kept, source.labels)), mask

        return self.add("window", source.labels, query, step)

    def softened(self) -> bool:
        """A softmax written by hand."""
        source = self.recent()
        if source is None:
            return False
        kept, keys = self.some(source.labels), listed(source.labels)
        by = f"PARTITION BY {', '.join(kept)}" if kept else ""
        each = f"SELECT {keys}EXP(val - MAX(val) OVER ({by})) AS e FROM {source.name}"
        query = f"SELECT {keys}e / SUM(e) OVER ({by}) AS val FROM ({each})"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            total, _ = reduce(t, "LOGSUMEXP", value, mask, source.labels, kept, lambda t, x: x)
            return t.exp(t.where(mask, value - laid(total, kept, source.labels), 0)), mask

        return self.add("softmax", source.labels, query, step)

    def masked(self) -> bool:
        """Groups of which some entries, or all, are minus infinity; those groups are dropped."""
        source = self.pick("j")
        kept = [] if source is None else self.some(source.labels)
        if source is None or not kept:
            return False
        name = source.name
        table, value = f"{name} s JOIN holes h ON h.j = s.j", "s.val + h.val"
        columns, group = listed(kept, "s."), ", ".join(f"s.{a}" for a in kept)
        text = self.random.choice((f"LOGSUMEXP({value})", f"LN(SUM(EXP({value})))", "by hand"))
        if text == "by hand":
            top = f"MAX({value}) OVER (PARTITION BY {group})"
            keys = listed(source.labels, "s.")
            table = f"(SELECT {keys}{value} AS val, {top} AS top FROM {table})"
            columns, group = listed(kept), ", ".join(kept)
            text = "MAX(top) + LN(SUM(EXP(val - top)))"
        query = (f"SELECT {listed(kept)}val FROM (SELECT {columns}{text} AS val FROM {table} "
                 f"GROUP BY {group}) WHERE val BETWEEN -1e300 AND 1e300")  # fmt: skip

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            there = mask & laid(env["holes"][0] == 0, ["j"], source.labels)
            return reduce(t, "LOGSUMEXP", value, there, source.labels, kept, lambda t, x: x)

        return self.add("masked rows", kept, query, step)

    def filtered(self) -> bool:
        """Some rows, by value or by key."""
        source = self.recent()
        if source is None:
            return False
        label = self.random.choice(source.labels)
        axis, bound = source.labels.index(label), EXTENT[label] - 1
        kind = self.random.choice(("val > -0.5", f"{label} < {bound}", f"{label} <> 1"))
        query = f"SELECT {listed(source.labels)}val * 1.5 AS val FROM {source.name} WHERE {kind}"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            at = t.arange(EXTENT[label]).reshape(
                [-1 if n == axis else 1 for n in range(value.dim())]
            )
            keep = value > -0.5 if kind[0] == "v" else at < bound if "<>" not in kind else at != 1
            return value * 1.5, mask & keep

        return self.add("filter", source.labels, query, step)

    def centred(self) -> bool:
        """Values without their mean, from a scalar subquery."""
        source = self.recent()
        if source is None:
            return False
        mean = f"(SELECT AVG(q.val) FROM {source.name} q)"
        query = f"SELECT {listed(source.labels)}val - {mean} AS val FROM {source.name}"

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            mean, _ = reduce(t, "AVG", value, mask, source.labels, [], lambda t, x: x)
            return value - mean, mask

        return self.add("subquery", source.labels, query, step)
