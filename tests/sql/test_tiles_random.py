"""Random SELECTs over tiles against loops over every combination of blocks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import numpy as np
import pytest

import einsql
from tests.support.samples import sample

M = np.arange(16.0).reshape(4, 4) / 2

CONDITIONS = [
    "a.i < b.j", "a.j > 0", "a.i + b.j = 1", "b.j % 2 = 0", "a.i = 0 OR b.j = 1", "a.i <> a.j",
    "a.i BETWEEN 0 AND b.j + 1", "TRUE",
]  # fmt: skip
PYTHON: list[Callable[[int, int, int], bool]] = [
    lambda i, j, k: i < k, lambda i, j, k: j > 0, lambda i, j, k: i + k == 1,
    lambda i, j, k: k % 2 == 0, lambda i, j, k: i == 0 or k == 1, lambda i, j, k: i != j,
    lambda i, j, k: 0 <= i <= k + 1, lambda i, j, k: True,
]  # fmt: skip
ARRAYS: list[tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    ("tensor_einsum('ij,jk->ik', a.tile, b.tile)", lambda a, b: a @ b),
    ("a.tile * 2 - 1", lambda a, b: a * 2 - 1),
    ("tensor_einsum('ij->j', b.tile)", lambda a, b: b.sum(axis=0)),
    ("tensor_transpose(b.tile)", lambda a, b: b.T),
    (
        "tensor_einsum('ij,jk->ik', tensor_sqrt(a.tile), b.tile + b.tile) / 2",
        lambda a, b: np.sqrt(a) @ (b + b) / 2,
    ),
    (
        "tensor_einsum('ij,jk->ik', a.tile, b.tile, 'add', 'max')",
        lambda a, b: (a[:, :, None] + b[None]).max(axis=1),
    ),
]
KEYS: list[tuple[str, Callable[[int, int, int], int]]] = [
    ("a.i", lambda i, j, k: i), ("a.j", lambda i, j, k: j), ("b.j", lambda i, j, k: k),
    ("b.i * 2 + 1", lambda i, j, k: j * 2 + 1), ("a.i // 2", lambda i, j, k: i // 2),
    ("a.i + b.j", lambda i, j, k: i + k),
]  # fmt: skip
MERGES = [("sum", np.add), ("max", np.maximum), ("min", np.minimum)]


Blocks = dict[tuple[int, ...], np.ndarray]


def random_select(pick: Random) -> tuple[str, Blocks]:
    """A SELECT over tiles of m, and by loops over every combination of blocks what it gives."""
    p, q, r = (pick.choice((1, 2, 4)) for _ in range(3))
    chosen = pick.sample(range(len(CONDITIONS)), pick.choice((0, 1, 1, 2)))
    text, made = pick.choice(ARRAYS)
    keys = KEYS[:3]
    merge = None
    if pick.random() < 0.6:
        merge = pick.choice(MERGES)
        keys = pick.sample(KEYS, pick.choice((0, 1, 1, 2)))
        text = f"tensor_{merge[0]}({text})"
    pick.shuffle(keys)
    sql = f"SELECT {''.join(f'{k} AS k{n}, ' for n, (k, _) in enumerate(keys))}{text} AS t "
    sql += f"FROM TILES(m, {p}, {q}) a JOIN TILES(m, {q}, {r}) b ON a.j = b.i"
    sql += f" WHERE {' AND '.join(f'({CONDITIONS[c]})' for c in chosen)}" if chosen else ""
    if merge is not None and keys:
        sql += f" GROUP BY {', '.join(k for k, _ in keys)}"

    wanted: Blocks = {}
    for i, j, k in product(range(p), range(q), range(r)):
        if not all(PYTHON[c](i, j, k) for c in chosen):
            continue
        a = np.split(np.split(M, p)[i], q, axis=1)[j]
        b = np.split(np.split(M, q)[j], r, axis=1)[k]
        key, array = tuple(f(i, j, k) for _, f in keys), made(a, b)
        wanted[key] = merge[1](wanted[key], array) if merge and key in wanted else array
    return sql, dict(sorted(wanted.items()))


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_random_selects_over_tiles(start: int) -> None:
    con = einsql.connect()
    con.register("m", M, ("i", "j"))
    for seed in range(start, start + sample(15, 100)):
        sql, wanted = random_select(Random(seed))
        rows = con.execute(sql).fetchall()
        assert [row[:-1] for row in rows] == list(wanted), sql
        for row in rows:
            np.testing.assert_allclose(row[-1], wanted[row[:-1]], rtol=1e-12, err_msg=sql)


def test_blocks_that_a_filter_drops_are_not_made() -> None:
    con = einsql.connect()
    con.register("m", np.array([[0, 2], [4, 0]]), ("i", "j"))
    pairs = "FROM TILES(m, 2, 2) a JOIN TILES(m, 2, 2) b ON a.i = b.i WHERE a.j < b.j + a.i * 2"
    with pytest.raises(einsql.DataError, match="zero"):
        con.execute(f"SELECT a.i, a.j, b.j AS k, 8 // b.tile AS t {pairs}")
    kept = f"{pairs} AND a.j + b.j = 1 AND a.i <> 1"
    rows = con.execute(f"SELECT a.i, a.j, b.j AS k, 8 // b.tile AS t {kept}").fetchall()
    assert rows == [(0, 0, 1, np.array([[4]]))]
    total = con.execute(f"SELECT tensor_sum(8 // b.tile) AS t {kept}").fetchall()
    assert total == [(np.array([[4]]),)]
