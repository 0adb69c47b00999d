"""Every way to ranks: the console starts them, mpiexec does, a script is one of them."""

import gc
import os
import signal
import subprocess
import sys
import time
from importlib import util
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.engine.ranks import job
from einsql.engine.ranks.program import RankFields
from einsql.session.statements import calibrate
from tests.engine.ranks.processes import descendants
from tests.support.terminal import Terminal

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
EINSQL = [sys.executable, "-m", "einsql", "-csv"]

SCRIPT = """\
CREATE TENSOR a AS SELECT r.i, s.j, (r.i * 7 + s.j) % 5 AS val FROM range(40) r(i), range(30) s(j);
SELECT SUM(val) AS total FROM a;
SET sites = 5;
SELECT SUM(val) AS again FROM a WHERE i > 20;
SELECT nothing FROM a;
"""
VALUES = (np.arange(40)[:, None] * 7 + np.arange(30)) % 5
ANSWERS = f"total\n{VALUES.sum()}\nagain\n{VALUES[21:].sum()}\n"


def launched(*program: str, ranks: int = 2, stdin: str = "") -> tuple[int, str, str]:
    """Status, output and errors of a program under mpiexec and mpi4py."""
    command = [*job.launcher_of(None, ranks), sys.executable, "-m", "mpi4py", *program]
    return ran(*command, stdin=stdin)


def ran(*command: str, stdin: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )
    return done.returncode, done.stdout, done.stderr


def test_the_console_starts_ranks() -> None:
    status, out, err = ran(*EINSQL, "--mpi", "3", stdin=SCRIPT + "SHOW SETTINGS;\n")
    assert status == 1
    assert out.startswith(ANSWERS)
    assert "\nmpi,3\n" in out
    assert "LINE 5: SELECT nothing FROM a;\n               ^\n" in err
    assert (
        "\nsites,8\n" in ran(*EINSQL, "--mpi", "2", "--set", "sites=8", stdin="SHOW SETTINGS;")[1]
    )


def test_what_does_not_start_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path / "alone.py"  # a launcher of another MPI starts processes that are alone
    alone.write_text(
        "import subprocess, sys\n"
        "for p in [subprocess.Popen(sys.argv[2:]) for _ in range(int(sys.argv[1]))]: p.wait()\n"
    )
    for config, reason in (
        ({"mpi": 2, "mpiexec": "/no/such/launcher"}, "command /no/such/launcher"),
        ({"mpi": 2, "mpiexec": "sh -c 'echo broken; exit 3' {n}"}, "0 of 2 .* broken"),
        ({"mpi": 2, "mpiexec": f"{sys.executable} {alone} {{n}}"}, "rank 0 of 1"),
        ({"mpi": 2, "mpi_host": "192.0.2.1"}, "cannot reach this process at 192.0.2.1"),
    ):
        with pytest.raises(einsql.OperationalError, match=reason):
            einsql.connect(config=config)
    for wrong in ({"mpi": 0}, {"mpi": True}, {"mpiexec": "mpiexec"}, {"mpi": 2, "mpiexec": "'"}):
        with pytest.raises(einsql.ProgrammingError):
            einsql.connect(config=wrong)
    with pytest.raises(einsql.ProgrammingError, match="when a session begins"):
        einsql.connect().execute("SET mpi = 2")
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda n: None if n == "mpi4py" else found(n))
    with pytest.raises(einsql.OperationalError, match=r"einsql\[mpi\]"):
        einsql.connect(config={"mpi": 2})


def test_ranks_elsewhere_report_over_the_network_and_serve_several_connections() -> None:
    launcher = " ".join(job.launcher_of(None, 2)[:-1])
    config = {"mpi": 2, "mpiexec": launcher + " {n}", "mpi_host": "127.0.0.1"}
    first = einsql.connect(config=config)
    second = einsql.connect(config={"mpi": first.cluster})
    first.close()
    values = np.arange(12.0).reshape(3, 4)
    second.register("v", values, dims=("i", "j"))
    assert second.execute("SELECT j, SUM(val) AS val FROM v GROUP BY j").fetch_numpy().tolist() == [
        *values.sum(axis=0)
    ]
    assert second.settings.sites == 2
    second.close()


def test_the_console_under_mpiexec_speaks_once_and_its_status_is_the_jobs() -> None:
    console = ("-m", "einsql", "-csv")
    status, out, err = launched(*console, ranks=3, stdin=SCRIPT)
    assert (status, out) == (1, ANSWERS)
    assert "LINE 5" in err
    assert "Abort" not in err
    network = ("--set", "mpi_host=127.0.0.1")
    quits = launched(*console, *network, "-c", "SELECT SUM(r.i) AS s FROM range(9) r(i)\n",
                     "-c", ".quit 7")  # fmt: skip
    assert quits == (7, "s\n36\n", "")
    status, out, err = launched(*console, "--nonsense")
    assert (status, out, err.count("unrecognized")) == (2, "", 1)


def test_a_script_under_mpiexec_is_run_by_rank_0_once_it_connects(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import einsql, numpy as np
con = einsql.connect(config={"mpi": "world"})
print(con.execute("SELECT SUM(r.i) AS s FROM range(9) AS r(i)").fetchall(), con.settings.sites)
con.close()
try:
    einsql.connect(config={"mpi": "world"})
except einsql.InterfaceError as error:
    print("no more")
""")
    assert launched(str(script)) == (0, "[(36,)] 2\nno more\n", "")
    script.write_text(script.read_text() + "raise ValueError('the end')")
    status, _, err = launched(str(script))
    assert status != 0
    assert "ValueError: the end" in err


def test_ranks_are_calibrated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, less in (("BUDGET", 0.0), ("LARGE", 512), ("MATRIX", 128)):
        monkeypatch.setattr(calibrate, name, less)  # what ranks reach does not matter
    with einsql.connect(config={"mpi": 2}) as con:
        gc.collect()
        gc.disable()
        try:
            rates = {name: value for name, value, _ in con.execute("CALIBRATE").fetchall()}
            assert not any(isinstance(o, RankFields) for o in gc.get_objects())
        finally:
            gc.enable()
        assert min(rates.values()) > 0
        assert con.settings.machine.latency == rates["latency"]


def test_control_c_stops_the_ranks_work_and_a_second_one_ends_them(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "-m", "einsql", "--mpi", "2")
    try:
        assert "In memory, on 2 MPI ranks. " in terminal.wait_for("einsql>")
        family = descendants(terminal.process.pid)
        slow = "SELECT MAX(SIN(a.i * b.j)) AS m FROM range(200000) a(i), range(200000) b(j);"
        terminal.send(f"{slow}\r")
        terminal.wait_for("░")  # progress is shown
        terminal.send("\x03")
        terminal.wait_for("Interrupted")
        terminal.wait_for("einsql>")
        terminal.send(".open\r")
        terminal.wait_for("einsql>")
        terminal.send("SELECT 40 + COUNT(*) AS n FROM range(2) AS r(i);\r")
        terminal.wait_for("│    42 │")
        terminal.wait_for("einsql>")
        assert descendants(terminal.process.pid) == family
        terminal.send(f"{slow}\r")
        terminal.wait_for("░")
        os.kill(family[-1], signal.SIGSTOP)  # so that it does not hear of the first one
        terminal.send("\x03")
        time.sleep(0.3)  # two signals at once would be one
        terminal.send("\x03")
        assert terminal.process.wait(30) == 130
        deadline = time.monotonic() + 10
        while alive := [pid for pid in family if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, alive
            time.sleep(0.05)
    finally:
        terminal.close()
