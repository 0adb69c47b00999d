import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import einsql
from einsql.frontends.console.main import main
from einsql.frontends.console.render import MODES

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process, in an empty home; gives status, output and errors."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


MAKE = "CREATE TENSOR t (i DIM(3), val FLOAT); INSERT INTO t VALUES (0, 0.1), (1, 2), (2, -3);"


def test_statements_scripts_and_commands_run_in_order(run: Run, tmp_path: Path) -> None:
    Path("more.sql").write_text("\ufeff.mode list\nSELECT SUM(val) AS s\n  FROM t WHERE i > 0;\n")
    Path(".einsqlrc").write_text(MAKE)
    query = "SELECT i, val FROM t"
    status, out, err = run("-csv", "-c", query, "-f", "more.sql", "-c", query)
    assert (status, err) == (0, "")
    assert out == "i,val\n0,0.1\n1,2.0\n2,-3.0\ns\n-1.0\ni|val\n0|0.1\n1|2.0\n2|-3.0\n"
    status, out, err = run("-no-init", "-c", query)
    assert (status, out) == (1, "")
    assert err.startswith("Error: ")


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_start_up_script_that_others_may_write_is_not_run(run: Run) -> None:
    script = Path(".einsqlrc")
    script.write_text(MAKE)
    script.chmod(0o666)
    status, _, err = run("-c", "SELECT i FROM t")
    assert status == 1
    assert f"'{script.absolute()}' may be written by other users" in err


def test_an_error_names_its_place_and_the_script_goes_on(run: Run) -> None:
    script = (
        f"-- a comment\n{MAKE}\n.mode csv\nSELECT i\nFROM t; SELECT\n  nothing FROM t;\nSELECT 'a\n"
    )
    Path("s.sql").write_text(script)
    status, out, err = run("-f", "s.sql")
    assert status == 1
    assert out == "i\n0\n1\n2\n"
    first, second = err.split("Error in s.sql: ")[1:]
    assert first.splitlines()[-2:] == ["LINE 6:   nothing FROM t;", "          ^"]
    assert "LINE 7: SELECT 'a" in second
    assert run("-bail", "-f", "s.sql", "-c", "SELECT 1 AS never")[2].count("Error") == 1
    piped = run(stdin=script)
    assert piped == (1, out, err.replace(" in s.sql", ""))


def test_dot_commands(run: Run) -> None:
    Path("inner.sql").write_text("SELECT COUNT(*) AS n FROM t;")
    Path("loop.sql").write_text(".read loop.sql\n")
    script = f"""\
{MAKE}
.tables
.mode jsonlines
.once "a file.json"
SELECT i FROM t WHERE i = 1;
.read inner.sql
.output all.csv
.mode csv
SELECT i FROM t WHERE i > 0;
.output
.mode duckbox
.maxrows 2
SELECT i FROM t;
.echo on
.explain on
SELECT i FROM t;
.echo off
.explain off
.open
.tables
.quit 7
SELECT never FROM t;
"""
    status, out, err = run(stdin=script)
    assert (status, err) == (7, "")
    assert out.startswith('t\n{"n":3}\n┌───────┐\n│   i   │\n│ int64 │\n')
    assert "3 rows (2 shown)\n.explain on\nSELECT i FROM t;\n" in out
    assert Path("a file.json").read_text() == '{"i":1}\n'
    assert Path("all.csv").read_text() == "i\n1\n2\n"

    wrong = [".nothing", ".mode fancy", ".maxrows x", ".timer", ".read none", ".read loop.sql",
             ".output no/such/dir", ".once", '.read "x', ".schema t", ".quit now"]  # fmt: skip
    status, out, err = run(stdin="\n".join(wrong))
    assert (status, out) == (1, "")
    assert err.count("Error") == len(wrong)
    assert 'Did you mean "tables"?' in run("-c", ".tabels")[2]


def test_help_names_every_command_and_schema_every_column(run: Run) -> None:
    status, out, _ = run("-c", ".help", "-c", MAKE, "-c", ".schema t")
    assert status == 0
    for word in (".tables", ".maxrows COUNT", *MODES):
        assert word in out
    assert out.endswith("\nCREATE TENSOR t (i DIM(3), val FLOAT);\n")
    bounded = "CREATE TENSOR t (i DIM(3), n INTEGER CHECK (n BETWEEN 0 AND 8), m BIGINT);\n"
    whole = 'CREATE TENSOR t (i DIM(3), "a b" DOUBLE) PARTITION BY (i 2) DEFAULT -0.5;\n'
    for statement in (whole, bounded):
        assert run("-c", statement, "-c", ".schema")[1] == statement
    assert run("-c", ".help bail")[1].count("\n") == 1


def test_views_and_macros_are_listed(run: Run) -> None:
    made = ["CREATE VIEW v AS SELECT i FROM t;", "CREATE MACRO twice(x) AS x + x;"]
    _, out, err = run("-c", MAKE, *("-c", made[0], "-c", made[1]), "-c", ".tables", "-c", ".schema")
    names = "t\ntwice(x)  macro\nv         view\n"
    assert (out, err) == (
        f"{names}CREATE TENSOR t (i DIM(3), val FLOAT);\n{made[1]}\n{made[0]}\n",
        "",
    )
    assert run("-c", MAKE, "-c", made[0], "-c", ".schema V")[1] == made[0] + "\n"


