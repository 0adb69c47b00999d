"""EXPORT PLAN of statements over TILES: with numbers the statement has the tiling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import einsql
from tests.support.plan_files import export, recut

TILED = "TILES(x, 2, 2) x JOIN TILES(y, 2, 2) y"
PRODUCT = (
    "SELECT x.i, y.k, tensor_sum(tensor_einsum('ij,jk->ik', x.tile, y.tile)) AS tile "
    f"FROM {TILED} ON x.j = y.j GROUP BY x.i, y.k"
)
FREE = PRODUCT.replace(TILED, "TILES(x) x JOIN TILES(y) y")


@pytest.fixture
def con() -> einsql.Connection:
    con = einsql.connect(config={"sites": 4})
    con.register("x", np.arange(64.0).reshape(8, 8), dims=("i", "j"))
    con.register("y", np.arange(64.0).reshape(8, 8) - 20, dims=("j", "k"))
    return con


@pytest.mark.parametrize(
    "sql",
    [
        PRODUCT,
        f"CREATE TENSOR z AS {PRODUCT}",
        f"SELECT i FROM ({PRODUCT}) ORDER BY i LIMIT 1",
        "SELECT x.i, x.j, x.tile FROM TILES((SELECT i, j, val FROM x), 4, 2) x",
    ],
)
def test_a_tiling_of_the_statement_is_not_written(
    con: einsql.Connection, sql: str, tmp_path: Path
) -> None:
    statement = f"EXPORT PLAN '{tmp_path / 'p.json'}' FOR {sql}"
    with pytest.raises(einsql.NotSupportedError, match="The tiling is in the statement") as caught:
        con.execute(statement)
    assert caught.value.position == statement.index("TILES(")
    assert "TILES without numbers inside ELEMENTS" in caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sql", [f"SELECT * FROM ELEMENTS(({FREE}))", f"CREATE TENSOR z AS {FREE}"])
def test_a_tiling_of_the_optimizer_is_written_and_pinned(
    con: einsql.Connection, sql: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    (graph,) = export(con, path, sql)["graphs"]
    product = graph["nodes"][0]
    label = next(iter(product["labels"]))
    recut(path, parts=dict.fromkeys(product["labels"], 1) | {label: 4}, mesh=[label])
    con.execute(f"SET plan = '{path}'")
    con.execute(sql)
    assert con.notices == []
    shown = con.explain(sql).to_dict()
    assert shown["nodes"][0]["partition"][label] == 4
    answer = con.execute(sql if sql.startswith("SELECT") else "SELECT * FROM z").fetch_numpy()
    x = np.arange(64.0).reshape(8, 8)
    np.testing.assert_array_equal(answer, x @ (x - 20))


def test_operations_over_elements_are_written_beside_a_tiling(
    con: einsql.Connection, tmp_path: Path
) -> None:
    sql = f"SELECT i, SUM(val) AS val FROM ELEMENTS(({PRODUCT})) GROUP BY i"
    (graph,) = export(con, tmp_path / "p.json", sql)["graphs"]
    assert graph["nodes"]
    (notice,) = con.notices
    assert "those over TILES keep the tiling of the statement" in notice
