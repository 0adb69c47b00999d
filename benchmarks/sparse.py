"""Tensors that lack most of their elements, beside dense products and SciPy."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

import einsql
from benchmarks.matrices import MATMUL, Array, check, connected, random
from benchmarks.measure import Times, measure
from benchmarks.report import Finding, Section, factor, times
from einsql.kernels.storage_choice import StorageChoice

N, TILE = 4096, 128
TILES = 0.05
ELEMENTS = (0.001, 0.01, 0.05, 0.2)
NODES, EACH, FEATURES = 100_000, 10, 64
APART = 0.15
"""Seconds between turns; BLAS's threads take the cores for 0.1 s after a long product."""

STORED, KEPT = 2000, (0.5, 0.25, 0.125, 0.03125)
"""Rows and columns of tensors that are stored both ways, and the fractions of their rows."""
SQUARED = (100_000, 10_000, 1_000_000)
"""Rows, columns and elements of the sparse matrix that is multiplied by its transpose."""
OF_STORED = (
    "SELECT i, MIN(val) AS m FROM {} GROUP BY i",
    "SELECT j, SUM(val) AS m, COUNT(*) AS n FROM {} GROUP BY j",
    "SELECT i, k, SUM({}.val * w.val) AS s FROM {} JOIN w USING (j) GROUP BY i, k",
    "SELECT i, j, val * 2 + 1 AS v FROM {} WHERE val > 0.2",
    "SELECT i, j, val FROM {}",
)

SIDE, SHARES = 2000, (0.001, 0.01, 0.05, 0.12, 0.25)
"""Rows and columns of a sparse tensor, and the fractions of its elements that are stored."""
AIM = 1.15
"""The greatest time of the chosen method relative to the faster one."""
PRODUCTS = {
    "64 columns": "SELECT i, k, SUM(t.val * w.val) AS s FROM t JOIN w USING (j) GROUP BY i, k",
    "2,000 columns": "SELECT i, k, SUM(t.val * x.val) AS s FROM t JOIN x USING (j) GROUP BY i, k",
    "t itself": "SELECT a.i, b.j AS k, SUM(a.val * b.val) AS s FROM t a JOIN t b ON a.j = b.i "
    "GROUP BY a.i, b.j",
}
OTHERS = {
    "a vector": "SELECT i, SUM(t.val * v.val) AS s FROM t JOIN v USING (j) GROUP BY i",
    "map": "SELECT i, j, val * 2 + 1 AS v FROM t",
    "sums of rows": "SELECT i, SUM(val) AS s FROM t GROUP BY i",
    "sums of columns": "SELECT j, SUM(val) AS s FROM t GROUP BY j",
}
"""Operations that are run over stored elements, whatever their number."""

MASKED = """
CREATE TENSOR a AS SELECT raw.i, raw.j, raw.val FROM raw JOIN kept USING (i, j) WHERE kept.val
"""


def sparse() -> Section:
    """Tiles and elements that are absent, and SciPy's arrays."""
    return Section(
        "Sparse tensors, float32: the other's time / einsql's time",
        (
            *_tiles(),
            *(_elements(d) for d in ELEMENTS),
            *_stored(),
            *storages(),
            *copies(),
            _squared(),
        ),
    )


def _line(what: str, taken: Times, peer: str, aim: float | None) -> Finding:
    found = taken.ratio(peer, "einsql")
    return Finding(
        f"{what}, vs {peer}",
        factor(found, 2),
        "" if aim is None else f"≥ {aim}×",
        None if aim is None else found.value >= aim,
        times({name: taken.median(name) for name in taken.seconds}),
    )


def _masked(kept: Array) -> tuple[einsql.Connection, einsql.Connection, Array, Array]:
    """Connections that know a and b, without and with the elements of a that are left out."""
    raw, b = random(N, N), random(N, N, seed=1)
    con = connected({"raw": raw, "kept": kept, "b": b})
    con.execute(MASKED)
    whole = connected({"a": raw, "b": b})
    check(con.execute(MATMUL).fetch_numpy(), np.where(kept, raw, np.float32(0)) @ b)
    return con, whole, raw, b