def test_tables_and_what_reads_them_are_listed(run: Run) -> None:
    made = "CREATE TABLE people(a INTEGER PRIMARY KEY, s VARCHAR);"
    view = "CREATE VIEW names AS SELECT upper(s) AS s FROM people;"
    whole = ("-c", MAKE, "-c", made, "-c", view)
    names = "names   view\npeople  table\nt\n"
    assert run(*whole, "-c", ".tables") == (0, names, "")
    assert run(*whole, "-c", ".schema people") == (0, f"{made}\n", "")
    assert run(*whole, "-c", ".schema names") == (0, f"{view}\n", "")


def test_cmd_runs_first_and_heads_can_be_left_out(run: Run) -> None:
    query = "SELECT i, val FROM t WHERE i < 1;"
    assert (
        run("-csv", "-noheader", "-cmd", MAKE, "-cmd", ".nullvalue x", stdin=query)[1] == "0,0.1\n"
    )
    status, out, err = run("-c", query, "-cmd", MAKE, "-list", "-c", ".he off")
    assert (status, out) == (1, "i|val\n0|0.1\n")  # .he may be .headers or .help
    assert ".help" in err
    tiles = "SELECT i, tile FROM TILES(t, 3)"
    assert run("-cmd", MAKE, "-c", ".mode csv", "-c", ".head off", "-c", tiles)[1] == (
        "0,[0.1]\n1,[2.0]\n2,[-3.0]\n"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--mpi", "0"], "no number of ranks"),
        (["-nonsense"], "unrecognized arguments"),
        (["--set", "fallback"], "NAME=VALUE"),
    ],
)
def test_wrong_options_end_with_status_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_what_cannot_be_opened_is_one_error(run: Run) -> None:
    for arguments in (["--set", "nonsense=1"], ["-f", "none.sql"], ["no/such/dir/x.db"]):
        status, out, err = run(*arguments)
        assert (status, out) == (1, "")
        assert err.count("Error") == 1
    Path("latin.sql").write_bytes(b"SELECT 'caf\xe9';")
    assert "not UTF-8" in run("-f", "latin.sql")[2]


def test_the_examples_answer_right(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    answers = {
        "digits_knn": "accuracy\n0.988313856427379\n",
        "digits_covariance": "trace\n1202.14",
        "karate_shortest_paths": "farther\n34,156,530,436\n",
    }
    for name, answer in answers.items():
        status, out, err = run("-csv", "-f", f"examples/{name}.sql")
        assert (status, err) == (0, "")
        assert answer in out


def test_notices_and_faults_are_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(connection: einsql.Connection, sql: str, parameters: object = None) -> None:
        connection.notices.append("look here")
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(einsql.Connection, "execute", execute)
    status, out, err = run("-c", "SELECT 1; SELECT 2")
    assert (status, out) == (1, "")
    fault = "Notice: look here\nError: Internal error (ZeroDivisionError): a fault\n"
    assert err == 2 * (fault + "Please report it.\n")


def spawn(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HOME": "/nonexistent", "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_a_statement_loads_only_what_it_needs() -> None:
    code = """
import sys
from einsql.frontends.console.main import main
status = main(["-c", "SELECT 1 AS a"])
heavy = {"prompt_toolkit", "matplotlib", "pandas", "asyncio", "pyarrow", "numba"}
sys.exit(status or ", ".join(heavy & set(sys.modules)) or 0)
"""
    process = spawn("-c", code)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "│     1 │" in out


def test_a_reader_that_leaves_is_no_error() -> None:
    process = spawn("-m", "einsql", "-csv", "-c", "SELECT r.i FROM range(300000) AS r(i)")
    assert process.stdout is not None
    assert process.stderr is not None
    assert [process.stdout.readline() for _ in range(2)] == ["i\n", "0\n"]
    process.stdout.close()
    assert process.wait(60) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""
    process.stderr.close()


def test_control_c_interrupts_the_statement() -> None:
    code = """
import sys, threading, einsql
from einsql.frontends.console.main import main
stopped = threading.Event()
def execute(connection, sql, parameters=None):
    print("running", flush=True)
    stopped.wait(50)
    raise einsql.InterruptedError("cancelled")
einsql.Connection.execute = execute
einsql.Connection.interrupt = lambda connection: stopped.set()
sys.exit(main(["-c", "SELECT 1; SELECT 2"]))
"""
    process = spawn("-c", code)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    for _ in range(6):  # the first one is lost if Python raises it in a finaliser
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=5)
            break
        except subprocess.TimeoutExpired:
            continue
    assert (process.returncode, out, err) == (130, "", "Interrupted\n")


def test_doctor_shows_what_is_used_and_finds_a_fault(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "einsql", "doctor"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"EINSQL_BLAS": "fast", "HOME": str(tmp_path)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert lines[0] == "System"
    assert lines[-1] == "1 fault"
    assert any(f"einsql          {einsql.__version__}" in line for line in lines)
    assert any(line.startswith("  kernel") and "right" in line for line in lines)
    fault = lines.index("  FAULT: The environment's EINSQL_BLAS cannot be fast")
    assert lines[fault + 1] == "         Values are auto, numpy, mkl."
