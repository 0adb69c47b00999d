"""Softmax and layer norm in SQL beside PyTorch's fused functions and NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.matrices import check, connected, random
from benchmarks.measure import Run, measure
from benchmarks.report import Finding, Section, against

SOFTMAX = """
WITH m AS (SELECT i, MAX(val) AS val FROM x GROUP BY i),
e AS (SELECT i, j, EXP(x.val - m.val) AS val FROM x JOIN m USING (i)),
z AS (SELECT i, SUM(val) AS val FROM e GROUP BY i)
SELECT i, j, e.val / z.val AS val FROM e JOIN z USING (i)
"""
LAYER_NORM = """
WITH mu AS (SELECT i, AVG(val) AS val FROM x GROUP BY i),
va AS (SELECT i, AVG((x.val - mu.val) * (x.val - mu.val)) AS val
       FROM x JOIN mu USING (i) GROUP BY i)
SELECT i, j, (x.val - mu.val) / SQRT(va.val + 1e-5) AS val
FROM x JOIN mu USING (i) JOIN va USING (i)
"""
IN_FLOAT = LAYER_NORM.replace("1e-5", "1e-5::FLOAT")
"""As PyTorch and NumPy compute it; FLOAT + 1e-5 is DOUBLE in SQL, and so is then the result."""
AGAINST_TORCH, AGAINST_NUMPY = 1.0, 3.0


def fused() -> Section:
    """Softmax over 4096² and layer norm over 8192 × 1024."""
    try:
        import torch
    except ImportError:
        return Section("Softmax and layer norm, float32", (), "PyTorch is not installed")
    x, y = random(4096, 4096), random(8192, 1024)
    seen_x, seen_y = torch.from_numpy(x), torch.from_numpy(y)
    functional = torch.nn.functional
    return Section(
        "Softmax and layer norm, float32: another's time / einsql's time",
        (
            *_findings("softmax of 4096²", x, SOFTMAX, _softmax,
                       lambda: torch.softmax(seen_x, 1)),
            *_findings("layer norm of 8192 × 1024", y, LAYER_NORM, _layer_norm,
                       lambda: functional.layer_norm(seen_y, (1024,))),
            *_findings("the same with a result of FLOAT", y, IN_FLOAT, _layer_norm,
                       lambda: functional.layer_norm(seen_y, (1024,))),
        ),
    )  # fmt: skip


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _layer_norm(x: np.ndarray) -> np.ndarray:
    centered = x - x.mean(axis=1, keepdims=True)
    variance = (centered * centered).mean(axis=1, keepdims=True)
    return np.asarray(centered / np.sqrt(variance + np.float32(1e-5)))


def _findings(
    what: str, x: np.ndarray, sql: str, plain: Callable[[np.ndarray], np.ndarray], torch: Run
) -> list[Finding]:
    con = connected({"x": x})
    check(con.execute(sql).fetch_numpy(), plain(x))
    taken = measure(
        {
            "einsql": lambda: con.execute(sql).fetch_numpy(),
            "torch": torch,
            "numpy": lambda: plain(x),
        },
        rounds=11,
        seconds=5.0,
    )
    return [
        against(f"{what} vs {peer}", taken, peer, aim, digits=3)
        for peer, aim in (("torch", AGAINST_TORCH), ("numpy", AGAINST_NUMPY))
    ]
