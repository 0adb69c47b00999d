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

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

KILLED = -9


def run(what: str, path: str) -> list[Any]:
    """What a process of forked.py tells until it ends, killed or by itself."""
    command = [sys.executable, "-W", "ignore:.*fork:DeprecationWarning"]
    process = subprocess.run(
        [*command, "-m", "tests.database.forked", what, path],
        env=os.environ | {"NUMBA_NUM_THREADS": "2"}, cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert process.returncode == (0 if what == "shares" else KILLED), process.stderr
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
    assert len(children) == 13
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
    assert told(children, "closes") == [[True, True]] * 3
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
