"""Sums over ranges that scalars end: what the plan alone decides is decided once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.kernels import registry
from einsql.kernels.matmul import contraction

RNG = np.random.default_rng(7)
S = RNG.standard_normal((3, 2, 80)).astype(np.float32)
V = RNG.standard_normal((3, 80, 5)).astype(np.float32)
PAIR = """
SELECT s.g, s.r, v.d, SUM(s.val * v.val) AS val
FROM s JOIN v ON v.g = s.g AND v.t = s.t WHERE v.t <= ? GROUP BY s.g, s.r, v.d"""
ALONE = "SELECT s.g, s.r, SUM(s.val) AS val FROM s WHERE s.t <= ? GROUP BY s.g, s.r"
SCALED = """
SELECT s.g, v.d, SUM(s.val * v.val * 3) AS val
FROM s JOIN v ON v.g = s.g AND v.t = s.t WHERE s.t < ? GROUP BY s.g, v.d"""
STATEMENTS = (PAIR, ALONE, SCALED)


def connected() -> einsql.Connection:
    con = einsql.connect()
    con.register("s", S, dims=("g", "r", "t"))
    con.register("v", V, dims=("g", "t", "d"))
    return con


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what has chosen or matched a kernel, one for each time it did."""
    noted: list[str] = []

    def note(module: Any, name: str) -> None:
        made: Callable[..., object] = getattr(module, name)

        def noting(*given: object, **named: object) -> object:
            noted.append(name)
            return made(*given, **named)

        monkeypatch.setattr(module, name, noting)

    note(registry, "compile_node")
    note(contraction, "product_of")
    return noted


@pytest.mark.parametrize("sql", STATEMENTS)
def test_no_kernel_is_chosen_for_one_more_value(sql: str, counted: list[str]) -> None:
    con = connected()
    con.execute(sql, [20]).fetch_numpy()
    assert counted
    counted.clear()
    for n in range(21, 71):
        con.execute(sql, [n]).fetch_numpy()
    assert not counted


@pytest.mark.parametrize("sql", STATEMENTS)
def test_the_bits_are_those_of_a_kernel_for_the_range_alone(
    sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "compile_parts", lambda *_: None)
    apart = connected()
    wanted = [apart.execute(sql, [n]).fetch_numpy(fill=0).tobytes() for n in range(-2, 83)]
    monkeypatch.undo()
    together = connected()
    found = [together.execute(sql, [n]).fetch_numpy(fill=0).tobytes() for n in range(-2, 83)]
    assert found == wanted
