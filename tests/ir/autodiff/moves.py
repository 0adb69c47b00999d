"""Queries of random losses that read by computed keys: gathers, segments, diagonals, windows."""

from __future__ import annotations

from typing import Any

from tests.ir.autodiff.building import Builder, listed
from tests.ir.autodiff.pieces import Env, Held, Tensor, full, laid, reduce


class Moves(Builder):
    """Each method adds a query, if what there is allows it."""

    def gathered(self) -> bool:
        """Rows by numbers in a tensor."""
        source = self.pick("i", lacking="n")
        if source is None:
            return False
        labels = ["n", *(a for a in source.labels if a != "i")]
        keys = listed(labels[1:], "s.")
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
        source = self.pick("n", lacking="i")
        if source is None:
            return False
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
        source = self.pick("il")
        if source is None:
            return False
        labels = [a for a in source.labels if a != "l"]
        query = f"SELECT {listed(labels)}val FROM {source.name} WHERE i = l"
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
        source = self.pick("il")
        if source is None:
            return False
        turn = {"i": "l", "l": "i"}
        keys = "".join(f"{a} AS {turn.get(a, a)}, " for a in source.labels)
        labels = [turn.get(a, a) for a in source.labels]
        return self.add("turn", labels, f"SELECT {keys}val FROM {source.name}",
                        lambda t, env: env[source.name])  # fmt: skip

    def slid(self) -> bool:
        """A convolution."""
        line, window = self.pick("m", lacking="od"), self.pick("d", lacking="om")
        if line is None or window is None:
            return False
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
        source = self.pick("m", lacking="p")
        if source is None:
            return False
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
        source = self.pick("m")
        if source is None:
            return False
        equal = "".join(f" AND x.{a} = y.{a}" for a in source.labels if a != "m")
        tables = f"{source.name} x, {source.name} y"
        query = (f"SELECT {listed(source.labels, 'x.')}x.val * y.val AS val FROM {tables} "
                 f"WHERE y.m = (x.m + 2) % 6{equal}")  # fmt: skip

        def step(t: Any, env: Env) -> Held:
            value, mask = full(t, env[source.name])
            at = source.labels.index("m")
            return value * value.roll(-2, at), mask & mask.roll(-2, at)

        return self.add("roll", source.labels, query, step)
