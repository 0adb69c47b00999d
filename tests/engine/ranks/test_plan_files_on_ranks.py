"""Plan files on MPI ranks: the cuts of the file, at the sites of the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.engine.ranks.conftest import Connected
from tests.support.plan_files import export, recut, report


def test_ranks_run_an_edited_plan(connected: Connected, tmp_path: Path) -> None:
    con = connected(3)
    x, y = np.arange(77.0).reshape(7, 11), np.arange(99.0).reshape(11, 9)
    con.register("x", x, dims=("i", "j"))
    con.register("y", y, dims=("j", "k"))
    sql = "SELECT i, k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY i, k"
    path = tmp_path / "p.json"
    export(con, path, sql)
    con.execute(f"SET plan = '{path}'")
    for label, sites in (("i", [2, 0, 1]), ("j", [1, 2, 0]), ("k", [0, 2, 1])):
        cut = dict.fromkeys("ijk", 1) | {label: 3}
        recut(path, parts=cut, mesh=[label], sites=sites)
        np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), x @ y)
        shown = report(con, sql)["nodes"][0]
        assert (shown["partition"], shown["cells"]) == (cut, sites)
        (text,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchone() or ("{}",)
        analyzed = json.loads(text)
        assert analyzed["ranks"] == 3
        sent = sum(s["bytes_sent"] for s in analyzed["per_site"])
        assert sent == analyzed["total"]["bytes_sent"]
    con.execute("RESET plan")
