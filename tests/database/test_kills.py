"""A process that is killed at any moment leaves the last commit, whole."""

from __future__ import annotations

import os

from tests.database.victim import kills


def test_killed_commits_are_there_whole_or_not_at_all(path: str) -> None:
    times = int(os.environ.get("EINSQL_KILLS", "10"))
    seed = int(os.environ.get("EINSQL_SEED", "1"))
    found = kills(path, times, seed)
    print(f"{times} kills, seed {seed}, {found} commits")
    assert found > 0
