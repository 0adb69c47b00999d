"""A statement runs on NumPy while its kernel is being compiled, and nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.errors import DataError
from einsql.kernels.compiler import process
from einsql.kernels.kernel import Arrays, Tick
from einsql.kernels.runtime import compile_cache
from einsql.kernels.tiers import Tiered

MIN_PLUS = "SELECT a.i, b.j, MIN(a.val + b.val) AS val FROM a JOIN b USING (k) GROUP BY a.i, b.j"
SOFTMAX = "SELECT * FROM softmax(a, k)"
MAP = "SELECT i, k, val / 3 + ROUND(val) AS val FROM a"
OVERFLOW = "SELECT i, k, CAST(val * 1e18 AS INTEGER) AS val FROM a"


class Compiler:
    """A compiler that begins when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, ...]] = []
        self.submit = process.submit

    def later(self, home: str | None, key: str, source: str) -> process.Compilation:
        """Takes a text, and compiles it at `begin`."""
        work = process.Compilation(home, key, source)
        self.waiting.append((work, (home, key, source)))
        return work

    def begin(self) -> None:
        """Compiles what is waiting."""
        waiting, self.waiting = self.waiting, []
        for work, text in waiting:
            done = self.submit(*text)
            assert done.over.wait(120)
            work.code, work.error = done.code, done.error
            work.over.set()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(tmp_path / "kernels"))
    compile_cache.forget()
    slow = Compiler()
    monkeypatch.setattr(process, "submit", slow.later)
    yield slow
    slow.begin()  # nobody waits for it later


def connection(jit: str, shape: tuple[int, int] = (300, 300)) -> einsql.Connection:
    con = einsql.connect(config={"jit": jit})
    a = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    con.register("a", a, ("i", "k"))
    con.register("b", a.T, ("k", "j"))
    return con


def tiers(con: einsql.Connection, sql: str) -> list[str | None]:
    (row,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}").fetchall()
    measures = [node.get("measured") or {} for node in json.loads(row[-1])["nodes"]]
    return [measured.get("tier") for measured in measures]


@pytest.mark.parametrize("sql", [MIN_PLUS, SOFTMAX, MAP])
def test_the_answer_does_not_wait_and_is_the_same(compiler: Compiler, sql: str) -> None:
    con = connection("auto")
    first = con.execute(sql).fetch_numpy()
    assert compiler.waiting
    assert "plain" in tiers(con, sql)
    compiler.begin()
    while compiler.waiting or "plain" in tiers(con, sql):
        compiler.begin()  # another kernel, of data of this kind
    compiled = con.execute(sql).fetch_numpy()
    np.testing.assert_allclose(first, compiled, rtol=0 if sql != SOFTMAX else 1e-6)


@pytest.mark.parametrize("jit", ["auto", "never", "wait"])
def test_every_tier_raises_the_same_error(
    jit: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    if jit == "wait":
        monkeypatch.setattr(process, "submit", compiler.submit)
    con = connection(jit)
    with pytest.raises(DataError, match="INTEGER"):
        con.execute(OVERFLOW)
    compiler.begin()
    with pytest.raises(DataError, match="INTEGER"):
        con.execute(OVERFLOW)


def test_an_update_on_either_tier_happens_once(compiler: Compiler) -> None:
    con = connection("auto")
    con.execute("CREATE TENSOR t AS SELECT * FROM a")
    for n in range(3):
        con.execute("UPDATE t SET val = t.val + EXP(0 * t.val)")
        if n == 0:
            compiler.begin()
    (difference,) = con.execute(
        "SELECT MAX(ABS(t.val - a.val - 3)) FROM t JOIN a USING (i, k)"
    ).fetchone() or (None,)
    assert difference is not None
    assert difference < 1e-5


def test_all_sites_run_on_one_tier(compiler: Compiler) -> None:
    """Equal rows of different sites have equal bits, whichever tier runs."""
    con = connection("auto", (600, 600))
    row = np.random.default_rng(3).normal(size=600).astype(np.float32)
    con.register("a", np.broadcast_to(row, (600, 600)).copy(), ("i", "k"))
    con.execute("SET sites = 4")
    ran = list[str | None]()
    while "compiled" not in ran:
        result = con.execute(SOFTMAX).fetch_numpy()
        assert (result == result[0]).all()
        np.testing.assert_allclose(result.sum(axis=1), 1, rtol=1e-5)
        (tier,) = set(tiers(con, SOFTMAX))
        text = str(con.explain(SOFTMAX, analyze=True))
        assert ("on NumPy, while a kernel" in text) == (tier == "plain")
        ran.append(tier)
        compiler.begin()
    assert ran[0] == "plain"
    assert con.execute(SOFTMAX).fetch_numpy().tobytes() == result.tobytes()


class _Runs:
    """Two tiers of a runner; the compiled one misses its kernel until it is there."""

    def __init__(self, over: threading.Event) -> None:
        self.over = over
        self.order: list[str] = []

    def compiled(self, operands: Sequence[Arrays], tick: Tick) -> str:
        if not self.over.is_set():
            work = process.Compilation(None, "", "", over=self.over)
            raise compile_cache.NotCompiledError(work)
        self.order.append("compiled")
        return "compiled"

    def plain(self, at: float) -> Callable[[Sequence[Arrays], Tick], str]:
        def run(operands: Sequence[Arrays], tick: Tick) -> str:
            self.order.append("plain")
            tick(0.0)
            self.over.set()
            tick(at)
            self.order.append("finished")
            return "plain"

        return run


@pytest.mark.parametrize(
    ("done", "result"), [(1e-9, "compiled"), (1.0, "plain")], ids=["early", "at the end"]
)
def test_the_compiled_tier_takes_over_where_it_ends_sooner(done: float, result: str) -> None:
    runs = _Runs(threading.Event())
    tiered = Tiered(runs.compiled, lambda: runs.plain(done))
    assert tiered((), lambda _: None) == result
    assert tiered.ran == result
    assert runs.order == ["plain", "compiled" if result == "compiled" else "finished"]
    assert tiered((), lambda _: None) == "compiled"


def test_importing_starts_nothing_and_exit_waits_for_nothing(tmp_path: Path) -> None:
    """The process ends although its compiler has just begun; the next one finds a whole cache."""
    text = f"""
import threading
import einsql
assert threading.active_count() == 1
import numpy as np
con = einsql.connect(config={{"jit": "auto"}})
a = np.ones((300, 300))
con.register("a", a, ("i", "k"))
con.register("b", a, ("k", "j"))
print(con.execute({MIN_PLUS!r}).fetch_numpy()[0, 0])
"""
    environment = {**os.environ, "EINSQL_CACHE_DIR": str(tmp_path / "kernels")}
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", text], env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert (run.stdout, run.stderr, run.returncode) == ("2.0\n", "", 0)
