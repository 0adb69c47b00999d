"""Statements under a memory limit: the same answers, in the memory that they may take."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import einsql
from einsql.storage.array_ownership import owner
from einsql.storage.memory.spill_files import Space, is_mapped, sweep
from einsql.storage.memory.temp_directory import in_memory
from einsql.storage.objects import Tensor
from tests.support.oracle.campaign import campaign
from tests.support.samples import sample

LIMIT = 200_000
PRODUCT = "SELECT x.i, y.k, SUM(x.val * y.val) AS val FROM x JOIN y USING (j) GROUP BY x.i, y.k"

STATEMENTS = [
    PRODUCT,
    "SELECT x.i, y.k, MIN(x.val + y.val) AS val FROM x JOIN y USING (j) GROUP BY x.i, y.k",
    "SELECT j, i, EXP(-x.val) * 2 + i - j AS val FROM x",
    "SELECT i, j, EXP(val - MAX(val) OVER (PARTITION BY i)) AS e, "
    "val / SUM(ABS(val) + 1) OVER (PARTITION BY i) AS w FROM x",
    "SELECT SUM(a.val * b.val) AS s, COUNT(*) AS n, ARG_MAX(a.j, a.val * 100 + a.i) AS b "
    "FROM x a JOIN x b USING (i, j) WHERE a.val <> 1",
    "SELECT g.val, j, SUM(x.val) AS s, MAX(x.val) AS m FROM x JOIN g ON g.i = x.i "
    "GROUP BY g.val, j",
    "SELECT t.n, x.j, x.val FROM t JOIN x ON x.i = t.val",
    "SELECT m.i, y.k, SUM(m.val * y.val) AS val FROM m JOIN y USING (j) GROUP BY m.i, y.k",
    "SELECT i // 7 AS b, j, AVG(val) AS val FROM x GROUP BY i // 7, j",
    "SELECT a.i, SUM(a.val * b.val) AS s FROM x a JOIN x b ON b.i = a.i + 3 AND b.j = a.j "
    "WHERE a.val > -2 GROUP BY a.i",
    "SELECT i, MEDIAN(val) AS m, COUNT(DISTINCT val) AS n, LAST(val) AS l FROM x GROUP BY i",
    "SELECT g.val, j, MEDIAN(x.val) FILTER (WHERE x.val > 0) AS m, MODE(x.val) AS o "
    "FROM x JOIN g ON g.i = x.i GROUP BY g.val, j",
]
"""Products, other semirings, maps, softmax, sums of all, segments, gathers, sparse ones, shifts,
quantiles."""


def connection(dtype: type, **config: object) -> einsql.Connection:
    random = np.random.default_rng(3)
    con = einsql.connect(config=config)
    con.register("x", random.integers(-3, 4, (130, 90)).astype(dtype), dims=("i", "j"))
    con.register("y", random.integers(-3, 4, (90, 120)).astype(dtype), dims=("j", "k"))
    stored: np.ndarray = random.integers(-20, 3, (130, 90)).clip(0).astype(dtype)
    con.register("m", scipy.sparse.csr_array(stored), dims=("i", "j"))
    con.register("g", random.integers(0, 9, 130), dims=("i",))
    con.register("t", random.integers(0, 130, 500), dims=("n",))
    return con


@pytest.mark.parametrize(
    ("dtype", "jit"),
    sample(
        [(np.float32, "never"), (np.float64, "auto")],
        list(product([np.float32, np.float64], ["never", "auto"])),
    ),
)
def test_answers_do_not_depend_on_the_limit(dtype: type, jit: str, tmp_path: Path) -> None:
    whole = connection(dtype, jit=jit)
    few = connection(dtype, jit=jit, memory_limit=f"{LIMIT}B", temp_directory=str(tmp_path / "t"))
    for sql in STATEMENTS:
        names = [c[0] for c in few.execute(sql).description or ()]
        assert names
        mine, theirs = (np.array(c.execute(sql).fetchall(), float) for c in (few, whole))
        np.testing.assert_allclose(mine, theirs, rtol=4 * float(np.finfo(dtype).eps))
    assert max(boxes(few, sql) for sql in STATEMENTS) > 1
    few.close()
    del few
    gc.collect()
    assert not (tmp_path / "t").exists()


def boxes(con: einsql.Connection, sql: str) -> int:
    """In how many boxes the steps of a statement run at most."""
    nodes = con.explain(sql, analyze=True).to_dict()["nodes"]
    return max((n["measured"]["boxes"] for n in nodes if "measured" in n), default=1)


@pytest.mark.parametrize("seed", sample([401], [401, 403]))
def test_random_queries_in_many_boxes_agree_with_duckdb(seed: int) -> None:
    report = campaign(25, seed, settings={"jit": "never", "memory_limit": "24KB"}, repros=2)
    assert not report.findings, report.text()


def test_what_is_stored_beyond_the_limit_lies_in_files(tmp_path: Path) -> None:
    con = connection(np.float64, memory_limit=f"{LIMIT}B", temp_directory=str(tmp_path))
    expected = con.execute(PRODUCT).fetch_numpy().copy()
    con.execute(f"CREATE TENSOR z AS {PRODUCT}")
    con.execute("UPDATE z SET val = z.val + 1")
    stored = con.store.get("z")
    assert isinstance(stored, Tensor)
    assert is_mapped(owner(stored.relation.fields["val"]))
    assert con.memory.stored <= LIMIT // 2
    result = con.execute("SELECT * FROM z").fetch_numpy()
    con.close()
    del con, stored
    gc.collect()
    assert np.array_equal(result, expected + 1)  # its file lives as long as it does


def test_a_cap_and_a_missing_place_are_said_to_be_so(tmp_path: Path) -> None:
    con = connection(np.float64, memory_limit=f"{LIMIT}B", temp_directory=str(tmp_path / "t"))
    con.execute("SET max_temp_directory_size = '100KB'")
    with pytest.raises(einsql.OperationalError, match="max_temp_directory_size is 100,000 B"):
        con.execute(PRODUCT)
    con.execute("SET max_temp_directory_size = 'none'; SET temp_directory = ''")
    with pytest.raises(einsql.OperationalError, match="temp_directory names no directory"):
        con.execute(PRODUCT)
    (tmp_path / "file").touch()
    con.execute(f"SET temp_directory = '{tmp_path / 'file' / 'below'}'")
    with pytest.raises(einsql.OperationalError, match="No temporary file can be created"):
        con.execute(PRODUCT)
    assert con.memory.space.used == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]
    con.execute("SET enable_external_access = false")
    with pytest.raises(einsql.ProgrammingError, match="temp_directory stays"):
        con.execute("SET temp_directory = '/'")


def test_a_step_that_never_fits_says_what_it_needs() -> None:
    con = einsql.connect(config={"memory_limit": "1KB"})
    con.register("v", np.arange(4000.0)[::2], dims=("i",))
    con.register("t", np.arange(20), dims=("n",))
    with pytest.raises(einsql.OperationalError, match=r"a step takes .* of memory_limit"):
        con.execute("SELECT t.n, v.val * 2 AS val FROM t JOIN v ON v.i = t.val")


def test_cancelling_gives_the_files_back(tmp_path: Path) -> None:
    con = connection(np.float64, memory_limit=f"{LIMIT}B", temp_directory=str(tmp_path / "t"))
    seen: list[int] = []

    def stop(fraction: float) -> None:
        if con.memory.space.used:
            seen.append(con.memory.space.used)
            con.interrupt()

    con.progress = stop
    with pytest.raises(einsql.InterruptedError):
        con.execute(PRODUCT)
    assert seen
    gc.collect()
    assert con.memory.space.used == 0
    assert not (tmp_path / "t").exists()


SETTINGS = [("'4GB'", 4 * 10**9), ("'512MiB'", 2**29), ("'none'", None)]


@pytest.mark.parametrize(("text", "limit"), SETTINGS)
def test_limits_are_written_as_duckdb_writes_them(text: str, limit: int | None) -> None:
    con = einsql.connect()
    assert con.settings.memory_limit
    whole = con.settings.memory_limit
    con.execute(f"SET memory_limit = {text}")
    assert con.settings.memory_limit == limit
    con.execute("SET memory_limit = '40%'")
    assert con.settings.memory_limit == pytest.approx(whole / 2, rel=1e-6)
    with pytest.raises(einsql.ProgrammingError, match="no part"):
        con.execute("SET memory_limit = '0%'")
    given = con.memory.lend(0.25)
    assert given == con.settings.memory_limit // 4


def test_files_without_a_name_are_all_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Space(lambda: str(tmp_path / "t"))
    kept = space.empty((300, 400), np.dtype(np.float32))
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    named = space.empty((10,), np.dtype(np.int64))
    named[:] = range(10)
    assert list((tmp_path / "t").iterdir()) == []
    assert named.sum() == 45
    assert kept.sum() == 0
    assert space.used == kept.nbytes + named.nbytes
    del kept, named
    assert space.used == 0
    assert not (tmp_path / "t").exists()


def test_what_a_killed_process_leaves_is_swept(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    directory = tmp_path / "a.db.tmp"
    directory.mkdir()
    (directory / f"einsql-{gone.stdout.strip()}-x.tmp").touch()
    running = directory / f"einsql-{os.getpid()}-x.tmp"
    running.touch()
    sweep(str(directory))
    assert list(directory.iterdir()) == [running]
    running.unlink()
    sweep(str(directory))
    assert not directory.exists()


KILLED = """
import einsql, numpy as np, os, signal, sys
con = einsql.connect(config={"memory_limit": "200KB", "temp_directory": sys.argv[1]})
con.register("x", np.ones((400, 400)), dims=("i", "j"))
def kill(fraction):
    if con.memory.space.used:
        os.kill(os.getpid(), signal.SIGKILL)
