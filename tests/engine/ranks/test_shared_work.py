"""Work and traffic of every MPI rank: as even as cells allow, and exactly as planned.

What a run tells of bytes is counted from the buffers that ranks give to MPI; `exchanges.py`
compares that with what MPI is really given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

import einsql
from einsql.ir.einsum.flops import flops_at_point
from einsql.ir.spmd.program import Local
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from tests.engine.ranks.conftest import Connected
from tests.engine.test_sites import CHAIN, explained
from tests.support.networks import FFNN, ffnn, transformer
from tests.support.plans import planned
from tests.support.samples import combinations, sample, spread

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

COUNTS = sample((2, 4), (2, 4, 8))
MATMUL = "SELECT {hint}i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"


@dataclass(frozen=True)
class Case:
    """A statement over stored tensors.

    Attributes:
        keys: Of each tensor its keys with their extents.
        strategy: What cuts the statement where it has no hint.
        rtol: How far the answer may be from one site's; 0 where sums are exact.
        moves: Whether anything crosses sites on every number of them.
        dtype: The type of the tensors; DOUBLE where values are differences of much larger ones.
    """

    keys: Mapping[str, Mapping[str, int]]
    sql: Callable[[int], str]
    strategy: str = "eindecomp"
    rtol: float = 0.0
    moves: bool = True
    dtype: type = np.float32


def chain(s: int, t: int, wide: int) -> dict[str, dict[str, int]]:
    """Keys of the chain's matrices."""
    return {
        "a": {"i": s, "j": t}, "b": {"j": t, "k": s}, "c": {"i": s, "l": t},
        "d": {"l": t, "m": wide}, "e": {"m": wide, "k": s},
    }  # fmt: skip


def matrices(n: int) -> dict[str, dict[str, int]]:
    """Keys of the operands of a product of squares."""
    return {"a": {"i": n, "j": n}, "b": {"j": n, "k": n}}


def hinted(i: Callable[[int], int], j: Callable[[int], int], k: Callable[[int], int]) -> Case:
    """A product under a schedule of the labels i, j, k, each by the number of ranks."""
    return Case(
        matrices(16),
        lambda p: MATMUL.format(hint=f"/*+ PARTITION(i={i(p)}, j={j(p)}, k={k(p)}) */ "),
        moves=False,
    )


def one(_: int) -> int:
    return 1


LAYER = transformer(1, b=2, s=8, a=16, h=8, d=2, f=16)
CASES = {
    "square chain": Case(chain(16, 16, 16), lambda _: CHAIN),
    "skewed chain": Case(chain(20, 2, 200), lambda _: CHAIN),
    "feed-forward step": Case(ffnn(32, 12, 16, 8), lambda _: FFNN),
    "attention by heads": Case(LAYER[0], lambda _: LAYER[1], "attention", rtol=1e-9,
                               dtype=np.float64),
    "schedule 1 1 1": hinted(one, one, one),
    "schedule n 1 1": hinted(lambda p: p, one, one),
    "schedule 1 n 1": hinted(one, lambda p: p, one),
    # The cube root of 8; of 2 and 4, the grids nearest to a cube.
    "schedule of cubes": hinted(lambda p: min(p, 2), lambda p: p // 4 or 1,
                                lambda p: 1 if p == 2 else 2),
}  # fmt: skip


def store(
    con: einsql.Connection, name: str, keys: Mapping[str, int], cut: str, dtype: type = np.float32
) -> None:
    """Stores a tensor of small whole numbers with a declared cut."""
    chance = np.random.default_rng(sum(map(ord, name)))
    array: np.ndarray = chance.integers(-3, 4, tuple(keys.values())).astype(dtype)
    con.register("given", array, dims=tuple(keys))
    shown = ", ".join([*keys, "val"])
    con.execute(f"CREATE TENSOR {name} {cut} AS SELECT {shown} FROM given")
    con.unregister("given")


def even(keys: Mapping[str, int], sites: int) -> str:
    """A tensor that lies in blocks of its first key."""
    key, extent = next(iter(keys.items()))
    return f"PARTITION BY ({key} {min(extent, sites)})"


