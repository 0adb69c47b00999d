"""Sparse tensors on ranks: the session keeps them, ranks keep tiles of stored elements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import einsql
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.messages import Kept, Mapped, Run, Sent
from einsql.engine.ranks.tile_store import nbytes
from einsql.storage.database.stored import StoredFields
from einsql.storage.database.tiles import tile_grid
from einsql.storage.objects import Tensor
from tests.engine.ranks.conftest import Connected
from tests.session import test_sparse_tensors as small

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

ROWS = 200_000
"""Rows and columns of matrices whose dense form, 360 GB, no machine of the tests has."""

STORED = 3000
PRODUCT = "SELECT a.i, b.j, SUM(a.val * b.val) AS val FROM a JOIN b ON a.j = b.i GROUP BY a.i, b.j"
ROW_SUMS = "SELECT a.i, SUM(a.val * x.val) AS val FROM a JOIN x ON a.j = x.i GROUP BY a.i"


def random_matrix(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    at = rng.integers(0, ROWS, (2, STORED))
    values = rng.integers(1, 9, STORED).astype(np.float64)  # sums are exact in any order
    return sparse.csr_array(sparse.coo_array((values, (at[0], at[1])), shape=(ROWS, ROWS)))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sources of tiles in all runs."""
    found: list[Any] = []
    real, start = Cluster.call, Cluster.start

    def note(commands: Mapping[int, Any]) -> None:
        runs = (c for c in commands.values() if isinstance(c, Run))
        found.extend(source for run in runs for source in run.loads.values())

    def call(self: Cluster, commands: Mapping[int, Any], *rest: Any, **named: Any) -> list[Any]:
        note(commands)
        return real(self, commands, *rest, **named)

    def started(self: Cluster, commands: Mapping[int, Any], *rest: Any) -> None:
        note(commands)
        start(self, commands, *rest)

    monkeypatch.setattr(Cluster, "call", call)
    monkeypatch.setattr(Cluster, "start", started)
    return found


def is_sparse(con: einsql.Connection, name: str) -> bool:
    found = con.store.get(name)
    assert isinstance(found, Tensor)
    return found.relation.fields.is_sparse


@pytest.mark.parametrize("cost", ["floats", "seconds"])
def test_products_send_and_keep_stored_elements(
    connected: Connected, loads: list[Any], cost: str
) -> None:
    con, a, b = connected(2), random_matrix(1), random_matrix(2)
    con.register("given_a", a, dims=("i", "j"))
    con.register("b", b, dims=("i", "j"))
    con.register("x", np.arange(1.0, ROWS + 1), dims=("i",))
    con.execute(f"SET cost = '{cost}'; CREATE TENSOR a AS SELECT i, j, val FROM given_a")
    loads.clear()
    for _ in range(3):
        assert (con.execute(PRODUCT).fetch_scipy("csr") != a @ b).nnz == 0
    sent = [s for s in loads if isinstance(s, Sent)]
    assert sum(nbytes(s.tiles) for s in sent) < 100 * STORED * 4 + 16 * ROWS * 4
    loads.clear()
    for _ in range(2):
        result = con.execute(ROW_SUMS).fetchall()
        assert dict(result) == {
            i: v for i, v in enumerate((a @ np.arange(1.0, ROWS + 1)).tolist()) if v
        }
    assert any(isinstance(s, Kept) for s in loads)
    assert is_sparse(con, "a")


def test_a_commit_writes_what_ranks_have_read_sparsely(
    tmp_path: Path, connected: Connected
) -> None:
    path, a = tmp_path / "m.db", random_matrix(3)
    with einsql.connect(str(path)) as con:
        con.register("given", a, dims=("i", "j"))
        con.execute("CREATE TENSOR a AS SELECT i, j, val FROM given")
        before = con.execute("SHOW TENSORS").fetchall()
    size = sum(f.stat().st_size for f in path.parent.rglob("*") if f.is_file())
    cluster = connected(2).context.cluster
    con = einsql.connect(str(path), config={"mpi": cluster, "cost": "floats"})
    con.execute("SELECT i, SUM(val) AS val FROM a GROUP BY i").fetchall()
    con.execute(
        "CREATE TENSOR b AS SELECT a.i, a.j, a.val + c.val AS val FROM a JOIN a AS c USING (i, j)"
    )
    con.execute("INSERT INTO a VALUES (7, 7, 0.5)")
    con.commit()
    assert is_sparse(con, "a")
    assert is_sparse(con, "b")
    con.context.cluster = None
    con.close()
    with einsql.connect(str(path)) as con:
        assert con.execute("SHOW TENSORS").fetchall()[0][:3] == before[0][:3]
        stored = con.execute("SELECT i, j, val FROM b").fetch_scipy("csr")
        assert (stored != 2 * a).nnz == 0
        assert con.execute("SELECT val FROM a WHERE i = 7 AND j = 7").fetchall() == [(0.5,)]
        assert is_sparse(con, "a")
    now = sum(f.stat().st_size for f in path.parent.rglob("*") if f.is_file())
    assert now < 4 * size


