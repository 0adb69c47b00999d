"""A child of a fork uses nothing of its parent's, whose data survives whatever the child does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import einsql
from tests.storage.database.forked import ACTIONS, closes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

KILLED = -9


def run(what: str, path: str, module: str = "forked") -> list[Any]:
    """What a process of forked.py tells until it ends, killed or by itself."""
    command = [sys.executable, "-W", "ignore:.*fork:DeprecationWarning"]
    process = subprocess.run(
        [*command, "-m", f"tests.storage.database.{module}", what, path],
        env=os.environ | {"NUMBA_NUM_THREADS": "2"}, cwd=Path(__file__).parents[3],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert process.returncode == (KILLED if what in ("survive", "threads") else 0), process.stderr
    assert process.stderr == ""
    return [json.loads(line) for line in process.stdout.splitlines()]


def held(path: str) -> set[float]:
    """Every number that a database holds; its payloads are those of its catalog."""
    with einsql.connect(path) as con:
        found = {float(k) for (k,) in con.execute("SELECT k FROM t").fetchall()}
        found |= set(con.execute("SELECT MIN(val), MAX(val) FROM w").fetchall()[0])
        assert con.execute("SELECT COUNT(*) AS n FROM w").fetchall() == [(1000,)]
    return found


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of the children of one process."""
    return run("survive", str(tmp_path_factory.mktemp("fork") / "model.db"))


def told(children: list[dict[str, Any]], action: str) -> list[Any]:
    """What the children say that did something."""
    return [json.loads(c["told"]) for c in children if c["action"] == action]


def test_the_parent_s_commits_survive_whatever_children_do(children: list[dict[str, Any]]) -> None:
    assert len(children) == sum(map(len, ACTIONS.values()))
    for child in children:
        assert held(child["copy"]) == {child["commit"]}, child


def test_children_end_as_they_say_and_silently(children: list[dict[str, Any]]) -> None:
    for child in children:
        raised = child["end"] == "raise"
        assert child["status"] == raised, child
        last = child["errors"].splitlines()[-1:]
        assert last == ([f"KeyError: '{child['action']}'"] if raised else []), child


def test_every_use_of_what_is_inherited_is_refused_by_one_error(
    children: list[dict[str, Any]],
) -> None:
    found = told(children, "writes")
    assert len(found) == 3
    for refusals in found:
        assert len(refusals) == 34
        (refusal,) = set(refusals)
        assert refusal.startswith("OperationalError: This connection was opened in process ")
        assert refusal.endswith(" before a fork; open a new one in this process")
    assert told(children, "closes") == [[True, True]] * len(ACTIONS[closes])
    assert told(children, "forks_again") == [[0, [[1]]]]


def test_what_was_fetched_stays_readable(children: list[dict[str, Any]]) -> None:
    assert told(children, "reads") == [[0.0, [[0]], 5]]


def test_a_child_has_connections_of_its_own(children: list[dict[str, Any]]) -> None:
    assert told(children, "begins") == [[[[4999950000]], [True, True], [1.0, 1.0]]]
    ((refusals, other),) = told(children, "opens")
    assert other == [[7]]
    for refusal in refusals:
        assert "is open in another process (process " in refusal


def test_parent_and_children_read_a_file_together(path: str) -> None:
    ((status, child, errors), rows) = run("shares", path)[0]
    assert (status, errors, rows) == (0, "", [[3]])
    assert json.loads(child) == [[[3]], [[3]], [0, "[[[3]], [[3]]]"]]


def test_threads_of_the_parent_disturb_no_child_and_none_disturbs_them(path: str) -> None:
    (statuses,) = run("threads", path)
    assert [status for status, _ in statuses] == [0] * len(statuses)
    assert len({text for _, text in statuses}) == 1
    assert held(path) == {77}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is told of other interfaces, by their names."""
    pytest.importorskip("sqlalchemy")
    found = run("all", str(tmp_path_factory.mktemp("fork") / "model.db"), "forked_others")
    return {name: told for line in found for name, told in line.items()}


def test_an_attached_connection_refuses_and_keeps_its_functions(others: dict[str, Any]) -> None:
    refusals, own = others["attached"]["use"]
    assert all("before a fork" in refusal for refusal in refusals)
    assert own == [[3.0]]
    assert others["attached"]["parent"] == [[[3.0]], [[9]], [["tensor_of"]]]


def test_pools_of_sqlalchemy_open_connections_anew(others: dict[str, Any]) -> None:
    rows, refusal = others["pooled"]["use"]
    assert rows == [[6]]
    assert "is open in another process" in refusal
    assert others["pooled"]["parent"] == [[6]]


def test_a_traced_program_has_a_session_in_each_process(others: dict[str, Any]) -> None:
    found, same_settings, refusal = others["traced"]["use"]
    assert (found, same_settings) == ([2.0] * 3, True)
    assert "before a fork" in refusal
    assert others["traced"]["parent"] == [[2.0] * 3, [3.0] * 3]


def test_a_child_changes_no_result_of_its_parent_s(others: dict[str, Any]) -> None:
    assert others["spilled"]["use"] == [5_999_998.0, -1.0]
    assert others["spilled"]["parent"] == [True, 5_999_998.0, 0.0]


def test_temporary_directories_are_removed_by_who_made_them(others: dict[str, Any]) -> None:
    assert others["cached"] == {"use": True, "parent": [True, False]}


def test_a_pool_of_processes(others: dict[str, Any]) -> None:
    for number, (refusal, rows) in enumerate(others["pool"]["workers"]):
        assert "before a fork" in refusal
        assert rows == [[number]]
    assert others["pool"]["parent"] == [[1], [2]]


LOADER = """
import einsql, numpy as np, sys, torch
from torch.utils.data import DataLoader, Dataset

con = einsql.connect(sys.argv[1])
con.execute("CREATE TABLE t AS SELECT 1 AS k")
con.execute("CREATE TENSOR w (i DIM(64), val FLOAT) DEFAULT 2")

class Rows(Dataset):
    def __init__(self):
        self.rows = con.execute("SELECT i, val FROM w").fetch_numpy()
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, n):
        try:
            con.execute("SELECT k FROM t")
        except einsql.OperationalError as error:
            assert "before a fork" in str(error)
        else:
            raise AssertionError
        return float(einsql.einsum("i,i->", self.rows[n : n + 1], self.rows[n : n + 1]))

loader = DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context="fork")
print(sum(batch.sum().item() for batch in loader))
con.execute("INSERT INTO t VALUES (2)")
print(con.execute("SELECT k FROM t ORDER BY k").fetchall())
"""


def test_workers_of_a_data_loader(path: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADER, path],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, "256.0\n[(1,), (2,)]\n"), found.stderr
    with einsql.connect(path) as con:
        assert con.execute("SELECT k FROM t ORDER BY k").fetchall() == [(1,), (2,)]
