"""Tensors that are declared over mesh axes, on MPI ranks."""

from __future__ import annotations

import numpy as np

from einsql.storage.fields import PlacedFields
from einsql.storage.objects import Tensor
from tests.engine.ranks.conftest import Connected


def test_results_are_placed_on_ranks_as_declared(connected: Connected) -> None:
    con = connected(2)
    con.execute("SET sites = 1; SET mesh = 'data=2, model=2'")
    con.register("w0", np.arange(40.0).reshape(5, 8), dims=("a", "f"))
    shown = "DeviceMesh(data=2, model=2) [Replicate, Shard(f)]"

    def check(total: float) -> None:
        stored = con.store.get("w")
        assert isinstance(stored, Tensor)
        assert isinstance(stored.relation.fields, PlacedFields)
        assert con.execute("DESCRIBE w").fetchall()[-1][-1] == shown
        assert con.execute("SELECT SUM(val) FROM w").fetchall() == [(total,)]

    con.execute("CREATE TENSOR w PARTITION BY (f model) AS SELECT a, f, val * 2 AS val FROM w0")
    check(1560)
    con.execute("UPDATE w SET val = w.val + w0.val FROM w0 WHERE w.a = w0.a AND w.f = w0.f")
    check(2340)
    con.execute("INSERT OR REPLACE INTO w SELECT a, f, val FROM w0")
    check(780)