@pytest.mark.parametrize(("name", "count"), spread(combinations(CASES, COUNTS), 4))
def test_ranks_send_and_compute_what_is_planned(
    connected: Connected, count: int, name: str
) -> None:
    case = CASES[name]
    con, alone = connected(count), einsql.connect()
    for c in (con, alone):
        for tensor, keys in case.keys.items():
            store(c, tensor, keys, even(keys, count), case.dtype)
    con.execute(f"SET jit = 'never'; SET strategy = '{case.strategy}'")
    sql = case.sql(count)
    wanted = np.array(alone.execute(sql).fetchall(), np.float64)
    got = np.array(con.execute(sql).fetchall(), np.float64)
    np.testing.assert_allclose(got, wanted, rtol=case.rtol, atol=case.rtol)

    planned, ran = explained(con, sql), explained(con, sql, "ANALYZE, ")
    for what in ("bytes_sent", "bytes_received", "flops"):
        assert [s[what] for s in ran["per_site"]] == [s[what] for s in planned["per_site"]], what
    assert sum(s["bytes_sent"] for s in ran["per_site"]) == planned["total"]["bytes_sent"]
    assert planned["total"]["bytes_sent"] > 0 or not case.moves
    flops = [s["flops"] for s in ran["per_site"]]
    if name != "schedule 1 1 1":  # one site does it all
        assert max(flops) - sum(flops) / count <= largest_cell(con, sql), flops
        assert min(flops) > 0


def largest_cell(con: einsql.Connection, sql: str) -> int:
    """Scalar operations of the largest cell that a statement is cut into."""
    asked, _ = parse(sql)
    assert isinstance(asked, Query)
    plan, _ = planned(con, asked.tree)
    assert plan.placed is not None
    steps = [s for s in plan.placed.steps if isinstance(s, Local)]
    return max(int((s.cells[..., 1] - s.cells[..., 0]).prod(axis=1).max(initial=0))
               * flops_at_point(s.node) for s in steps)  # fmt: skip


WORDS = {
    # Every rank gets the other half of a panel of A, and sends half of its partial sums.
    4: ({"j": 2, "i": 2}, {"j": 2, "k": 2}, 1 / 2),
    # Halves of a block of A, of a block of B, and of the sums that two ranks share. A is stored
    # by columns, so that blocks of both lie where the grid of j, i, k needs them.
    8: ({"j": 2, "i": 4}, {"j": 4, "k": 2}, 3 / 8),
}


@pytest.mark.parametrize("count", sample([4], [*WORDS]))
def test_ranks_send_the_words_of_the_best_grid(connected: Connected, count: int) -> None:
    """Without a hint, from operands stored in the layout that the plan likes."""
    n = 16
    a, b, words = WORDS[count]
    con = connected(count)
    con.execute("SET cost = 'floats'")
    for name, cut in (("a", a), ("b", b)):
        parts = ", ".join(f"{key} {number}" for key, number in cut.items())
        store(con, name, dict.fromkeys(cut, n), f"PARTITION BY ({parts})")
    sql = MATMUL.format(hint="")
    ran = explained(con, sql, "ANALYZE, ")
    assert [s["bytes_sent"] for s in ran["per_site"]] == [words * n * n * 4] * count
    assert [s["bytes_received"] for s in ran["per_site"]] == [words * n * n * 4] * count
    assert len({s["flops"] for s in ran["per_site"]}) == 1
    # Who created the result on the ranks has it there in equal shares.
    con.execute(f"CREATE TENSOR c AS {sql}")
    assert con.execute("DESCRIBE c").fetchall()[-1][-1].count("Shard") == count.bit_length() - 1


@pytest.mark.parametrize("kind", ["HALF", "BFLOAT16"])
def test_ranks_send_two_bytes_an_element(connected: Connected, kind: str) -> None:
    n, con = 16, connected(2)
    a, b = (np.random.default_rng(seed).integers(-8, 8, (n, n)) / 2 for seed in (0, 1))
    for name, array, first, second in (("a", a, "i", "j"), ("b", b, "j", "k")):
        con.register("given", array, (first, second))
        con.execute(
            f"CREATE OR REPLACE TENSOR {name} PARTITION BY ({first} 2) AS "
            f"SELECT {first}, {second}, CAST(val AS {kind}) AS val FROM given"
        )
    sql = MATMUL.format(hint="/*+ PARTITION(i=2) */ ")
    planned, ran = explained(con, sql), explained(con, sql, "ANALYZE, ")
    sent = [s["bytes_sent"] for s in ran["per_site"]]
    assert sent == [s["bytes_sent"] for s in planned["per_site"]] == [n * n // 2 * 2] * 2
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), a @ b)
    np.testing.assert_array_equal(con.execute("SELECT j, k, val FROM b").fetch_numpy(), b)
