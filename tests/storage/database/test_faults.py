"""A call to the file system that fails, or in which the process dies, loses nothing.

`EINSQL_FAULTS=all` makes every call of every scenario fail in every way, else some of them do.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import einsql
from tests.storage.database.conftest import EVERYTHING
from tests.storage.database.faults import KINDS, Call, Nursery, read_log
from tests.storage.database.scenario import EMPTY, SCENARIOS, State, connect, judge

SAMPLE = {
    "creation": [("kill before", "link", ".db"), ("ENOSPC", "write", "einsql.part")],
    "commits": [
        ("EIO", "fdatasync", ".wal"),
        ("EIO", "fsync", "files"),
        ("EIO", "fsync", ".tensors"),
        ("kill within", "write", ".wal"),
        ("short", "write", ".arrow.part"),
    ],
    "blocks": [("kill within", "write", ".arrow.part"), ("ENOSPC", "write", ".arrow.part")],
    "automatic": [("kill within", "write", ".db"), ("EIO from there", "fdatasync", ".db")],
}
"""What is made to fail where not every call is: the first call of a kind, by its path's end."""
FORCING = ("fsync", "fdatasync")


def kinds_of(call: Call) -> tuple[str, ...]:
    """What can become of a call: only what writes can be done in part."""
    return tuple(k for k in KINDS[1:] if call.kind == "write" or k not in ("short", "kill within"))


def chosen(name: str, calls: list[Call]) -> Iterator[tuple[Call, str]]:
    """The calls of a scenario that are made to fail, and how."""
    if EVERYTHING:
        yield from ((call, kind) for call in calls if call.number for kind in kinds_of(call))
        return
    for fault, kind, end in SAMPLE[name]:
        ends = ((c, (c.path, c.second)) for c in calls if c.kind == kind)
        yield next(c for c, paths in ends if any(p.endswith(end) for p in paths)), fault


def wrong_after(
    folder: Path, status: int, calls: list[Call], kind: str, done: list[State]
) -> tuple[str, str]:
    """What became of a scenario of which one call failed.

    Args:
        folder: Its directory.
        status: What its process ended with.
        calls: Its log.
        kind: The fault.
        done: What the database shows after each step.

    Returns:
        What is wrong, or nothing; and what happened in one word.
    """
    notes = [c.note() for c in calls if c.kind == "note"]
    told = dict(notes)
    acknowledged = sum(what == "done" for what, _ in notes)
    running = sum(what == "begin" for what, _ in notes) > acknowledged
    allowed = done[max(0, acknowledged - 1) : acknowledged + running]
    allowed = allowed if acknowledged else [EMPTY, *allowed]
    if "foreign" in told:
        return told["foreign"], "foreign"
    dies = kind.startswith("kill")
    if dies is not (status != 0):
        return f"the process ended with {status}", "ended"
    seen = [more for what, more in notes if what in ("saw", "reopened")]
    if any(state not in allowed for state in seen) or any(state != seen[0] for state in seen):
        return f"sessions saw {seen}, not one of {allowed}", "saw"
    if "failed" in told and told["failed"][0] != "OperationalError":
        return f"the error was {told['failed']}", "failed"
    if "failed" in told and "reopened" not in told and kind == "EIO":
        return f"the file stayed closed: {told}", "closed"
    until = next((n for n, c in enumerate(calls) if '"failed"' in c.path), len(calls))
    failed = next((c for c in calls[:until] if c.error and c.kind in FORCING), None)
    unknown = failed is not None and not failed.path.endswith((".arrow.part", "einsql.part"))
    # What DETACH has closed, looking opens again.
    closed = "failed" in told and told["failed"][1].startswith("Detached database")
    if unknown and not closed and "failed" in told and "saw" in told:
        return f"a session went on after {failed}", "saw"
    wrong = judge(str(folder), [told["went on"]] if "went on" in told else allowed)
    happened = "killed" if dies else "failed" if "failed" in told else "tolerated"
    return wrong, "refused" if "refused" in told else happened


@pytest.mark.parametrize("name", SCENARIOS if EVERYTHING else SAMPLE)
def test_a_fault_leaves_the_last_commit(
    name: str, shimmed: Nursery, template: Callable[[str, Path], None], tmp_path: Path
) -> None:
    folder, log = tmp_path / "files", tmp_path / "log"
    template(name, folder)
    assert shimmed.run(folder, log, name) == 0
    calls = list(read_log(log))
    assert not any(c.kind.startswith("unknown") for c in calls)
    done = [more for what, more in (c.note() for c in calls if c.kind == "note") if what == "done"]
    bad, tried = [], Counter[tuple[str, str]]()
    happened = Counter[str]()
    for call, kind in chosen(name, calls):
        shutil.rmtree(folder)
        template(name, folder)
        status = shimmed.run(folder, log, name, call.number, kind)
        wrong, what = wrong_after(folder, status, list(read_log(log)), kind, done)
        tried[call.kind, kind] += 1
        happened[f"{kind}: {what}"] += 1
        if wrong:
            bad.append(f"{kind} at {call.number} {call.kind} of {call.path}: {wrong}")
            print(bad[-1], flush=True)
    print(f"{name}: {sum(tried.values())} faults, {len(bad)} bad; {dict(happened)}")
    for kind in sorted({k for k, _ in tried}):
        print(f"  {kind}:", {fault: many for (k, fault), many in tried.items() if k == kind})
    assert not bad, "\n".join(bad)
    if EVERYTHING:
        made = {c.kind for c in calls if c.number}
        assert {k for k, _ in tried} == made
        assert made >= {"create", "write", "fdatasync", "fsync", "unlink"}


def test_every_connection_refuses_a_file_whose_disk_failed(path: str) -> None:
    with connect(str(Path(path).parent)) as con, einsql.connect(path) as other:
        con.execute("CREATE TENSOR x (i DIM(4), val DOUBLE) DEFAULT 1")
        con.execute("CREATE TABLE t AS SELECT 1 AS k")
        repeated = (
            "SELECT SUM(val) FROM x",
            "SELECT k FROM t",
            "SELECT k + (SELECT SUM(val) FROM x) FROM t",
            "UPDATE x SET val = val",
            "INSERT INTO t VALUES (1)",
        )
        for statement in repeated:
            con.execute(statement)
            con.execute(statement)
        held = other.execute("SELECT * FROM x")
        other.execute("BEGIN; UPDATE x SET val = 2")
        with pytest.raises(einsql.OperationalError, match="was closed: the disk fails"):
            con.store.database.invalidate("the disk fails")
        for session in con, other:
            for statement in (*repeated, "SELECT 1 AS n", "SHOW TENSORS", "CHECKPOINT", "COMMIT"):
                with pytest.raises(einsql.OperationalError, match="was closed") as told:
                    session.execute(statement)
                assert "open it again" in told.value.hint
        assert held.fetch_numpy().sum() == 4.0
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM x").fetchall() == [(4.0,)]
