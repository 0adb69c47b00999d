"""Random statements on MPI ranks: changes between queries, and queries over tiles."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import einsql
from einsql.engine.ranks.call import Tick
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.messages import Command, Run
from tests.sql.test_tiles_random import M, random_select
from tests.support.oracle.campaign import BAD
from tests.support.oracle.changes import changes, stored
from tests.support.oracle.choices import Choices
from tests.support.oracle.data import random_database
from tests.support.oracle.generate import Generator
from tests.support.oracle.oracle import INTERPRETED, Pair, repro

QUERIES_PER_DATABASE = 4


class WatchedCluster(Cluster):
    """Ranks that count what they run.

    Attributes:
        runs: How many programs they have run.
        moved: In how many of these anything crossed ranks.
        watches: Whether they count; if not, programs run as they do in a session.
    """

    runs = 0
    moved = 0
    watches = True

    def call(
        self, commands: Mapping[int, Command], tick: Tick | None = None,
        into: Mapping[int, Sequence[np.ndarray]] | None = None,
    ) -> list[Any]:  # fmt: skip
        """As `Cluster.call`."""
        if not self.watches:
            return super().call(commands, tick, into)
        commands = {rank: measured(c) for rank, c in commands.items()}
        answers = super().call(commands, tick, into)
        if any(isinstance(c, Run) for c in commands.values()):
            self.runs += 1
            self.moved += any(any(measure.sent) for measure in answers)
        return answers


def measured(command: Command) -> Command:
    """The command; a run is also asked what it took."""
    return replace(command, measured=True) if isinstance(command, Run) else command


def repeated(
    cluster: WatchedCluster, queries: int, seed: int, settings: Mapping[str, str] = INTERPRETED
) -> list[str]:
    """Runs each query several times: ranks make functions of programs that are repeated.

    Args:
        cluster: The ranks, which do not count these runs.
        queries: How many.
        seed: The same seed gives the same queries.
        settings: einsql's settings.

    Returns:
        The queries whose answers differ in any bit.
    """
    found: list[str] = []
    cluster.watches = False
    for n in range(-(-queries // QUERIES_PER_DATABASE)):
        chance = Choices(random.Random(seed * 1_000_000 + n))
        db = stored(random_database(chance), chance, cluster.ranks)
        pair = Pair(db, settings=settings, cluster=cluster)
        for _ in range(min(QUERIES_PER_DATABASE, queries - n * QUERIES_PER_DATABASE)):
            query = Generator(chance, db).query()
            if pair.check(query).verdict == "agree":
                answers = [repr(pair.con.execute(query.sql).fetchall()) for _ in range(4)]
                if len(set(answers)) > 1:
                    found.append(repro(db, query, cluster.ranks))
        pair.close()
    cluster.watches = True
    return found


def changing(
    cluster: Cluster, queries: int, seed: int, settings: Mapping[str, str] = INTERPRETED
) -> list[str]:
    """Compares queries with DuckDB, between which stored tensors are changed.

    Args:
        cluster: The ranks.
        queries: How many.
        seed: The same seed gives the same statements.
        settings: einsql's settings.

    Returns:
        For each difference what it is, and a script that shows it.
    """
    found: list[str] = []
    for n in range(-(-queries // QUERIES_PER_DATABASE)):
        chance = Choices(random.Random(seed * 1_000_000 + n))
        db = stored(random_database(chance), chance, cluster.ranks)
        pair = Pair(db, settings=settings, cluster=cluster)
        if pair.broken:
            found.append(f"the database cannot be made: {pair.broken}\n{db.statements}")
            pair.close()
            continue
        for _ in range(min(QUERIES_PER_DATABASE, queries - n * QUERIES_PER_DATABASE)):
            for sql in changes(db, chance):
                pair.change(sql)
                db.statements.append(sql)
            query = Generator(chance, db).query()
            outcome = pair.check(query)
            if outcome.verdict in BAD:
                found.append(f"{outcome.detail}\n{repro(db, query, cluster.ranks)}")
        pair.close()
    return found


def tiled(cluster: Cluster, queries: int, seed: int) -> list[str]:
    """Compares queries over tiles with loops over every combination of blocks.

    Args:
        cluster: The ranks.
        queries: How many.
        seed: The same seed gives the same queries.

    Returns:
        The queries that gave something else.
    """
    con = einsql.Connection(cluster)
    con.execute(f"SET sites = {cluster.ranks}")
    con.register("given", M, ("i", "j"))
    con.execute("CREATE TENSOR m AS SELECT i, j, val FROM given")
    found: list[str] = []
    for n in range(queries):
        sql, wanted = random_select(random.Random(seed * 1_000_000 + n))
        got = {row[:-1]: row[-1] for row in con.execute(sql).fetchall()}
        if list(got) != list(wanted) or not all(
            np.allclose(array, wanted[key], rtol=1e-12, atol=0) for key, array in got.items()
        ):
            found.append(sql)
    con.context.cluster = None  # others will use it
    con.close()
    return found
