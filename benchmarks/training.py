"""A training step of a feed-forward network in SQL beside PyTorch: forward, backward, descent."""

from __future__ import annotations

import numpy as np

from benchmarks.matrices import check, connected, pytorch, random
from benchmarks.measure import QUIET, measure
from benchmarks.report import Section, against

STEP = """
WITH a AS (SELECT n, h, relu(SUM(x.val * w1.val)) AS val FROM x JOIN w1 USING (d) GROUP BY n, h),
z AS (SELECT n, l, SUM(a.val * w2.val) AS val FROM a JOIN w2 USING (h) GROUP BY n, l),
loss AS (SELECT AVG(-s.val) AS val FROM log_softmax(z, l) AS s JOIN y ON y.n = s.n AND y.val = s.l),
s1 AS (UPDATE w1 SET val = w1.val - 0.01 * g.val
       FROM GRADIENT(loss, w1) AS g WHERE g.d = w1.d AND g.h = w1.h),
s2 AS (UPDATE w2 SET val = w2.val - 0.01 * g.val
       FROM GRADIENT(loss, w2) AS g WHERE g.h = w2.h AND g.l = w2.l)
SELECT val FROM loss
"""
AIM = 1.0


def step(points: int = 1024, features: int = 1600, hidden: int = 4096, labels: int = 10) -> Section:
    """One step of stochastic gradient descent on one batch."""
    title = "Training step, float32: another's time / einsql's time"
    torch = pytorch()
    if torch is None:
        return Section(title, (), "PyTorch is not installed")
    x = random(points, features)
    w1, w2 = random(features, hidden) * np.float32(0.03), random(hidden, labels) * np.float32(0.03)
    y = np.arange(points) % labels
    con = connected({"x": x})
    con.register("x", x, ("n", "d"))
    con.register("y", y, ("n",))
    for name, array, dims in (("w1", w1, ("d", "h")), ("w2", w2, ("h", "l"))):
        con.register("given", array, dims)
        con.execute(f"CREATE TENSOR {name} AS SELECT * FROM given")
    inputs, labelled = torch.from_numpy(x), torch.from_numpy(y)
    first, second = (torch.from_numpy(w.copy()).requires_grad_() for w in (w1, w2))
    descent = torch.optim.SGD([first, second], lr=0.01)

    def in_torch() -> float:
        descent.zero_grad()
        scores = torch.relu(inputs @ first) @ second
        loss = torch.nn.functional.cross_entropy(scores, labelled)
        loss.backward()
        descent.step()
        return float(loss.item())

    def in_sql() -> float:
        return float(con.execute(STEP).fetchall()[0][0])

    for _ in range(2):
        check(np.array(in_sql()), np.array(in_torch()))
    check(con.execute("SELECT d, h, val FROM w1").fetch_numpy(), first.detach().numpy())
    taken = measure({"einsql": in_sql, "torch": in_torch}, rounds=9, seconds=8.0, pause=QUIET)
    what = f"{points} × {features} × {hidden} × {labels} vs torch, eager"
    return Section(title, (against(what, taken, "torch", AIM, digits=3),))