def _tiles() -> list[Finding]:
    """Every row of the result exists, so that arrays are handed out as they are."""
    chance = np.random.default_rng(0)
    per_row = N // TILE
    kept = np.zeros((per_row, per_row), np.bool_)
    kept[np.arange(per_row), chance.permutation(per_row)] = True
    more = round(TILES * per_row**2) - per_row
    kept.reshape(-1)[chance.choice(np.flatnonzero(~kept), more, replace=False)] = True
    con, whole, raw, b = _masked(np.kron(kept, np.ones((TILE, TILE), np.bool_)))
    taken = measure(
        {
            "einsql": lambda: con.execute(MATMUL).fetch_numpy(),
            "einsql, dense": lambda: whole.execute(MATMUL).fetch_numpy(),
            "numpy, dense": lambda: raw @ b,
        },
        rounds=7,
        seconds=0.0,
        pause=APART,
    )
    what = f"{N}², {TILES:.0%} of the tiles of {TILE}²"
    return [_line(what, taken, peer, 10.0) for peer in ("einsql, dense", "numpy, dense")]


def _elements(density: float) -> Finding:
    chance = np.random.default_rng(1)
    kept = chance.random((N, N)) < density
    kept[np.arange(N), chance.integers(0, N, N)] = True
    con, _, raw, b = _masked(kept)
    taken = measure(
        {"einsql": lambda: con.execute(MATMUL).fetch_numpy(), "numpy, dense": lambda: raw @ b},
        rounds=5,
        seconds=0.0,
        pause=APART,
    )
    return _line(f"{N}², {density:.1%} of the elements", taken, "numpy, dense", None)


def _stored() -> list[Finding]:
    from scipy.sparse import csr_array

    chance = np.random.default_rng(2)
    apart = NODES // EACH
    columns = chance.integers(0, apart, (NODES, EACH)) + apart * np.arange(EACH)
    values = chance.standard_normal(NODES * EACH, dtype=np.float32)
    starts = np.arange(0, NODES * EACH + 1, EACH)
    m = csr_array((values, columns.reshape(-1), starts), shape=(NODES, NODES))
    d = random(NODES, FEATURES)
    cases: list[tuple[str, Any, str, Array]] = [
        (f"CSR {NODES:,}², {NODES * EACH:,} stored × {FEATURES} columns", lambda: m @ d,
         "SELECT m.i, d.k, SUM(m.val * d.val) AS val FROM m JOIN d ON m.j = d.i "
         "GROUP BY m.i, d.k", d),
        ("the same × a vector", lambda: m @ d[:, 0],
         "SELECT m.i, SUM(m.val * d.val) AS val FROM m JOIN d ON m.j = d.i GROUP BY m.i",
         np.ascontiguousarray(d[:, 0])),
    ]  # fmt: skip
    findings = []
    for what, theirs, sql, dense in cases:
        con = einsql.connect()
        con.register("m", m, dims=("i", "j"))
        con.register("d", dense, dims=("i", "k")[: dense.ndim])
        check(con.execute(sql).fetch_numpy(), theirs())

        def ours(con: einsql.Connection = con, sql: str = sql) -> Array:
            found: Array = con.execute(sql).fetch_numpy()
            return found

        taken = measure({"einsql": ours, "scipy": theirs}, rounds=15, seconds=1.0)
        findings.append(_line(what, taken, "scipy", 0.91))
    return findings


