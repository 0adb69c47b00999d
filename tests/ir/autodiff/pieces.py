"""What random losses are made of: functions in SQL and of torch tensors, and aggregates.

Tensors have an axis for each label; labels are those of `EXTENT`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

EXTENT = {"i": 3, "j": 4, "k": 2, "l": 3, "m": 6, "n": 5, "o": 4, "p": 3, "d": 3}
"""Labels with their extents; i and l are alike, p counts pairs of m, o + d reaches m."""

Tensor = Any
"""A torch.Tensor; torch is optional."""
Held = tuple[Tensor, Tensor | None]
"""Values, and which of them there are."""
Env = dict[str, Held]


Fn = Callable[..., Tensor]

UNARY: list[tuple[str, Fn]] = [
    ("tanh({0})", lambda t, x: t.tanh(x)),
    ("sin({0} * 2)", lambda t, x: t.sin(x * 2)),
    ("cos({0})", lambda t, x: t.cos(x)),
    ("sigmoid({0})", lambda t, x: t.sigmoid(x)),
    ("sigmoid({0} * 2000) - sin({0}) / 3", lambda t, x: t.sigmoid(x * 2000) - t.sin(x) / 3),
    ("erf({0})", lambda t, x: t.erf(x)),
    ("atan({0})", lambda t, x: t.atan(x)),
    ("exp(-abs({0}))", lambda t, x: t.exp(-t.abs(x))),
    ("1 / (1 + {0} * {0})", lambda t, x: 1 / (1 + x * x)),
    ("{0} / sqrt(1 + {0} * {0})", lambda t, x: x / t.sqrt(1 + x * x)),
    ("ln(1 + exp(-{0} * {0})) - {0} % 1", lambda t, x: t.log(1 + t.exp(-x * x)) - t.fmod(x, 1)),
    ("least(greatest({0}, -0.7), 0.9)", lambda t, x: t.clamp(x, -0.7, 0.9)),
    ("CASE WHEN {0} > 0.1 THEN sqrt({0}) / 2 ELSE pow({0}, 2) / (1 + {0} * {0}) END",
     lambda t, x: t.where(x > 0.1, t.sqrt(t.where(x > 0.1, x, 1)) / 2, x**2 / (1 + x * x))),
    ("round({0}) - floor({0} / 2) / 4 + sin({0})",
     lambda t, x: t.round(x).detach() - t.floor(x / 2).detach() / 4 + t.sin(x)),
]  # fmt: skip
"""Functions with bounded results, of one argument."""
STOPPED: tuple[str, Fn] = (
    "stop_gradient({0}) * tanh({0})", lambda t, x: x.detach() * t.tanh(x)
)  # fmt: skip
"""Bounded too, but its gradient is not that of the value."""
BINARY: list[tuple[str, Fn]] = [
    ("{0} + {1}", lambda t, x, y: x + y),
    ("{0} - {1}", lambda t, x, y: x - y),
    ("{0} * {1}", lambda t, x, y: x * y),
    ("{0} * {1}", lambda t, x, y: x * y),
    ("{0} / (1 + {1} * {1})", lambda t, x, y: x / (1 + y * y)),
    ("greatest({0}, {1})", lambda t, x, y: t.maximum(x, y)),
    ("least({0}, {1})", lambda t, x, y: t.minimum(x, y)),
    ("atan2({0}, 1 + {1} * {1})", lambda t, x, y: t.atan2(x, 1 + y * y)),
    ("pow(1 + {0} * {0}, cos({1}))", lambda t, x, y: t.pow(1 + x * x, t.cos(y))),
    ("CASE WHEN {0} < {1} THEN {0} * 2 ELSE {1} END", lambda t, x, y: t.where(x < y, x * 2, y)),
    ("coalesce(CASE WHEN {0} > 0 THEN {0} END, {1})", lambda t, x, y: t.where(x > 0, x, y)),
]


def laid(x: Tensor, labels: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """A tensor with its axes in another order, and axes of one for labels it lacks."""
    x = x.permute([labels.index(a) for a in wanted if a in labels])
    return x[tuple(slice(None) if a in labels else None for a in wanted)]


def full(t: Any, held: Held) -> tuple[Tensor, Tensor]:
    """Values and a mask."""
    value, mask = held
    return value, t.ones_like(value, dtype=t.bool) if mask is None else mask


@dataclass(frozen=True)
class Relation:
    """A tensor, or a query of WITH."""

    name: str
    labels: tuple[str, ...]


def weight(t: Any, labels: Sequence[str]) -> Tensor:
    """What `Generator.weight` spells."""
    total = t.zeros([EXTENT[a] for a in labels], dtype=t.float64)
    for n, a in enumerate(labels):
        total = total + laid(t.arange(EXTENT[a]) * (n + 1), [a], labels)
    return total


def together(
    t: Any, env: Env, chosen: Sequence[Relation], labels: Sequence[str]
) -> tuple[list[Tensor], Tensor]:
    """Values of joined relations over all labels, and where all of them are there."""
    values: list[Tensor] = []
    mask = t.ones([EXTENT[a] for a in labels], dtype=t.bool)
    for r in chosen:
        value, own = full(t, env[r.name])
        values.append(laid(value, r.labels, labels).expand(mask.shape))
        mask = mask & laid(own, r.labels, labels)
    return values, mask


def reduce(
    t: Any, name: str, value: Tensor, mask: Tensor, labels: Sequence[str], kept: Sequence[str],
    then: Fn,
) -> Held:  # fmt: skip
    """An aggregate over the labels that are not kept, and which groups there are."""
    order = [*kept, *(a for a in labels if a not in kept)]
    shape = [EXTENT[a] for a in kept]
    x = laid(value, labels, order).reshape([*shape, -1])
    on = laid(mask, labels, order).reshape([*shape, -1])
    count = on.sum(-1)
    least = count.clamp(min=1)
    if name == "PRODUCT":
        made = t.where(on, x, 1).prod(-1)
    elif name in ("MAX", "MIN"):
        sign = 1 if name == "MAX" else -1
        made = sign * t.where(on, sign * x, -1e30).amax(-1)
    elif name == "LOGSUMEXP":
        made = t.where(on, x, -1e30).logsumexp(-1)
    else:
        made = t.where(on, x, 0).sum(-1)
        if name != "SUM":
            made = made / least
        if name == "VAR_POP":
            made = (t.where(on, x - made[..., None], 0) ** 2).sum(-1) / least
    return then(t, t.where(count > 0, made, 0)), count > 0
