"""Data where it is used: ranks read and write files, change tensors, and are asked for parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.messages import Count, Fetch, Run
from einsql.engine.ranks.tile_store import compact
from einsql.storage import files
from einsql.storage.fields import PlacedFields
from einsql.storage.objects import Tensor
from einsql.storage.results.result import PIECE
from tests.engine.ranks.conftest import Connected
from tests.support.oracle.ranks import measured

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

RNG = np.random.default_rng(5)
W = RNG.integers(-9, 9, (12, 10)).astype(np.float32)


class Watch:
    """Every command that ranks were told, with their answers."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any]] = []
        self.before: Callable[[list[Any]], object] = lambda commands: None

    def of(self, kind: type) -> list[tuple[Any, Any]]:
        """Commands of a kind with their answers."""
        return [(c, a) for c, a in self.seen if isinstance(c, kind)]

    @property
    def fetched(self) -> int:
        """Bytes that came to this process."""
        return sum(array.nbytes for _, arrays in self.of(Fetch) for array in arrays)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    found, real = Watch(), Cluster.call

    def call(self: Cluster, commands: Mapping[int, Any], *rest: Any, **named: Any) -> list[Any]:
        commands = {rank: measured(c) for rank, c in commands.items()}
        found.before(list(commands.values()))
        answers = real(self, commands, *rest, **named)
        found.seen += zip(commands.values(), answers, strict=True)
        return answers

    monkeypatch.setattr(Cluster, "call", call)
    return found


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process cannot read any elements of files; ranks, which are others, can."""

    def refuse(*_: object) -> np.ndarray:
        raise AssertionError("elements were read where nobody needs them")

    monkeypatch.setattr(files.FileTensor, "read", refuse)
    monkeypatch.setattr(files.FileTensor, "array", property(refuse))


def lies_at_ranks(con: einsql.Connection, name: str) -> bool:
    found = con.store.get(name)
    assert isinstance(found, Tensor)
    return isinstance(found.relation.fields, PlacedFields)


def stored(con: einsql.Connection, name: str, array: np.ndarray, cut: str = "") -> None:
    con.register("given", array, dims=("i", "j"))
    con.execute(f"CREATE OR REPLACE TENSOR {name}{cut} AS SELECT i, j, val FROM given")
    con.unregister("given")


@pytest.mark.parametrize("suffix", ["npy", "safetensors", "arrow"])
def test_each_rank_reads_only_its_tiles(
    connected: Connected, watch: Watch, unread: None, tmp_path: Path, suffix: str
) -> None:
    path, con = tmp_path / f"w.{suffix}", connected(3)
    files.write(str(path), W, "w")
    for _ in range(2):  # the second time with the plan of the first
        watch.seen.clear()
        sql = f"SELECT d0, SUM(val) AS val FROM '{path}' GROUP BY d0"
        assert (con.execute(sql).fetch_numpy() == W.sum(axis=1)).all()
        assert [measure.read for _, measure in watch.of(Run)] == [W.nbytes // 3] * 3
    watch.seen.clear()
    con.execute(f"SELECT SUM(val * val) FROM read_tensor('{path}') WHERE d0 < 6")
    assert sum(measure.read for _, measure in watch.of(Run)) == W.nbytes // 2


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"\x93NUMPY")])
def test_a_file_that_changes_meanwhile_is_refused_and_the_session_goes_on(
    connected: Connected, watch: Watch, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path, con = tmp_path / "w.npy", connected(2)
    np.save(path, W)
    watch.before = lambda commands: change(path) if isinstance(commands[0], Run) else None
    with pytest.raises(einsql.OperationalError, match=r"w\.npy'"):
        con.execute(f"SELECT SUM(val) FROM '{path}'")
    watch.before = lambda commands: None
    np.save(path, W)
    assert con.execute(f"SELECT SUM(val) FROM '{path}'").fetchone() == (W.sum(),)


@pytest.mark.parametrize("cut", ["", " PARTITION BY (j 2)", " PARTITION BY ()"])
def test_copy_leaves_elements_with_the_ranks(
    connected: Connected, watch: Watch, unread: None, tmp_path: Path, cut: str
) -> None:
    con = connected(2)
    files.write(str(tmp_path / "w.safetensors"), W, "w")
    con.execute(f"CREATE TENSOR w (i DIM(12), j DIM(10), val FLOAT){cut}")
    assert con.execute(f"COPY w FROM '{tmp_path}/w.safetensors'").rowcount == 120
    assert lies_at_ranks(con, "w")
    placement = con.execute("DESCRIBE w").fetchall()[-1][-1]
    assert (
        placement
        == {
            "": "DeviceMesh(r0=2) [Shard(i)]",
            " PARTITION BY (j 2)": "DeviceMesh(r0=2) [Shard(j)]",
            " PARTITION BY ()": "DeviceMesh(r0=2) [Replicate]",
        }[cut]
    )
    con.execute(f"COPY w TO '{tmp_path}/same.npy'")
    con.execute(f"COPY (SELECT j, i, -val AS val FROM w) TO '{tmp_path}/turned.arrow'")
    con.execute(f"COPY (SELECT SUM(val) AS val FROM w) TO '{tmp_path}/one.npy'")
    assert not watch.of(Fetch)
    assert (np.load(tmp_path / "same.npy") == W).all()
    assert np.load(tmp_path / "one.npy") == W.sum()
    con.execute(f"COPY (SELECT d0, d1, val FROM '{tmp_path}/turned.arrow') TO '{tmp_path}/t.npy'")
    assert (np.load(tmp_path / "t.npy") == -W.T).all()
    assert (con.execute("SELECT i, j, val FROM w").fetch_numpy() == W).all()


def test_a_file_is_written_whole_or_not_at_all(
    connected: Connected, watch: Watch, tmp_path: Path
) -> None:
    con, path = connected(2), tmp_path / "w.npy"
    stored(con, "w", W)
    path.write_bytes(b"old")
    with pytest.raises(einsql.DataError, match="absent"):
        con.execute(f"COPY (SELECT i, j, val FROM w WHERE val > 0) TO '{path}'")
    watch.before = lambda commands: tuple(map(Path.unlink, tmp_path.glob("*.part*")))
    with pytest.raises(einsql.OperationalError, match="cannot be written"):
        con.execute(f"COPY w TO '{path}'")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("w.npy", b"old")]


def test_rows_that_may_be_absent_stay_at_the_ranks(connected: Connected, watch: Watch) -> None:
    con = connected(3)
    stored(con, "w", W)
    some = con.execute("CREATE TENSOR s AS SELECT i, j, val AS v FROM w WHERE val > 0")
    assert some.rowcount == (W > 0).sum()
    every = con.execute("CREATE TENSOR e AS SELECT i, j, val + 1 AS v FROM w WHERE val < 100")
    assert every.rowcount == W.size
    assert con.execute("SELECT i, v FROM s WHERE j = 0").rowcount == (W[:, 0] > 0).sum()
    with pytest.raises(einsql.DataError, match=f"{int((W == 1).sum())} values of v are NULL"):
        con.execute("CREATE TENSOR n AS SELECT i, j, NULLIF(val, 1) AS v FROM w")
    assert watch.of(Count)
    assert not watch.of(Fetch)
    assert lies_at_ranks(con, "s")
    assert lies_at_ranks(con, "e")
    found = con.store.get("e")
    assert isinstance(found, Tensor)
    assert not found.relation.schema.has(".present")
    rows = con.execute("SELECT i, j, v FROM s").fetchall()
    assert rows == [(i, j, W[i, j]) for i, j in zip(*np.nonzero(W > 0), strict=True)]


def test_a_training_step_keeps_the_weights_where_they_are(
    connected: Connected, watch: Watch
) -> None:
    con, array = connected(2), W.copy()
    stored(con, "w", W)
    con.execute("CREATE TENSOR g AS SELECT i, j, val * 2 AS val FROM w WHERE i >= 0")
    for _ in range(3):
        con.execute("UPDATE w SET val = w.val - 0.5 * g.val FROM g WHERE w.i = g.i AND w.j = g.j")
        array = array - np.float32(0.5) * (W * 2)
    assert not watch.of(Fetch)
    assert lies_at_ranks(con, "w")
    assert (con.execute("SELECT i, j, val FROM w").fetch_numpy() == array).all()


CHANGES = [
    "UPDATE w SET val = val + 1 WHERE val > 2",
    "DELETE FROM w WHERE val < -3",
    "UPDATE w SET val = 7 WHERE val = 0",
    "UPDATE w SET val = val + i WHERE i BETWEEN 2 AND 4 AND j > 3",
    "DELETE FROM w WHERE i = 5",
    "INSERT OR REPLACE INTO w SELECT i, j, val * 3 AS val FROM v WHERE val > 4",
    "UPDATE w SET val = v.val FROM v WHERE w.i = v.i AND w.j = v.j AND v.val < 0",
    "DELETE FROM w",
    "INSERT INTO w SELECT i, j, val FROM v",
    "UPDATE w SET val = -val",
]


def test_changes_at_the_ranks_are_those_of_one_process(connected: Connected, watch: Watch) -> None:
    here, there = einsql.connect(), connected(3)
    for con in (here, there):
        stored(con, "v", W[::-1] * 2)
        stored(con, "w", W, " PARTITION BY (j 3)")
    for sql in CHANGES:
        assert there.execute(sql).rowcount == here.execute(sql).rowcount
        assert not watch.of(Fetch), sql
        both = [con.execute("SELECT i, j, val FROM w").fetchall() for con in (here, there)]
        assert both[0] == both[1], sql
        watch.seen.clear()
        assert there.execute("DESCRIBE w").fetchall()[-1][-1] == "DeviceMesh(r0=3) [Shard(j)]"


def test_only_the_rows_that_are_asked_for_are_fetched(connected: Connected, watch: Watch) -> None:
    con = connected(2)
    big = np.arange(3 * 2**20, dtype=np.float64).reshape(2**20, 3)
    con.register("given", big, dims=("i", "j"))
    con.execute("CREATE TENSOR b AS SELECT i, j, val + 1 AS val FROM given")
    rows = con.execute("SELECT i, j, val FROM b")
    assert rows.rowcount == big.size
    assert rows.fetchmany(2) == [(0, 0, 1.0), (0, 1, 2.0)]
    assert 0 < watch.fetched <= PIECE
    watch.seen.clear()
    found = con.execute("SELECT i, j, val FROM b").fetch_numpy()
    assert (found == big + 1).all()
    assert watch.fetched == big.nbytes
    arrays = [array for _, answer in watch.of(Fetch) for array in answer]
    assert all(np.shares_memory(array, found) for array in arrays)  # received where they belong
    watch.seen.clear()
    table = con.execute("SELECT j, i, val FROM b WHERE i > 0 AND val > 9").fetch_arrow_table()
    assert table["val"].to_numpy().sum() == (big[3:] + 1).sum()
    assert max(sum(a.nbytes for a in answer) for _, answer in watch.of(Fetch)) <= PIECE


def resident(con: einsql.Connection) -> int:
    """Bytes of memory that the ranks have."""
    assert con.cluster is not None
    job = con.cluster._job
    assert job is not None
    pids = [process.started.pid for process in job.ranks]
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * 4096


def test_ranks_use_again_what_nobody_needs(connected: Connected) -> None:
    con, mega = connected(2), 2**20
    big = f"SELECT i, i::DOUBLE AS x FROM range({8 * mega}) AS t(i)"
    small = "SELECT SUM(g) FROM range(10) AS t(g)"
    most = []
    for _ in range(4):
        cursor = con.execute(big)
        con.execute(f"CREATE TENSOR t AS {big}")
        most.append(resident(con))
        cursor.close()
        con.execute("DROP TENSOR t")
        con.execute(small)  # nobody is told of it until there is something to tell
    assert max(most) - most[0] < 30 * mega  # a round makes 128 of them


def test_a_small_part_does_not_keep_a_large_array() -> None:
    large, flag = np.zeros((8, 8)), np.broadcast_to(np.array(True), (8, 8))
    kept = compact({0: {"part": large[:2], "most": large[1:], "same": flag}})[0]
    assert kept["part"].base is None
    assert kept["part"].shape == (2, 8)
    assert kept["most"].base is large
    assert kept["same"].base is flag.base


def test_rows_and_archives_of_what_lies_at_ranks(connected: Connected, tmp_path: Path) -> None:
    con = connected(2)
    stored(con, "w", W)
    con.execute("CREATE TENSOR s AS SELECT i, j, val FROM w WHERE val > 0")
    for suffix in ("csv", "parquet", "mtx"):
        con.execute(f"COPY s TO '{tmp_path}/s.{suffix}'")
        con.execute("CREATE OR REPLACE TENSOR r (i DIM(12), j DIM(10), val FLOAT)")
        assert con.execute(f"COPY r FROM '{tmp_path}/s.{suffix}'").rowcount == (W > 0).sum()
        rows = "SELECT i, j, val FROM {}"
        assert con.execute(rows.format("r")).fetchall() == con.execute(rows.format("s")).fetchall()
    for suffix in ("npz", "zarr"):
        con.execute(f"COPY (SELECT j, i, val, -val AS m FROM w) TO '{tmp_path}/w.{suffix}'")
        read = f"SELECT SUM(val) AS s FROM read_tensor('{tmp_path}/w.{suffix}', 'm')"
        assert con.execute(read).fetchall() == [(-W.sum(),)]
        con.execute("CREATE OR REPLACE TENSOR t (j DIM(10), i DIM(12), val FLOAT)")
        con.execute(f"COPY t FROM '{tmp_path}/w.{suffix}' (TENSOR 'm')")
        assert (con.execute("SELECT * FROM t").fetch_numpy() == -W.T).all()


def test_checks_of_placed_tensors(connected: Connected, tmp_path: Path) -> None:
    con = connected(2)
    right = RNG.integers(-5, 30, (8, 6)).astype(np.int32)
    wrong = right.copy()
    wrong[5, 3] = 30
    con.register("emb", W[:10].repeat(4, axis=0)[:35], dims=("v", "d"))
    query = "SELECT x.i, x.j, e.d, e.val FROM x JOIN emb e ON e.v = x.val + 5"
    for name, array in (("wrong", wrong), ("right", right)):
        np.save(tmp_path / f"{name}.npy", array)
        con.register(name, array, dims=("i", "j"))
    con.execute("CREATE TENSOR x (i DIM(8), j DIM(6), val INTEGER CHECK (val BETWEEN -5 AND 29)) "
                "PARTITION BY (i 2)")  # fmt: skip
    con.execute(f"COPY x FROM '{tmp_path / 'right.npy'}'")
    stored = con.store.get("x")
    assert isinstance(stored, Tensor)
    assert isinstance(stored.relation.fields, PlacedFields)
    assert "present" not in str(con.explain(query))
    rows = con.execute(query).fetch_numpy()
    np.testing.assert_array_equal(rows, W[:10].repeat(4, axis=0)[right + 5])
    for statement, reason in (
        ("UPDATE x SET val = val + 1 WHERE val < 99", "violates CHECK"),
        ("UPDATE x SET val = w.val FROM wrong w WHERE w.i = x.i AND w.j = x.j", "i = 5, j = 3"),
        ("INSERT OR REPLACE INTO x SELECT i, j, val FROM wrong", "i = 5, j = 3"),
        ("INSERT OR REPLACE INTO x VALUES (0, 0, -6)", "val = -6"),
    ):
        with pytest.raises(einsql.IntegrityError, match=reason):
            con.execute(statement)
        np.testing.assert_array_equal(con.execute("SELECT i, j, val FROM x").fetch_numpy(), right)
    con.execute("CREATE OR REPLACE TENSOR x (i DIM(8), j DIM(6), val INTEGER CHECK (val < 30))")
    with pytest.raises(einsql.IntegrityError, match="i = 5, j = 3"):
        con.execute(f"COPY x FROM '{tmp_path / 'wrong.npy'}'")
    con.execute("DROP TENSOR x")
