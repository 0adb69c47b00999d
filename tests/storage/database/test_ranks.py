"""Tensors at MPI ranks in a database file."""

from __future__ import annotations

import numpy as np
import pytest

import einsql
from einsql.storage.database import payload
from einsql.storage.fields import PlacedFields
from einsql.storage.objects import Tensor

pytest.importorskip("mpi4py", reason="it starts MPI ranks")


def test_what_lies_at_ranks_is_fetched_piece_by_piece(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "SLAB", 100)
    product = "SELECT SUM(x.val * y.val) FROM x, y WHERE x.i = y.i AND x.j = y.j"
    with einsql.connect(path, config={"mpi": 2}) as con:
        con.register("r", np.arange(35.0).reshape(5, 7), dims=("i", "j"))
        con.execute("""
            CREATE TENSOR x PARTITION BY (i 2) AS SELECT * FROM r WHERE i <> j;
            BEGIN;
            CREATE TENSOR y AS SELECT i + 3 AS i, j, val * 2 AS val FROM x;
        """)
        made = con.store.get("y")
        assert isinstance(made, Tensor)
        assert isinstance(made.relation.fields, PlacedFields)
        con.execute("COMMIT; UPDATE x SET val = val + 1 WHERE i > 1")
        found = [con.execute(f"SELECT * FROM {name}").fetchall() for name in "xy"]
        assert con.execute(product).fetchone() == (4286.0,)
    with einsql.connect(path) as con:
        assert [con.execute(f"SELECT * FROM {name}").fetchall() for name in "xy"] == found
        assert con.execute(product).fetchone() == (4286.0,)
