"""Open MPI with ULFM: when a rank is killed the others go on with the same statement.

Open MPI lives in an environment of its own; EINSQL_OPENMPI names its Python
(docs/how-to/mpi-failures.md says how to make one).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(os.environ.get("EINSQL_OPENMPI", sys.executable))

pytestmark = pytest.mark.skipif(
    not PYTHON.with_name("ompi_info").exists(),
    reason="needs Open MPI beside Python; EINSQL_OPENMPI names such a Python",
)

SESSION = """
import os, signal, sys, threading, time
import numpy as np
import einsql
from einsql.engine.ranks import leftovers
from tests.engine.ranks.processes import descendants, gone, ranks_of

MATMUL = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
moment, since = float(sys.argv[1]), time.time()
rng = np.random.default_rng(0)
a, b = (rng.integers(-9, 9, (600, 600)).astype(float) for _ in range(2))
ulfm = os.path.join(os.path.dirname(sys.executable), "mpiexec") + " --with-ft ulfm"
con = einsql.connect(config={"mpi": 4, "mpiexec": ulfm})
con.register("a", a, dims=("i", "j"))
con.register("b", b, dims=("j", "k"))
con.execute("CREATE TENSOR held (i DIM(40), val DOUBLE) DEFAULT 0.5")
assert con.execute("SELECT SUM(val) AS s FROM held").fetchone() == (20.0,)


def killed(rank, ranks, delay):
    threading.Timer(delay, os.kill, (ranks_of(os.getpid())[rank], signal.SIGKILL)).start()
    con.notices.clear()
    while con.cluster.ranks > ranks:
        cursor = con.execute(MATMUL)
        try:
            assert (cursor.fetch_numpy() == a @ b).all()
        except einsql.OperationalError as error:
            assert "The result was lost with rank" in str(error), error
    print(con.notices)
    assert con.cluster.ranks == con.settings.sites == ranks


con.execute("CREATE TENSOR everywhere PARTITION BY () AS SELECT i, j, val + 1 AS val FROM a")
con.execute("SELECT SUM(val) AS s FROM everywhere")  # from here on it is
con.execute(f"CREATE TENSOR spread AS {MATMUL}")
killed(1, 3, moment)
assert (con.execute("SELECT i, j, val FROM everywhere").fetch_numpy() == a + 1).all()
assert con.execute("SELECT SUM(val) AS s FROM held").fetchone() == (20.0,)
try:
    con.execute("SELECT SUM(val) AS s FROM spread")
    raise SystemExit("a tile of it is nowhere")
except einsql.OperationalError as error:
    assert '"spread" was lost with rank 1' in str(error), error
con.execute(f"CREATE OR REPLACE TENSOR spread AS {MATMUL}")
idle = ranks_of(os.getpid())[0]
os.kill(idle, signal.SIGKILL)
assert gone([idle])
killed(0, 1, moment)
assert con.execute("SELECT SUM(val) AS s FROM held").fetchone() == (20.0,)
pids = descendants(os.getpid())
os.kill(ranks_of(os.getpid())[0], signal.SIGKILL)  # the last one
try:
    con.execute(MATMUL)
    raise SystemExit("there is no rank")
except einsql.OperationalError as error:
    assert "all ranks were ended" in str(error), error
assert gone(pids)
assert (con.execute(MATMUL).fetch_numpy() == a @ b).all()
assert con.cluster.ranks == 4
pids = descendants(os.getpid())
con.close()
assert gone(pids)
assert leftovers.forsaken(since) == []
"""

ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@pytest.mark.parametrize("moment", [0.0, 0.3])
def test_the_ranks_that_are_left_repeat_the_statement(moment: float) -> None:
    here = Path(__file__).parents[3]
    environment = dict(os.environ, PYTHONPATH=str(here), **ROOT)
    done = subprocess.run(
        [str(PYTHON), "-c", SESSION, str(moment)],
        capture_output=True, text=True, cwd=here, env=environment, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "; 3 ranks continue" in done.stdout