def storages() -> list[Finding]:
    """The same statements over a tensor stored as an array and as a sparse matrix."""
    findings, chance = [], np.random.default_rng(3)
    for density in KEPT:
        kept = chance.random((STORED, STORED)) < density
        raw, w = random(STORED, STORED), random(STORED, FEATURES)
        con = connected({"raw": raw, "kept": kept})
        con.register("w", w, dims=("j", "k"))
        for storage in ("DENSE", "SPARSE"):
            con.execute(
                f"CREATE TENSOR {storage}_t STORAGE {storage} AS SELECT raw.i, raw.j, raw.val "
                "FROM raw JOIN kept USING (i, j) WHERE kept.val"
            )

        def run(storage: str, con: einsql.Connection = con) -> None:
            for sql in OF_STORED:
                con.execute(sql.replace("{}", f"{storage}_t")).fetch_arrow_table()

        taken = measure(
            {"dense": partial(run, "DENSE"), "einsql": partial(run, "SPARSE")},
            rounds=5,
            seconds=0.0,
        )
        findings.append(_line(f"{STORED}², {density:.1%} stored", taken, "dense", None))
    return findings


def copies() -> list[Finding]:
    """The chosen method beside both forced ones, by processor time."""
    chance, findings = np.random.default_rng(4), list[Finding]()
    for share in SHARES:
        kept = chance.random((SIDE, SIDE)) < share
        con = connected({"raw": random(SIDE, SIDE), "kept": kept})
        con.register("v", random(SIDE), dims=("j",))
        for name, width in (("w", FEATURES), ("x", SIDE)):
            con.register(name, random(SIDE, width), dims=("j", "k"))
        for name, storage in (("t", "SPARSE"), ("u", "DENSE")):
            con.execute(
                f"CREATE TENSOR {name} STORAGE {storage} AS SELECT raw.i, raw.j, raw.val "
                "FROM raw JOIN kept USING (i, j) WHERE kept.val"
            )
        for what, sql in {**PRODUCTS, **OTHERS}.items():
            dense = sql if what in PRODUCTS else sql.replace("FROM t", "FROM u t")
            runs: dict[str, Callable[[], object]] = {
                "chosen": partial(con.execute, sql),
                "elements": partial(_forced, False, con, sql),
                "copy": partial(_forced, True, con, dense),
            }
            short = share * SIDE**2 * SIDE < 1e8 and what != "t itself"
            calls = dict.fromkeys(runs, 5 if short else 1)
            taken = measure(
                runs, rounds=5, seconds=0.0, calls=calls, pause=APART, clock=time.process_time
            )
            findings.append(_chosen(f"{SIDE}², {share:.1%} stored, {what}", taken))
    return findings


def _forced(is_copy: bool, con: einsql.Connection, sql: str) -> None:
    """Runs a statement by stored elements, or by a dense copy."""
    with patch.object(StorageChoice, "takes_copy", lambda *_: is_copy):
        con.execute(sql)


def _chosen(what: str, taken: Times) -> Finding:
    least = {name: min(seconds) for name, seconds in taken.seconds.items()}
    found = least["chosen"] / min(least["elements"], least["copy"])
    return Finding(what, f"{found:.2f}×", f"≤ {AIM}×", found <= AIM, times(least))


def _squared() -> Finding:
    """The transpose of a sparse matrix times the matrix, with sorted columns."""
    from scipy.sparse import coo_array, csr_array

    rows, columns, count = SQUARED
    chance = np.random.default_rng(1)
    flat = np.unique(chance.integers(0, rows * columns, count))
    m = csr_array(coo_array((chance.random(len(flat)), np.divmod(flat, columns)), (rows, columns)))
    con = einsql.connect()
    con.register("m", m, dims=("i", "j"))
    sql = (
        "CREATE OR REPLACE TENSOR c AS SELECT x.j, y.j AS k, SUM(x.val * y.val) AS val "
        "FROM m x JOIN m y USING (i) GROUP BY x.j, y.j"
    )

    def theirs() -> Any:
        product = m.T.tocsr() @ m
        product.sort_indices()
        return product

    con.execute(sql)
    found = con.execute("SELECT * FROM c").fetch_scipy()
    assert abs(found - theirs()).max() < 1e-12
    taken = measure({"einsql": lambda: con.execute(sql), "scipy": theirs}, rounds=3, seconds=0.0)
    return _line(f"AᵀA, CSR {rows:,} × {columns:,}, {len(flat):,} stored", taken, "scipy", 0.83)
