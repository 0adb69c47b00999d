"""E3 executed: layers of LLaMA at a scaled width on ranks, under every strategy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.evaluation.executed import COLUMNS, NOTE, UNITS, Statement, compared
from benchmarks.evaluation.experiment import Array, Experiment, Table
from tests.support.networks import transformer

SHAPE = {"b": 2, "s": 128, "a": 128, "h": 8, "d": 16, "f": 344}
"""A 32nd of LLaMA-7B's width, with a quarter of its heads."""
LAYERS = 2
STRATEGIES = ("eindecomp", "exact", "megatron", "sequence", "attention")
EXACT = (
    "`exact` is optimal by the search's estimate of bytes. `eindecomp` also places the other "
    "strategies, and takes the program that sends least."
)


def statement() -> Statement:
    """The layers with normal values, those of weights with deviation 0.05."""
    tensors, sql = transformer(LAYERS, **SHAPE)  # type: ignore[arg-type]  # SHAPE has no names
    chance = np.random.default_rng(0)
    arrays = {}
    for name, extents in tensors.items():
        values = chance.standard_normal(tuple(extents.values()), dtype=np.float32)
        arrays[name] = tuple(extents), values * np.float32(1 if name == "x" else 0.05)
    return Statement(f"{LAYERS} layers", sql, arrays, layers)


def layers(given: Mapping[str, Array]) -> Array:
    """The layers by NumPy."""

    def normed(x: Array, gain: Array) -> Array:
        scaled: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1) * gain
        return scaled

    x = given["x"]
    for n in range(LAYERS):
        w = {name: given[f"{name}{n}"] for name in ("wq", "wk", "wv", "wo", "wg", "wu", "wd")}
        inner = normed(x, given[f"g{n}"])
        q, k, v = (np.einsum("bsa,ahd->bshd", inner, w[name]) for name in ("wq", "wk", "wv"))
        scores = np.einsum("bshd,bthd->bhst", q, k)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        attended = np.einsum("bhst,bthd->bshd", scores / scores.sum(-1, keepdims=True), v)
        x = x + np.einsum("bshd,hda->bsa", attended, w["wo"])
        inner = normed(x, given[f"h{n}"])
        gate = inner @ w["wg"]
        x = x + (gate / (1 + np.exp(-gate)) * (inner @ w["wu"])) @ w["wd"]
    return x


def computed(full: bool) -> list[Table]:
    """Bytes, memory and answers on two and four ranks."""
    given = statement()
    rows = [row for ranks in (2, 4) for row in compared(given, ranks, True, STRATEGIES)]
    return [Table("Layers of LLaMA on ranks", COLUMNS, rows, UNITS, note=f"{NOTE} {EXACT}")]


EXPERIMENT = Experiment(
    title="E3: LLaMA's layers on ranks",
    source="EinDecomp §9, experiment 3",
    about="The layers of the experiment above at a 32nd of the width, {b} × {s} tokens, stored "
    "at the ranks and executed. `eindecomp` and `exact` minimise bytes. Inputs keep the "
    "placements of the previous run, so their movement is not counted.".format(**SHAPE),
    computed=computed,
)
