"""How tiles get from site to site: known mappings, their collectives and their exact bytes."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.einsum import Node
from einsql.optimizer.decomposition import Cut, Decomposition, decompose
from tests.test_sites import QUERIES, connection

CHANCE = np.random.default_rng(11)


def integers(*shape: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in any order."""
    return CHANCE.integers(-4, 5, shape).astype(np.float32)


Cuts = Sequence[str] | Callable[[Cut], str]
"""The cut of each operation, producers first, such as `i=2 k=3 copies=2`."""


def forced(sites: int, cuts: Cuts) -> Any:
    """A decomposition that gives each operation its cut."""

    def cut(root: Node, *_: object, **__: object) -> Decomposition:
        whole = decompose(root, 1).cuts
        texts = [cuts(c) for c in whole] if callable(cuts) else cuts
        assert len(texts) == len(whole), [c.parts for c in whole]
        made = []
        for c, text in zip(whole, texts, strict=True):
            wanted = {x: int(n) for x, n in (part.split("=") for part in text.split())}
            copies = wanted.pop("copies", 1)
            assert wanted.keys() <= c.parts.keys(), (wanted, c.parts)
            parts = dict.fromkeys(c.parts, 1) | wanted
            made.append(replace(c, parts=parts, copies=copies))
        return Decomposition("forced", sites, tuple(made))

    return cut


def placed(
    monkeypatch: pytest.MonkeyPatch,
    con: einsql.Connection,
    sql: str,
    sites: int,
    cuts: Cuts,
) -> dict[str, Any]:
    """EXPLAIN's report of a statement under given cuts, once its answer is found right."""
    con.execute("SET sites = 1; SET jit = 'never'")
    expected = con.execute(sql).fetchall()
    with monkeypatch.context() as patch:
        patch.setattr("einsql.optimizer.decomposition.decompose", forced(sites, cuts))
        con.execute(f"SET sites = {sites}")
        rows = con.execute(sql).fetchall()
        for row, wanted in zip(rows, expected, strict=True):
            assert row == pytest.approx(wanted, rel=1e-5)
        (text,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchone() or ("",)
    report: dict[str, Any] = json.loads(text)
    for node in report["nodes"]:
        assert node["measured"]["bytes_sent"] == node["bytes_sent"]
    sent = sum(s["bytes_sent"] for s in report["per_site"])
    assert sent == report["total"]["bytes_sent"] == sum(n["bytes_sent"] for n in report["nodes"])
    return report


def moved(report: dict[str, Any]) -> list[tuple[str, int]]:
    """The collective and the bytes of every operation."""
    return [(n["collective"], n["bytes_sent"]) for n in report["nodes"]]


MLP = """
WITH h AS (SELECT b, f, SUM(x.val * w1.val) AS val FROM x JOIN w1 USING (a) GROUP BY b, f),
g AS (SELECT b, f, GREATEST(val, 0) AS val FROM h),
y AS (SELECT b, o, SUM(g.val * w2.val) AS val FROM g JOIN w2 USING (f) GROUP BY b, o)
SELECT b, o, y.val + r.val AS val FROM y JOIN r USING (b, o)"""


def mlp() -> einsql.Connection:
    con = einsql.connect()
    for name, keys, shape in (
        ("x", "ba", (6, 5)), ("w1", "af", (5, 8)), ("w2", "fo", (8, 7)), ("r", "bo", (6, 7)),
    ):  # fmt: skip
        con.register(name, integers(*shape), dims=tuple(keys))
    return con


def test_a_tensor_parallel_mlp_takes_one_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    report = placed(monkeypatch, mlp(), MLP, 4, ["f=4", "f=4", "f=4", "copies=4"])
    *_, second, last = report["nodes"]
    assert second["placements"]["result"] == ["Partial(SUM)"]
    assert last["placements"] == {
        "grid": [["*", 4]], "operands": [["Replicate"], ["Replicate"]], "result": ["Replicate"],
    }  # fmt: skip
    assert moved(report) == [
        ("none", 0),
        ("none", 0),
        ("all-reduce", 2 * 3 * 6 * 7 * 4),
        ("none", 0),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_any_cut_gives_the_same_answers_and_sends_what_is_planned(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    sites = chance.choice([3, 4, 8, 12])
    for sql in QUERIES:
        cut = functools.partial(random_cut, chance, sites)
        placed(monkeypatch, connection(), sql, sites, cut)


def random_cut(chance: random.Random, sites: int, cut: Cut) -> str:
    """Any numbers of parts, even more than a label has values, and as many copies as fit."""
    parts = {x: chance.choice([1, 1, 2, 3, 5, 13]) for x in cut.parts}
    calls = prod(parts.values())
    copies = chance.randint(1, sites // calls) if calls <= sites else 1
    return " ".join(f"{x}={n}" for x, n in (parts | {"copies": copies}).items())