def test_ranks_answer_and_change_like_one_site(connected: Connected) -> None:
    duck, con = small.connected(small.rows(), None), connected(2)
    con.execute("SET cost = 'floats'")
    con.register("given", small_matrix(), dims=("i", "j"))
    for name in ("d", "e"):
        con.register(
            name,
            np.array(duck.execute(f"SELECT val FROM {name}").fetchall())[:, 0],
            dims=("j" if name == "d" else "i",),
        )
    con.execute("CREATE TABLE names AS SELECT i AS id, 'n' || i AS name FROM range(13) AS r(i)")
    con.execute(
        "CREATE TENSOR t (i DIM(13), j DIM(17), val DOUBLE) STORAGE SPARSE AS SELECT * FROM given"
    )
    for sql in small.STATEMENTS[::2]:
        assert small.answer(con, sql) == small.answer(duck, sql)
    for sql in (small.CHANGES[0], small.CHANGES[3], small.CHANGES[6]):
        con.execute(sql)
        duck.execute(sql)
        assert small.answer(con, "SELECT * FROM t") == small.answer(duck, "FROM t")
        assert is_sparse(con, "t")
    duck.close()


def small_matrix() -> Any:
    i, j, values = (np.array(column) for column in zip(*small.rows(), strict=True))
    return sparse.coo_array((values, (i, j)), shape=(small.ROWS, small.COLUMNS))


@pytest.fixture
def stored_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a dense tensor, some of whose tiles are newer, and a sparse one likewise."""
    path = str(tmp_path / "m.db")
    with einsql.connect(path) as con:
        con.register("given", np.arange(600_000.0).reshape(1000, 600), dims=("i", "j"))
        con.execute("CREATE TENSOR w AS SELECT i, j, val FROM given")
        con.register("few", random_matrix(4), dims=("i", "j"))
        con.execute("CREATE TENSOR s AS SELECT i, j, val FROM few")
    with einsql.connect(path) as con:
        con.execute("UPDATE w SET val = -1 WHERE i = 900 AND j < 5")
        monkeypatch.setattr(tile_grid, "TILE", 100_000)
        con.execute("UPDATE s SET val = 100 WHERE i >= 99000 AND i < 101000")
        monkeypatch.undo()
    assert len(list(Path(f"{path}.tensors").glob("s.*"))) == 2
    return path


SUMS = "SELECT i, SUM(val) AS val FROM w GROUP BY i"


def test_ranks_map_the_files_of_stored_tensors(
    stored_file: str, connected: Connected, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = connected(2).context.cluster
    con = einsql.connect(stored_file, config={"mpi": cluster, "cost": "floats"})
    monkeypatch.setattr(StoredFields, "__getitem__", refused)
    wanted = np.arange(600_000.0).reshape(1000, 600)
    wanted[900, :5] = -1
    for _ in range(2):
        assert np.array_equal(con.execute(SUMS).fetch_numpy(), wanted.sum(axis=1))
    mapped = [s for s in loads if isinstance(s, Mapped)]
    assert len(mapped) == 2  # one for each rank, which keeps its tiles
    boxes = [box for source in mapped for box in source.boxes.values()]
    assert sum(int(np.prod(box[:, 1] - box[:, 0])) for box in boxes) == wanted.size
    assert any(isinstance(s, Kept) for s in loads)
    found = con.execute("SELECT i, SUM(val) AS val FROM s GROUP BY i").fetchall()
    few = random_matrix(4)
    few.data[few.indptr[99_000] : few.indptr[101_000]] = 100
    assert [v for _, v in found] == [v for v in (few @ np.ones(ROWS)).tolist() if v]
    con.context.cluster = None
    con.close()


def refused(*_: object) -> np.ndarray:
    raise AssertionError("the session has read a tensor that ranks read")


def test_tiles_come_from_the_session_if_ranks_lack_the_files(
    stored_file: str, connected: Connected, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = connected(2).context.cluster
    con = einsql.connect(stored_file, config={"mpi": cluster, "cost": "floats"})
    monkeypatch.setattr(StoredFields, "directory", "/nowhere")
    assert con.execute(SUMS).fetch_numpy().shape == (1000,)
    assert any(isinstance(s, Sent) for s in loads)
    assert any(isinstance(s, Mapped) for s in loads)
    assert cluster is not None
    cluster.kept_tiles = None
    con.context.cluster = None
    con.close()


def test_a_change_is_seen_by_ranks_and_writes_few_tiles(
    stored_file: str, connected: Connected
) -> None:
    cluster = connected(2).context.cluster
    con = einsql.connect(stored_file, config={"mpi": cluster, "cost": "floats"})
    before = con.execute(SUMS).fetch_numpy()
    con.execute("UPDATE w SET val = 7 WHERE i = 3 AND j = 4")
    after = con.execute(SUMS).fetch_numpy()
    assert after[3] == before[3] + 7 - (3 * 600 + 4)
    con.commit()
    assert con.execute(SUMS).fetch_numpy()[3] == after[3]
    con.context.cluster = None
    con.close()
    with einsql.connect(stored_file) as con:
        assert np.array_equal(con.execute(SUMS).fetch_numpy(), after)