con.progress = kill
con.execute(
    "SELECT a.i, b.j, SUM(a.val * b.val) AS val FROM x a JOIN x b ON a.j = b.i GROUP BY a.i, b.j"
)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are killed otherwise here")
def test_nothing_is_left_of_a_killed_process(tmp_path: Path) -> None:
    directory = tmp_path / "a.db.tmp"
    run = subprocess.run([sys.executable, "-c", KILLED, str(directory)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert list(directory.iterdir()) == []
    sweep(str(directory))
    assert not directory.exists()


WITH_STATUS = pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="tells anonymous memory on Linux only"
)


@WITH_STATUS
@pytest.mark.parametrize("dtype", sample(["float32"], ["float32", "float64"]))
def test_a_chain_takes_less_anonymous_memory_than_its_limit(dtype: str, tmp_path: Path) -> None:
    side = 1300 if dtype == "float32" else 950
    chain(side, "10MB", dtype, tmp_path)


@WITH_STATUS
@pytest.mark.large
@pytest.mark.parametrize(("side", "dtype"), [(11_000, "float32"), (8_000, "float64")])
def test_a_chain_of_gigabytes(side: int, dtype: str, tmp_path: Path) -> None:
    chain(side, "840MB", dtype, tmp_path)


def chain(side: int, limit: str, dtype: str, directory: Path) -> None:
    """Runs a chain in a process of its own; it says itself whether it kept to the limit."""
    command = [sys.executable, "-m", "tests.storage.files.anonymous", str(side), limit, dtype]
    run = subprocess.run(
        [*command, str(directory)], capture_output=True, text=True, check=False, timeout=900
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no directory is in memory here")
def test_a_directory_in_memory_is_known_as_one() -> None:
    assert in_memory("/dev/shm/einsql/below")
    assert not in_memory("/proc")


def test_a_mapping_is_known_as_one() -> None:
    mapping = mmap.mmap(-1, 64)
    assert is_mapped(owner(np.frombuffer(mapping, np.uint8)[8:].view(np.int64)))
    assert not is_mapped(owner(np.zeros(8)[2:]))
