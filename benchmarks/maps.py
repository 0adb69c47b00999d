"""Element-wise maps over 16 M numbers, and what is reduced of them, beside NumPy and PyTorch.

PyTorch runs on as many threads as einsql, twice where it can: as one writes it, and into
memory it was given, for new memory costs it more than most of these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.matrices import Array, connected, pytorch, random
from benchmarks.measure import measure
from benchmarks.report import Finding, Section, against

N = 4096
OF_TORCH, OF_NUMPY = 1.0, 3.0
ROUNDS, SECONDS = 9, 1.5
ROOT = 0.7978845608028654
"""√(2/π)"""


@dataclass(frozen=True)
class Case:
    """A map, or a map and a reduction.

    Attributes:
        sql: What is computed of `val`.
        keys: Of the result.
        numpy: The same in NumPy, of an array.
        torch: The same in PyTorch, of the module and a tensor.
        into: The same into a given tensor.
        aim: Whether it is held to the targets.
    """

    sql: str
    keys: str
    numpy: Callable[[Array], Array]
    torch: Callable[[Any, Any], Any]
    into: Callable[[Any, Any, Any], Any] | None = None
    aim: bool = False


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x * x * x))))


def _erf_gelu(x: Array) -> Array:
    from scipy.special import erf  # einsql imports it no sooner either

    return np.asarray(0.5 * x * (1 + erf(x * 0.5**0.5)))


CASES = {
    "tanh-GELU": Case(
        f"0.5 * val * (1 + TANH({ROOT} * (val + 0.044715 * val * val * val)))",
        "i, j",
        _gelu,
        lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
        lambda t, x, out: t.ops.aten.gelu.out(x, approximate="tanh", out=out),
        aim=True,
    ),
    "erf-GELU": Case(
        "0.5 * val * (1 + ERF(val * 0.7071067811865476))",
        "i, j",
        _erf_gelu,
        lambda t, x: t.nn.functional.gelu(x),
        lambda t, x, out: t.ops.aten.gelu.out(x, out=out),
    ),
    "EXP": Case(
        "EXP(val)", "i, j", np.exp, lambda t, x: t.exp(x), lambda t, x, out: t.exp(x, out=out)
    ),
    "LN(1 + ABS)": Case(
        "LN(1 + ABS(val))",
        "i, j",
        lambda x: np.log(1 + np.abs(x)),
        lambda t, x: t.log(1 + t.abs(x)),
    ),
    "six operations": Case(
        "SQRT(ABS(val * 2 - 1) + 3) / (val * val + 1)",
        "i, j",
        lambda x: np.sqrt(np.abs(x * 2 - 1) + 3) / (x * x + 1),
        lambda t, x: t.sqrt(t.abs(x * 2 - 1) + 3) / (x * x + 1),
    ),
    "SIN": Case(
        "SIN(val)", "i, j", np.sin, lambda t, x: t.sin(x), lambda t, x, out: t.sin(x, out=out)
    ),
    "POW(ABS, 1.7)": Case(
        "POW(ABS(val), 1.7)",
        "i, j",
        lambda x: np.power(np.abs(x), x.dtype.type(1.7)),
        lambda t, x: t.pow(t.abs(x), 1.7),
    ),
    "LOG10(1 + ABS)": Case(
        "LOG10(1 + ABS(val))",
        "i, j",
        lambda x: np.log10(1 + np.abs(x)),
        lambda t, x: t.log10(1 + t.abs(x)),
    ),
    "row VAR_POP": Case(
        "VAR_POP(val)", "i", lambda x: x.var(1), lambda t, x: x.var(1, correction=0)
    ),
    "row SUM of EXP": Case(
        "SUM(EXP(val))", "i", lambda x: np.exp(x).sum(1), lambda t, x: t.exp(x).sum(1)
    ),
}


def maps() -> Section:
    """4096² float32 and float64 numbers."""
    torch = pytorch()
    findings = []
    for dtype in (np.float32, np.float64):
        x = random(N, N).astype(dtype)
        con = connected({"x": x})
        for name, case in CASES.items():
            findings += _compare(f"{name}, {np.dtype(dtype)}", case, x, con, torch)
    return Section(
        f"Maps over {N}²: the other's time / einsql's time",
        tuple(findings),
        "" if torch else "PyTorch, which is not installed",
    )


def _compare(name: str, case: Case, x: Array, con: Any, torch: Any) -> list[Finding]:
    query = f"SELECT {case.keys + ', ' if case.keys else ''}{case.sql} AS val FROM x"
    if case.keys and case.keys != "i, j":
        query += f" GROUP BY {case.keys}"
    expected = np.asarray(case.numpy(x), np.float64)
    found = np.asarray(con.execute(query).fetch_numpy(), np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    contestants: dict[str, Callable[[], object]] = {
        "einsql": lambda: con.execute(query).fetch_numpy(),
        "numpy": lambda: case.numpy(x),
    }
    if torch is not None:
        tensor = torch.from_numpy(x)
        contestants["torch"] = lambda: case.torch(torch, tensor)
        if case.into is not None:
            into, out = case.into, torch.empty_like(tensor)
            contestants["torch, given memory"] = lambda: into(torch, tensor, out)
    taken = measure(contestants, rounds=ROUNDS, seconds=SECONDS)
    findings = []
    for peer in list(contestants)[1:]:
        aim = (OF_NUMPY if peer == "numpy" else OF_TORCH) if case.aim else None
        medians = None if peer == "numpy" else ""
        findings.append(against(f"{name} vs {peer}", taken, peer, aim, medians=medians))
    return findings
