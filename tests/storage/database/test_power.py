"""After a power loss at any moment a file holds the last acknowledged commit, whole.

The calls of a process are logged, and what a disk may hold after each of them is made from the
log, by the rules of a journal and by those of POSIX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.storage.database.conftest import EVERYTHING
from tests.storage.database.faults import Call, Nursery, read_log
from tests.storage.database.power import Disk, Remains
from tests.storage.database.scenario import EMPTY, SCENARIOS, State, judge

EVERY = 1 if EVERYTHING else 101
"""Of the states that a log gives, one in so many is looked at."""
NAMES = (
    tuple(SCENARIOS)
    if EVERYTHING
    else ("creation", "commits", "attached", "tiles", "blocks", "automatic")
)
KINDS = {
    "creation": {"create", "write", "fdatasync", "fsync", "link", "rename", "unlink", "mkdir"},
    "commits": {"create", "write", "fdatasync", "fsync", "rename", "unlink"},
    "tables": {"create", "write", "fdatasync", "fsync", "unlink"},
    "attached": {"create", "write", "fdatasync", "fsync", "unlink"},
    "vacuum": {"create", "write", "fdatasync", "fsync", "rename", "unlink"},
    "tiles": {"create", "write", "fdatasync", "fsync", "rename", "unlink"},
    "blocks": {"create", "write", "fdatasync", "fsync", "rename", "unlink"},
    "automatic": {"create", "write", "fdatasync", "fsync", "rename", "unlink", "resize"},
}
"""Calls that each scenario must have made."""


def states(calls: list[Call], disk: Disk) -> Iterator[tuple[Call, Remains, list[State]]]:
    """What a disk may hold after each call, each state once, and what it may show then."""
    done = [more for what, more in (c.note() for c in calls if c.kind == "note") if what == "done"]
    acknowledged, running = 0, False
    seen = set()
    for call in calls:
        disk.apply(call)
        if call.kind == "note":
            what, _ = call.note()
            running = what == "begin"
            acknowledged += what == "done"
        allowed = done[max(0, acknowledged - 1) : acknowledged + running] or [EMPTY]
        for left in disk.remains():
            state = left.digest, acknowledged, running
            if state not in seen:
                seen.add(state)
                yield call, left, [*allowed, EMPTY] if not acknowledged else allowed


@pytest.mark.parametrize("name", NAMES)
def test_every_state_holds_the_last_commit(
    name: str, shimmed: Nursery, template: Callable[[str, Path], None], tmp_path: Path
) -> None:
    folder, log = tmp_path / "files", tmp_path / "log"
    template(name, folder)
    disk = Disk.of(folder)
    assert shimmed.run(folder, log, name) == 0
    calls = list(read_log(log))
    assert {c.note()[0] for c in calls if c.kind == "note"} == {"begin", "done"}
    made = Counter(c.kind for c in calls if c.kind != "note")
    assert made.keys() >= KINDS[name]
    bad, rules, many = [], Counter[str](), 0
    for n, (call, left, allowed) in enumerate(states(calls, disk)):
        if n % EVERY:
            continue
        place = tmp_path / str(n)
        place.mkdir()
        left.write(place)
        rules[left.rule] += 1
        many += 1
        wrong = judge(str(place), allowed)
        if wrong:
            bad.append(f"after {call.number} {call.kind}, {left.rule}: {left.how}: {wrong}")
    there = {str(p.relative_to(folder)): p for p in folder.rglob("*")}
    left_there = {n: None if p.is_dir() else p.read_bytes() for n, p in there.items()}
    assert disk.contents() == left_there, "the log lacks a call"
    print(f"{name}: {dict(made)}; {many} states, {dict(rules)}, {len(bad)} bad")
    assert not bad, "\n".join(bad)
    assert many
