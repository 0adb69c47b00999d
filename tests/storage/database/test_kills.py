"""A process that is killed at any moment leaves the last commit, whole."""

from __future__ import annotations

import os

from tests.storage.database.victim import kills
from tests.support.samples import sample

MANY = 100
"""Kills from which on half of them must fall into the time that matters; fewer may miss it."""


def test_killed_commits_are_there_whole_or_not_at_all(path: str) -> None:
    times = int(os.environ.get("EINSQL_KILLS", sample("2", "10")))
    seed = int(os.environ.get("EINSQL_SEED", "1"))
    commits, places = kills(path, times, seed)
    print(f"{times} kills, seed {seed}, {commits} commits, {dict(places)}")
    assert commits > 0
    if times >= MANY:
        assert places["between the first payload and the return"] >= times // 2
