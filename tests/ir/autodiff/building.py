"""What random losses are built with: their tensors, their queries so far, and joins of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from tests.ir.autodiff.pieces import BINARY, EXTENT, STOPPED, UNARY, Env, Fn, Held, Relation, Tensor


def _first(t: Any, *x: Tensor) -> Tensor:
    return x[0]


def _joined(f: Fn, g: Fn, n: int) -> Fn:
    """Of what g gives, and of value n."""
    return lambda t, *x: f(t, g(t, *x), x[n])


def _chained(f: Fn, g: Fn) -> Fn:
    """Of what g gives."""
    return lambda t, *x: f(t, g(t, *x))


def listed(labels: Sequence[str], alias: str = "") -> str:
    """Keys as SELECT items before others."""
    return "".join(f"{alias}{a}, " for a in labels)


@dataclass
class Builder:
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
        self.arrays["holes"] = ("j", np.where(chance.random(EXTENT["j"]) < 0.4, -np.inf, 0.0))
        self.arrays["parts"] = ("j", chance.integers(0, 4, EXTENT["j"]))

    def pick(self, having: str, lacking: str = "") -> Relation | None:
        """A relation with some keys and without others, if there is one."""
        fits = [
            r for r in self.pool
            if {*having} <= {*r.labels} and not {*lacking} & {*r.labels}
        ]  # fmt: skip
        return self.random.choice(fits) if fits else None

    def recent(self) -> Relation | None:
        """One of the last relations, if it has keys."""
        source = self.random.choice(self.pool[-3:])
        return source if source.labels else None

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
