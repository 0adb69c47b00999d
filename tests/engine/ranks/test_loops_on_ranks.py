"""FOR on MPI ranks: the rows of one site, and what is kept when it is cancelled."""

import pytest

import einsql
from tests.engine.ranks.conftest import Connected

LOOP = """FOR step IN range(6) DO
  UPDATE w SET val = w.val * 0.5 + step;
  SELECT SUM(val) AS total FROM w;
END FOR"""


def test_a_loop_gives_the_same_on_ranks_and_keeps_its_steps(connected: Connected) -> None:
    make = "CREATE TENSOR w (i DIM(8), val DOUBLE) PARTITION BY (i 2) DEFAULT 1"
    with einsql.connect() as con:
        con.execute(make)
        wanted = con.execute(LOOP).fetchall()
    con = connected(2)
    con.execute(make)
    assert con.execute(LOOP).fetchall() == wanted
    con.execute("UPDATE w SET val = 1")
    con.stepped = lambda description, row: con.interrupt() if row[0] == 3 else None
    with pytest.raises(einsql.errors.InterruptedError, match="up to step = 3 are kept"):
        con.execute(LOOP)
    con.stepped = None
    assert con.execute("SELECT SUM(val) FROM w").fetchall() == [wanted[3][1:]]
